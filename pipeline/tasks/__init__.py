"""Tasks with answers that can be checked: their items, and how an answer is scored."""

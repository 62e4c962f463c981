"""Beyond the paper: budgets of mean KL, certified probabilities, the drafter's side."""

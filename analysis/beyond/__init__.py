"""Beyond the paper: mean budgets, probabilities, and certificates from the drafter's side."""

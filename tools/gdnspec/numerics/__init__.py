"""Expected values, error metrics, and error budgets."""

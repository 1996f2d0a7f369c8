"""Expected values, error metrics, and budgets that are measured and frozen."""

"""Workload lines to tensors: the same line gives the same bytes on any machine. NumPy alone, no torch."""

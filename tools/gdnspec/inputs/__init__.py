"""Turns workload lines into tensors. The same line gives the same bytes on any machine. Uses NumPy, not torch."""

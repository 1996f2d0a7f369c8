"""Measures speed: a ring of calls, timed windows, the limits of the machine, and traces."""

"""Honest emulators: what a right kernel loses to the number formats that it works in, and nothing else."""

"""The judge's side: starts a child, sends it requests with a deadline, and ends it."""

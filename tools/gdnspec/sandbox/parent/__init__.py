"""The judge's side: starts a child, speaks to it with a deadline, ends it."""

"""The solution's side, `python -m gdnspec.sandbox.child`: gives up its rights, then serves calls."""

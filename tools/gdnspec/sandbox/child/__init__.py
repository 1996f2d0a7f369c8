"""The solution's side, run as `python -m gdnspec.sandbox.child`: gives up its rights, then serves calls."""

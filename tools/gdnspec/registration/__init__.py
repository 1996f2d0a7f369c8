"""How operators of families become operators of PyTorch: `gdnspec.family` has what they need of it."""

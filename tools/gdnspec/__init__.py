"""gdnspec: the executable specification of Gated Delta Net."""

__version__ = "0.1.0"

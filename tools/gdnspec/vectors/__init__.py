"""Conformance files for any language: written, read back, and the outputs that come back judged."""

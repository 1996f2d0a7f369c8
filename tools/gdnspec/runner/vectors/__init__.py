"""Test vectors: inputs written as files that need no Python, and the verdict on the outputs that come back."""

"""Test vectors for any language: write them, read them back, and judge outputs that were computed from them."""

"""Bundles: a solution packed with its evidence, which somebody else reads, judges and admits."""

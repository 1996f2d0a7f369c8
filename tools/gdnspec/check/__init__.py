"""Checks correctness: which workloads run on which solutions, each call, and its verdict."""

"""Definitions, solutions and workloads in the format of FlashInfer-Bench, out and in."""

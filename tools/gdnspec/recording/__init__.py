"""Workloads from a running program: what a gated delta rule is called with."""

"""Finds definitions, presets, workloads and solutions in their folders, and loads them into models."""

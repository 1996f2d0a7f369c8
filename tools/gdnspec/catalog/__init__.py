"""What there is: definitions, presets, workloads and solutions, found by a glob and loaded into models."""

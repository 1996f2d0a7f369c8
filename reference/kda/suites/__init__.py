"""The workloads that the family ships."""

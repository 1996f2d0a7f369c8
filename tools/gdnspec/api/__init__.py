"""What `import gdnspec` gives: definitions with their references and workloads, and verdicts on functions."""

"""Which solution to use: read from manifests and traces, without torch."""

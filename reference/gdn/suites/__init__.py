"""The workloads that are shipped with the definitions of gated delta net, and what they must cover."""

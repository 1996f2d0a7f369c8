"""Export and import definitions, solutions and workloads in the format of FlashInfer-Bench."""

"""A solution as a bundle: packed with the evidence for it, and read, judged and admitted by somebody else."""

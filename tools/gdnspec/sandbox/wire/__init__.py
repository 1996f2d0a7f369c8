"""The parts that both sides share: the memory for a call's tensors, and messages as JSON lines."""

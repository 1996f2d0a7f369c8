"""What both sides share: the memory that holds a call's tensors, and messages as JSON lines."""

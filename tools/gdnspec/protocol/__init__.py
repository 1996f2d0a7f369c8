"""How parent and child talk: JSON lines on a socket of their own, tensors in memory that both map."""

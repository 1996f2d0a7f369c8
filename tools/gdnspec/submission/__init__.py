"""A solution packed with its proof, and the reviewer's side of that."""

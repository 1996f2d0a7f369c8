"""What the suites must cover: the factors of a call and their levels, sizes, and rows that cover them."""

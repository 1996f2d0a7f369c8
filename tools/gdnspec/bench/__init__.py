"""Speed: a ring of calls, its windows, the machine's limits, and traces."""

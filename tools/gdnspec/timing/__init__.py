"""How long a call takes: statistics of samples, what a device can do, and what no honest call is faster than."""

"""Turn the request logs of a serving system into the calls that its kernels get."""

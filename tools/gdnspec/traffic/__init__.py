"""From the logs of a serving system to the calls that its kernels meet."""

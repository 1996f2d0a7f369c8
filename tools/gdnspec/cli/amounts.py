"""The most that options take: clocks and the kernel's limits end somewhere, and past that they raise."""

SECONDS = 86_400.0  # a day, of a call
MINUTES = 10_080.0  # a week, of a process
REPEATS = 1_000_000  # of a call
DAYS = 36_500.0
GIB = float(1 << 20)
MIB = float(1 << 20)

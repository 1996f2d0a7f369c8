"""Upper limits of options. Beyond them a clock or a limit of the operating system raises an error."""

SECONDS = 86_400.0  # a day, of a call
MINUTES = 10_080.0  # a week, of a process
REPEATS = 1_000_000  # of a call
DAYS = 36_500.0
GIB = float(1 << 20)
MIB = float(1 << 20)

"""python command_process.py ARGUMENTS: the command, for a test that sends it signals."""

import contextlib
import sys

import forked_workers
from gdnspec.cli.main import main

if __name__ == "__main__":
    sys.argv[0] = "gdnspec"
    with contextlib.suppress(BrokenPipeError), forked_workers.below():
        main()

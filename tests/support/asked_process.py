"""python asked_process.py MODULE FILE: a module that build/dry.py asks, with what it is asked in a file."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    module, given = sys.argv[1:]
    with Path(given).open() as sys.stdin:
        runpy.run_module(module, run_name="__main__")

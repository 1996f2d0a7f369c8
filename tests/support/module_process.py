"""python module_process.py MODULE ARGUMENTS: as `python -m MODULE`, for a fork that has torch and the definitions."""

import runpy
import sys

if __name__ == "__main__":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)

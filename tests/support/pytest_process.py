"""python pytest_process.py ARGUMENTS: pytest, for tests of what is loaded into it."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))

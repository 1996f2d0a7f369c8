"""Sources are compiled once, before the test processes start. Otherwise each compiles all, and rewrites all asserts.

Processes that start together find nothing compiled, and Python keeps nothing at all with PYTHONDONTWRITEBYTECODE. It
always reads what is kept.
"""

import compileall
import contextlib
import multiprocessing
import os
import sys
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

PLAIN = ("tools", "integrations", "tests/support")  # what tests import, and processes that they start


def compile_all(config: pytest.Config, root: Path) -> None:
    """By as many processes as there are processors. Tests compile for themselves what cannot be compiled or kept."""
    plain = [file for folder in PLAIN for file in (root / folder).rglob("*.py")]
    rewritten = [root / "tests/conftest.py", *(root / "tests").rglob("test_*.py"), *_of_plugins()]
    jobs = [*((_compile, file) for file in plain), *((_rewrite, file) for file in rewritten)]
    count = os.cpu_count() or 1

    def part(number: int) -> None:
        for do, file in jobs[number::count]:
            with contextlib.suppress(OSError, SyntaxError, UnicodeError):
                do(file, config)

    parts = [multiprocessing.get_context("fork").Process(target=part, args=(i,)) for i in range(count)]
    for process in parts:
        process.start()
    for process in parts:
        process.join()


def _of_plugins() -> list[Path]:
    """What is loaded already, with its asserts rewritten."""
    specs = (getattr(module, "__spec__", None) for module in list(sys.modules.values()))
    return [Path(spec.origin) for spec in specs if spec and isinstance(spec.loader, rewrite.AssertionRewritingHook)]


def _compile(file: Path, config: pytest.Config) -> None:
    compileall.compile_file(file, quiet=2)  # not if it is kept


def _rewrite(file: Path, config: pytest.Config) -> None:
    """As pytest does where it loads the file. It has no public function that does."""
    kept = rewrite.get_cache_dir(file) / (file.name.removesuffix(".py") + rewrite.PYC_TAIL)
    if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept.parent):
        status, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, status, kept)

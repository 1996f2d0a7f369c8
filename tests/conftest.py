"""Shared fixtures: a cache of its own, the command, and a factory of solutions."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compiled_once
import forked_command
import forked_workers
import pytest
import read_once
from gdnspec import paths
from patience import PATIENCE

# A shell that starts this in the background lets it, and all that it starts, ignore Ctrl-C. Tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are collected: half of that time went into looking for garbage among what is loaded and stays.
gc.disable()

read_once.definitions_of_the_checkout()
read_once.solutions_of_the_checkout()
read_once.workloads_of_the_checkout()
read_once.faults_of_the_checkout()

# Two test processes share two cores; the solutions they start would take four threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

with contextlib.suppress(ImportError):  # `make gpu-test` uses the packages that a machine has
    import hypothesis

    # By default an example fails after 200 ms, and a test whose examples are drawn slowly: both depend on others.
    hypothesis.settings.register_profile(
        "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("any machine")

ROOT = Path(__file__).resolve().parents[1]

# Of the C library, in the environment that it reads at start: memory that is given back for a moment is cleared again,
# page by page, which was half of what a check costs the kernel.
KEEPS_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TOP_PAD_": str(1 << 24),
}  # fmt: skip

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("numprocesses", None):
        compiled_once.compile_all(config, ROOT)
        os.environ.update(KEEPS_MEMORY)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` run where there is one. Those marked `slow` start first, so that none is left for the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Expected values of this test run alone: no verdict of a test depends on an earlier one's cache. Builds for a GPU
    are those that this machine keeps anyway: each has a folder named by the hash of its sources, and takes a minute."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("GDNSPEC_CACHE")
    if forked_workers.HAS_GPU:
        kept = paths.build_cache("").absolute()
        kept.mkdir(parents=True, exist_ok=True)
        (folder / kept.name).symlink_to(kept)
    os.environ["GDNSPEC_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["GDNSPEC_CACHE"]
    else:
        os.environ["GDNSPEC_CACHE"] = before


@pytest.fixture(scope="session", autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What all processes of this test run need is made once."""
    own = tmp_path_factory.getbasetemp()
    os.environ[read_once.SHARED] = str(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own)


@pytest.fixture(scope="session", autouse=True)
def workers() -> None:
    """Where a test judges in its own process."""
    forked_command.ensure_server()
    forked_workers.open_beside(forked_command.context)
    forked_command.answers_from_forks(beside=True)


def command_lines() -> list[bytes]:
    """Of all processes, those passed over that end meanwhile."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_bytes())
    return found


@pytest.fixture
def gdnspec() -> Run:
    """Runs the command as a user would; asserts that whatever happens, no traceback is shown."""

    def run(
        *arguments: str | Path,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = PATIENCE,
        before: Callable[[], None] | None = None,
        **more: Any,
    ) -> Any:
        words, environment = [*map(str, arguments)], {**os.environ, **(env or {})}
        if not more and not any(name.startswith(forked_workers.READ_AT_START) for name in env or {}):
            process = forked_command.run(words, environment, cwd, timeout, before=before)
        else:
            assert before is None, "only a fork can be prepared"
            process = subprocess.run(
                [sys.executable, "-m", "gdnspec", *words],
                capture_output=True, text=True, timeout=timeout, env=environment, cwd=cwd, **more,
            )  # fmt: skip
        assert "Traceback" not in process.stderr, process.stderr
        assert "Traceback" not in process.stdout, process.stdout
        return process

    return run


# A right answer for decode, for solutions that are to be wrong in one respect only.
RIGHT_DECODE = (ROOT / "reference" / "gdn" / "gated_delta_net.py").read_text().split("# --- prefill")[0] + (
    "def decode_k_last"
    + (ROOT / "reference" / "gdn" / "gated_delta_net.py")
    .read_text()
    .split("def decode_k_last")[1]
    .split("def decode_k_first")[0]
)

# For solutions that go wrong in timed calls alone: how many calls there were at all depends on the machine's speed.
TIMED_CALLS = '''
def timed_calls():
    """How many calls of timed windows there have been, with this one; 0 in any other call. A bench makes 24 or more."""
    import builtins, sys
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith("child/windows.py"):
        frame = frame.f_back
    if frame is None:
        return 0
    builtins.timed_calls = getattr(builtins, "timed_calls", 0) + 1
    return builtins.timed_calls
'''


@pytest.fixture
def make_solution(tmp_path: Path) -> Callable[..., Path]:
    """Writes a solution of gdn_decode_k_last below tmp_path/solutions; returns its folder."""

    def make(code: str, name: str = "under_test", call: str = "return", **manifest: Any) -> Path:
        folder = tmp_path / "solutions" / name
        folder.mkdir(parents=True, exist_ok=True)
        # Only where it is called: the audit of a submission would find it.
        given = [RIGHT_DECODE, TIMED_CALLS, code] if "timed_calls()" in code else [RIGHT_DECODE, code]
        (folder / "kernel.py").write_text("\n\n".join(given))
        entry = {"entry": "kernel.py::run", "call": call, "prepare": None, "supports": []}
        content = {
            "schema_version": 1,
            "name": name,
            "language": "python",
            "authors": ["a test"],
            "license": "Apache-2.0",
            "description": "made by a test",
            "sources": ["kernel.py"],
            "requires": {"device": "any", "compute_capability": None, "packages": ["torch>=2.11"]},
            "deterministic": False,
            "entries": {"gdn_decode_k_last": entry},
            **manifest,
        }
        (folder / "solution.json").write_text(json.dumps(content))
        return folder

    return make

"""gdnspec bench --executor ray, on the CPUs of a Ray cluster of this machine alone."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.bench import ray_executor, ray_worker
from gdnspec.bench.executor import NothingToRunOn, Settings, Task
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import plan
from gdnspec.model.errors import SpecError
from gdnspec.model.trace import Trace
from patience import PATIENCE, until

RIGHT = "def run(**inputs):\n    return decode_k_last(**inputs)"
NAMES = ("one_row", "scale_zero", "batch_8")
TIMED = {"PASSED", "SUSPECT_TIMING"}  # two judges on two cores, and whatever else these do: clocks may disagree
SETTINGS = Settings("cpu", 0.2, 60.0, 1, "gdnspec bench", 1)

Make = Callable[..., Path]
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module")
def cluster(cache: Path) -> Iterator[Any]:
    """Two CPUs, whatever this machine has."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        # Workers inherit it: they find the subclasses of this file.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield ray
        ray.shutdown()


@pytest.fixture
def solution(make_solution: Make) -> Solution:
    return load_solution(make_solution(RIGHT))


class Watched:
    """How often each workload was started."""

    def __init__(self) -> None:
        self.started: Counter[str] = Counter()

    def start(self, solution: str, workload: str) -> None:
        self.started[workload] += 1

    def round(self, rounds: int, spread: float) -> None: ...


def tasks(solution: Solution) -> list[Task]:
    found, where = definition("gdn_decode_k_last"), machine.device("cpu")
    assert where is not None
    lines = [w for w in workloads(found) if w.name in NAMES]
    return [Task(job, []) for job in plan([solution], [(found, lines)], where)]


def spread(solution: Solution, watch: Watched) -> dict[str, Trace]:
    traces = [trace for _, (trace, *_) in ray_executor.spread(tasks(solution), SETTINGS, watch, print)]
    assert sorted(t.workload for t in traces) == sorted(NAMES), "none lost, none doubled"
    return {trace.workload: trace for trace in traces}


# --- the command ------------------------------------------------------------------------------------------------


def arguments(folder: Path, file: Path, *more: str) -> list[str]:
    named = [part for name in NAMES for part in ("--workload", name)]
    return ["bench", "gdn_decode_k_last", "--device", "cpu", "--executor", "ray", "--solution", folder.name,
            "--solutions-dir", str(folder.parent), "--json", str(file), *named, *more]  # fmt: skip


def test_every_line_comes_once_and_is_what_the_local_one_writes(
    cluster: Any, gdnspec: Run, make_solution: Make
) -> None:
    """From a cluster that is there already, and outlives the command."""
    folder, twin = make_solution(RIGHT), make_solution(RIGHT, name="twin")
    file = folder.parent.parent / "t.jsonl"
    command = arguments(folder, file, "--against", "twin", "--save", "--seconds", "0.3", "--seed", "5")
    done = gdnspec(*command, env={"RAY_ADDRESS": cluster.get_runtime_context().gcs_address})
    traces = [Trace.model_validate(json.loads(line)) for line in file.read_text().splitlines()]
    assert sorted(t.workload for t in traces) == sorted(NAMES)
    for trace in traces:
        assert trace.status in TIMED, trace.message
        assert trace.timing is not None
        assert trace.seed == 5
        if trace.status == "PASSED":
            assert [ratio.baseline for ratio in trace.against] == ["twin"]
        assert "--executor ray" in trace.command
    assert done.returncode == int(any(t.status != "PASSED" for t in traces)), done.stderr
    (saved,) = (folder / "traces").glob("*.jsonl")
    assert len(saved.read_text().splitlines()) == len(NAMES)
    assert not (twin / "traces").exists()
    assert gdnspec("validate", folder).returncode == 0
    assert cluster.cluster_resources()["CPU"] == 2


@needs_ray
def test_an_interrupt_ends_the_workers_and_keeps_what_was_measured(make_solution: Make, tmp_path: Path) -> None:
    file, folder = tmp_path / "t.jsonl", make_solution(RIGHT)
    stuck = make_solution("def run(**inputs):\n    import time\n    time.sleep(9600)", name="stuck")
    command = arguments(folder, file, "--solution", stuck.name, "--seconds", "0.3", "--timeout", "9000")
    process = subprocess.Popen(
        [sys.executable, "-m", "gdnspec", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: file.exists() and file.read_text().count("\n") >= 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    kept = [Trace.model_validate(json.loads(line)) for line in file.read_text().splitlines()]
    assert kept
    assert all(trace.workload in out for trace in kept), "the table of what there is"


def test_without_ray_it_says_how_to_get_it(gdnspec: Run, tmp_path: Path) -> None:
    (tmp_path / "ray.py").write_text("raise ImportError('blocked by a test')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = gdnspec("bench", "gdn_decode_k_last", "--device", "cpu", "--executor", "ray", env={"PYTHONPATH": path})
    assert done.returncode == 3
    assert "pip install 'gdnspec[ray]'" in done.stderr


def test_an_unknown_executor_is_refused_with_the_known_ones(gdnspec: Run) -> None:
    done = gdnspec("bench", "gdn_decode_k_last", "--device", "cpu", "--executor", "slurm")
    assert done.returncode == 2
    assert "no executor 'slurm' (local, ray)" in done.stderr


@needs_ray
def test_a_cluster_out_of_reach_is_a_message(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    command = arguments(make_solution(RIGHT), tmp_path / "t.jsonl")
    done = gdnspec(*command, env={"RAY_ADDRESS": "127.0.0.1:1"})
    assert done.returncode == 2
    assert "no Ray cluster at 127.0.0.1:1" in done.stderr


# --- workers that are lost --------------------------------------------------------------------------------------


class DiesOnce(ray_worker.Worker):
    """Killed in the midst of its first order of one workload, wherever that is."""

    def measure(self, wanted: Any) -> Any:
        killed = Path(wanted["solutions"][0][0]) / "killed"
        if wanted["workload"]["name"] == "scale_zero" and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(wanted)


class DiesAlways(ray_worker.Worker):
    def measure(self, wanted: Any) -> Any:
        if wanted["workload"]["name"] == "scale_zero":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().measure(wanted)


def test_a_task_whose_worker_is_killed_is_run_again(
    cluster: Any, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "Worker", DiesOnce)
    watch = Watched()
    traces = spread(solution, watch)
    assert {t.status for t in traces.values()} <= TIMED
    assert watch.started == {"one_row": 1, "scale_zero": 2, "batch_8": 1}


def test_a_task_that_costs_three_workers_is_given_up(
    cluster: Any, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "Worker", DiesAlways)
    watch = Watched()
    traces = spread(solution, watch)
    assert {name for name, trace in traces.items() if trace.status in TIMED} == {"one_row", "batch_8"}
    assert traces["scale_zero"].status == "RUNTIME_ERROR"
    assert traces["scale_zero"].message == "its worker was lost 3 times"
    assert traces["scale_zero"].device == traces["one_row"].device
    assert watch.started["scale_zero"] == 3


# --- workers that have something else ---------------------------------------------------------------------------


class OtherReference(ray_worker.Worker):
    def measure(self, wanted: Any) -> Any:
        return super().measure({**wanted, "sources": {**wanted["sources"], "reference": "another"}})


def test_a_worker_with_another_checkout_refuses(
    cluster: Any, solution: Solution, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tasks(solution)
    with monkeypatch.context() as patch:
        patch.setattr(ray_executor, "judge_hash", lambda: "another")
        with pytest.raises(SpecError, match="it differs from the driver's copy: tools/gdnspec"):
            list(ray_executor.spread(wanted, SETTINGS, Watched(), print))
    assert solution.source_hash  # as the driver has read it
    (solution.folder / "kernel.py").write_text((solution.folder / "kernel.py").read_text() + "\n# mended\n")
    with pytest.raises(SpecError, match=f"it differs from the driver's copy: {solution.folder}"):
        list(ray_executor.spread(wanted, SETTINGS, Watched(), print))
    monkeypatch.setattr(ray_executor, "Worker", OtherReference)
    with pytest.raises(SpecError, match="it differs from the driver's copy: reference"):
        list(ray_executor.spread(tasks(load_solution(solution.folder)), SETTINGS, Watched(), print))


def test_a_cluster_without_a_gpu_is_nothing_to_run_on(cluster: Any, solution: Solution) -> None:
    on_gpu = Settings("cuda", 0.2, 60.0, 1, "gdnspec bench", 1)
    with pytest.raises(NothingToRunOn, match="no GPU"):
        list(ray_executor.spread(tasks(solution), on_gpu, Watched(), print))


# --- a cluster that is lost -------------------------------------------------------------------------------------


class Lost:
    """Ray as far as a crew uses it, its daemon gone: nothing is ever ready. `nodes`: what it says of its machines."""

    class exceptions:
        class RayError(Exception): ...

        class RayTaskError(RayError): ...

    def __init__(self, nodes: Callable[[], Any], waits: int = 10**9) -> None:
        self.nodes, self.waited, self.waits, self.told = nodes, 0, waits, 0

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def remote(self, **needs: Any) -> Any:
        def answer(*arguments: Any) -> object:
            return object()

        method = type("Method", (), {"remote": staticmethod(answer)})
        actor = type("Actor", (), dict.fromkeys(("start", "measure", "end"), method))
        return lambda worker: type("Class", (), {"remote": staticmethod(lambda: actor)})

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        self.waited += 1
        if self.waited > self.waits:
            raise self.exceptions.RayError("Failed to connect to GCS")
        return [], answers

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.told += 1


def never() -> Any:
    import threading

    threading.Event().wait()


def refusing() -> Any:
    raise RuntimeError("traced back\nFailed to connect to GCS")


@pytest.mark.parametrize(
    ("nodes", "waits", "says"),
    [
        (lambda: [{"Alive": False}], 10**9, "none of its machines is alive"),
        (list, 10**9, "none of its machines is alive"),
        (refusing, 10**9, "Failed to connect to GCS"),
        (never, 10**9, "no answer within 0.01 s"),
        (lambda: [{"Alive": True}], 2, "Failed to connect to GCS"),
    ],
)
def test_a_daemon_that_is_lost_before_its_workers_are_ready_is_said(
    solution: Solution, monkeypatch: pytest.MonkeyPatch, nodes: Callable[[], Any], waits: int, says: str
) -> None:
    import contextlib

    lost, warned = Lost(nodes, waits), list[str]()
    monkeypatch.setattr(ray_executor, "imported", lambda: lost)
    monkeypatch.setattr(ray_executor, "_cluster", contextlib.nullcontext)
    monkeypatch.setattr(ray_executor, "ANSWER", 0.01)
    with pytest.raises(SpecError) as said:
        list(ray_executor.spread(tasks(solution), SETTINGS, Watched(), warned.append))
    assert f"the Ray daemon is lost ({says})" in str(said.value)
    assert "start the cluster again" in str(said.value)
    assert lost.told == 0, "nobody is there to be told"
    assert lost.waited <= 3


def test_a_cluster_that_is_busy_is_waited_for(solution: Solution, monkeypatch: pytest.MonkeyPatch) -> None:
    import contextlib

    busy, warned = Lost(lambda: [{"Alive": True}], waits=50), list[str]()
    monkeypatch.setattr(ray_executor, "imported", lambda: busy)
    monkeypatch.setattr(ray_executor, "_cluster", contextlib.nullcontext)
    with pytest.raises(SpecError, match="Failed to connect"):
        list(ray_executor.spread(tasks(solution), SETTINGS, Watched(), warned.append))
    assert busy.waited == 51
    assert warned == ["no device of the Ray cluster is free yet; waiting (see ray status)"], "once"

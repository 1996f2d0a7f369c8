"""The benchmark of a whole model, with small layers on a CPU. fla_cases.py tries it with FLA."""

import importlib
import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from conftest import ROOT
from gdnspec import ops

pytest.importorskip("transformers")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("FLA_DISABLE_BACKEND_DISPATCH", "FLA_TENSOR_CACHE_SIZE"):
        monkeypatch.setenv(name, "1")  # or the script leaves them to other tests
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("end_to_end")


def test_every_path_runs_every_case(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    counts: Counter[str] = Counter()
    for name in dir(ops):
        operator = getattr(ops, name)
        monkeypatch.setattr(
            ops, name, lambda *args, name=name, operator=operator, **kw: counts.update([name]) or operator(*args, **kw)
        )
    package = sys.modules["model_paths"].package
    before = {name: getattr(package, name) for name in dir(package)}
    script.main(
        [
            "--tiny",
            "--device",
            "cpu",
            "--windows",
            "1",
            "--paths",
            "transformers,gdnspec",
            "--json",
            str(tmp_path / "found"),
        ]
    )
    printed = capsys.readouterr()
    assert "a CPU, whose times say nothing of a GPU" in printed.out
    lines = (line.strip("| ").split(" | ") for line in printed.out.splitlines() if line.startswith("| "))
    rows = {(row[0], row[1]): row[2:] for row in lines if row[0] != "case"}
    both = [case.name for case in script.TINY_CASES if not case.packed]
    assert set(rows) == {(name, path) for name in both for path in ("transformers", "gdnspec")} | {
        ("prefill 5+1+70", "gdnspec")
    }
    for name in both:
        assert float(rows[name, "gdnspec"][-1]) < 1e-5
    for *times, part, against, _ in rows.values():
        assert all(float(each.removesuffix(" us").replace(",", "")) > 0 for each in times)
        assert part.endswith("%")
        assert against == "-"
    assert "prefill 5+1+70: transformers is left out: ValueError: its state runs on over the bounds" in printed.err
    assert {name for name, count in counts.items() if count} == {
        "causal_conv1d_gates", "gated_delta_net_step_", "gated_delta_rule", "gated_rms_norm",
    }  # fmt: skip
    assert {name: getattr(package, name) for name in dir(package)} == before
    written = json.loads((tmp_path / "found").read_text())
    assert written["versions"]["torch"] == torch.__version__
    assert len(written["commit"]) == 40
    for row in written["rows"]:
        if row["left_out"] is None:
            assert f"{row['tokens'] / row['whole']:,.0f}" == rows[row["case"], row["path"]][0]
            assert min(row["core"], row["whole"]) > 0
    (left_out,) = (row for row in written["rows"] if row["left_out"])
    assert (left_out["case"], left_out["path"]) == ("prefill 5+1+70", "transformers")
    assert left_out["left_out"].startswith("ValueError: its state runs on")


@pytest.fixture
def gpu(script: Any, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU on which every call has kernels of 6 s, and whose graphs only count that they were made."""
    profiler = MagicMock()
    times = [SimpleNamespace(self_device_time_total=us) for us in (4e6, 2e6, 0)]
    profiler.return_value.__enter__.return_value.key_averages.return_value = times
    found = SimpleNamespace(cuda=MagicMock(), times=sys.modules["graph_times"], device=SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch, "cuda", found.cuda)
    monkeypatch.setattr(found.times, "profile", profiler)
    return found


def test_a_call_that_no_graph_records_is_timed_by_its_kernels(script: Any, gpu: SimpleNamespace) -> None:
    """The table must not show it as a graph."""
    gpu.cuda.graph.side_effect = RuntimeError("operation not permitted\nwhen capturing")
    ran: list[int] = []
    call = gpu.times.recorded(lambda: ran.append(1), gpu.device)
    assert call.why == "RuntimeError: operation not permitted"
    warm = len(ran)
    assert gpu.times.seconds(call, 3, gpu.device) == 2
    assert len(ran) == warm + 3
    row = script.Row("decode", "none", 4, 2.0, 1.0, unrecorded={"core": call.why})
    assert row.line() == "| decode | none, kernels | 2 | 2,000,000 us | 1,000,000 us | 50% | - | 0.0e+00 |"


def test_a_call_of_thousands_of_kernels_gets_no_graph(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """And few windows: the profiler takes longer than the call."""
    monkeypatch.setattr(gpu.times, "MOST_CALLS", 2)
    x = torch.ones(2)
    few = gpu.times.recorded(lambda: (x + 1).view(1, 2) + 1, gpu.device)
    assert isinstance(few, gpu.times.Recorded)
    ran: list[int] = []
    many = gpu.times.recorded(lambda: ran.append(1) or x + x + x + x, gpu.device)
    assert many.why == "it makes 3 calls of PyTorch, and at most 2 are recorded"
    ran.clear()
    assert gpu.times.medians({"many": many}, 7, gpu.device) == {"many": 6}
    assert len(ran) == 1 + 2


def test_nothing_begins_when_the_time_is_over(
    script: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "TINY_CASES", script.TINY_CASES[:1])
    script.main(["--tiny", "--device", "cpu", "--seconds", "0"])
    printed = capsys.readouterr()
    for path in script.PATHS:
        assert f"prefill 1x96: {path} is left out: TimeoutError: --seconds were over" in printed.err
    assert "prefill 1x96" not in printed.out


def test_what_differs_is_seen(script: Any) -> None:
    x = [torch.ones(2, 2), torch.ones(3)]
    assert script.distance(x, x) == 0
    assert script.distance([x[0], 1.1 * x[1]], x) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cpu"], "--device cpu takes --tiny as well"),
        (
            ["--tiny", "--device", "cpu", "--paths", "fla,flo"],
            "--paths: flo is unknown: transformers, fla, gdnspec are",
        ),
        (["--tiny", "--device", "cpu", "--layers", "0"], "--layers and --windows take 1 and more"),
        (["--tiny", "--device", "cpu", "--cases", "train"], "--cases: no case has 'train' in its name"),
        (["--tiny"], "no CUDA GPU here: --tiny --device cpu tries the script"),
        (["--tiny", "--device", "cpu", "--json", "none/x.json"], "--json: there is no folder none: make it first"),
    ],
)
def test_what_cannot_run_is_said(
    script: Any, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        script.main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err

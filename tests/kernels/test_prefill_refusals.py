"""What the chunkwise prefill cannot serve it refuses on the host, before anything is launched; no checkpoint is written
out of bounds."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import forked_command
import pytest
from conftest import ROOT
from gdnspec.build.loader import load_function

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

D, T, N, HQ, H = 16, 140, 2, 1, 2
BF16 = torch.bfloat16
Arguments = dict[str, Any]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = ROOT / "solutions/triton_chunkwise"
    entry = load_function(folder, "kernel.py::prefill_k_last", tmp_path_factory.mktemp("build"))
    return sys.modules[entry.__module__]


@pytest.fixture
def looking(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernel under GDNSPEC_DEBUG=1."""
    monkeypatch.setitem(kernel.check.__globals__, "DEBUG", True)
    return kernel


def arguments() -> Arguments:
    return {
        "q": torch.zeros(T, HQ, D, dtype=BF16), "k": torch.zeros(T, HQ, D, dtype=BF16),
        "v": torch.zeros(T, H, D, dtype=BF16), "g": torch.ones(T, H), "beta": torch.ones(T, H),
        "cu_seqlens": torch.tensor([0, 70, 140]), "initial_state": torch.zeros(N, H, D, D), "scale": None,
        "output": torch.zeros(T, H, D, dtype=BF16), "final_state": torch.zeros(N, H, D, D),
    }  # fmt: skip


def checkpoint_arguments() -> Arguments:
    return {
        "checkpoint_cu_starts": torch.tensor([0, 1, 2]), "checkpoint_interval": 64,
        "checkpoints": torch.zeros(2, H, D, D),
    }  # fmt: skip


def of_type(dtype: Any) -> Callable[[Any], Any]:
    return lambda x: x.to(dtype)


def strided(x: Any) -> Any:
    return x.repeat_interleave(2, dim=0)[::2]


BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    *((name, of_type(torch.float64), "float64") for name in ("q", "k", "v", "g", "beta", "output", "final_state")),
    ("q", of_type(torch.float16), "k is torch.bfloat16"),
    ("k", of_type(torch.float32), "k is torch.float32"),
    ("g", of_type(BF16), "g is torch.bfloat16"),
    ("beta", of_type(BF16), "beta is torch.bfloat16"),
    ("initial_state", of_type(BF16), "initial_state is torch.bfloat16"),
    ("cu_seqlens", of_type(torch.float32), "cu_seqlens is torch.float32"),
    ("cu_seqlens", lambda x: x[:-1], "has shape"),
    ("cu_seqlens", lambda x: x[:0], "cu_seqlens has shape"),
    ("cu_seqlens", lambda x: x[None], "cu_seqlens has shape"),
    *((name, strided, f"{name} must be contiguous") for name in arguments() if name != "scale"),
    *((name, lambda x: x[:-1], "has shape") for name in arguments() if name not in ("scale", "cu_seqlens")),
    ("q", lambda x: x[None], "dimensions"),
    ("output", lambda x: x[0], "dimensions"),
    ("k", lambda x: x.repeat(1, 3, 1), "neither GQA nor GVA"),
    ("v", lambda x: x[:, :0], "neither GQA nor GVA"),
    ("g", lambda x: x[:, :1].contiguous(), "g has shape"),
    ("initial_state", lambda x: x[:, :1].contiguous(), "initial_state has shape"),
    ("final_state", lambda x: x[..., :8].contiguous(), "final_state has shape"),
    ("beta", lambda x: x.to("meta"), "beta is on meta"),
]

BAD_CHECKPOINTS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("checkpoint_cu_starts", of_type(torch.float32), "checkpoint_cu_starts is torch.float32"),
    ("checkpoint_cu_starts", lambda x: x[:-1], "checkpoint_cu_starts has shape"),
    ("checkpoint_cu_starts", lambda x: x[None], "checkpoint_cu_starts has 2 dimensions"),
    ("checkpoint_cu_starts", strided, "checkpoint_cu_starts must be contiguous"),
    ("checkpoint_cu_starts", lambda x: x.to("meta"), "checkpoint_cu_starts is on meta"),
    *(("checkpoint_interval", lambda _, x=x: x, "not a positive multiple of 64") for x in (0, -64, 32, 96, True)),
    ("checkpoint_interval", float, "checkpoint_interval is 64.0"),
    ("checkpoint_interval", torch.tensor, "checkpoint_interval is tensor"),
    ("checkpoint_interval", lambda _: None, "checkpoint_interval is None"),
    ("checkpoints", of_type(BF16), "checkpoints is torch.bfloat16"),
    ("checkpoints", lambda x: x[0], "checkpoints has 3 dimensions"),
    ("checkpoints", lambda x: x[:, :1].contiguous(), "checkpoints has shape"),
    ("checkpoints", lambda x: x[..., :8].contiguous(), "checkpoints has shape"),
    ("checkpoints", strided, "checkpoints must be contiguous"),
    ("checkpoints", lambda x: x.mT, "checkpoints must be contiguous"),
    ("checkpoints", lambda x: x.to("meta"), "checkpoints is on meta"),
]


@pytest.mark.parametrize("entry", ["prefill_k_last", "prefill_k_first", "prefill_checkpoints"])
@pytest.mark.parametrize(("name", "change", "says"), BAD)
def test_bad_input_is_refused(
    kernel: ModuleType, entry: str, name: str, change: Callable[[Any], Any], says: str
) -> None:
    bad = arguments() | (checkpoint_arguments() if entry == "prefill_checkpoints" else {})
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        getattr(kernel, entry)(**bad)


@pytest.mark.parametrize(("name", "change", "says"), BAD_CHECKPOINTS)
def test_bad_checkpoints_are_refused(kernel: ModuleType, name: str, change: Callable[[Any], Any], says: str) -> None:
    bad = arguments() | checkpoint_arguments()
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        kernel.prefill_checkpoints(**bad)


def test_a_head_size_past_256_is_refused(kernel: ModuleType) -> None:
    bad = arguments() | {name: torch.zeros(T, HQ, 272, dtype=BF16) for name in ("q", "k")}
    with pytest.raises(ValueError, match="head_size 272"):
        kernel.prefill_k_last(**bad)


@pytest.mark.parametrize("bounds", [[1, 70, 140], [0, 70, 139], [0, 141, 140], [0, -1, 140]])
def test_bounds_that_lie_are_refused_when_asked_to_look(looking: ModuleType, bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to total_seq_len 140"):
        looking.prefill_k_last(**arguments() | {"cu_seqlens": torch.tensor(bounds)})


@pytest.mark.parametrize(
    "changes",
    [
        *({"checkpoint_cu_starts": torch.tensor(x)} for x in ([1, 2, 3], [0, 0, 2], [0, 1, 1], [0, 2, 2])),
        *({"checkpoints": torch.zeros(rows, H, D, D)} for rows in (0, 1, 3)),
        {"checkpoint_interval": 128},
    ],
)
def test_checkpoints_that_lie_are_refused_when_asked_to_look(looking: ModuleType, changes: Arguments) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_cu_starts must be \[0, ., .\] with an interval of"):
        looking.prefill_checkpoints(**arguments() | checkpoint_arguments() | changes)


# Three rows in the middle of seven; sequence 0 has two checkpoints, sequence 1 has one.
OUTSIDE = """
import sys
from pathlib import Path

import torch
from gdnspec.build.loader import load_function

entry = load_function(Path(sys.argv[1]), "kernel.py::prefill_checkpoints", Path(sys.argv[2]))
T, N, H, D = 194, 2, 1, 16
def written(starts, dtype=torch.int64):
    q, k, v, output = torch.randn(4, T, H, D).bfloat16().unbind()
    rows = torch.full((7, H, D, D), torch.nan)
    entry(q=q, k=k, v=v, g=torch.ones(T, H), beta=torch.zeros(T, H), cu_seqlens=torch.tensor([0, 130, 194]),
          initial_state=torch.ones(N, H, D, D), scale=None, checkpoint_cu_starts=torch.tensor(starts, dtype=dtype),
          checkpoint_interval=64, output=output, final_state=torch.empty(N, H, D, D), checkpoints=rows[2:5])
    assert (rows.isnan().all((1, 2, 3)) | (rows == 1).all((1, 2, 3))).all()
    return (rows == 1).all((1, 2, 3)).nonzero()[:, 0].tolist()

assert written([0, 2, 3]) == written([0, 2, 3], torch.int32) == [2, 3, 4]
assert written([-1, -1, 3]) == [2]
assert written([-2, 2, 3]) == [4]
assert written([2, 3, 4]) == [4]
assert written([2**40, -2**40, 0]) == written([2**63 - 1, -2**63, 0]) == []
print("none outside")
"""


# Everything lies in the middle of a larger tensor that is full of NaN, and stays so.
LENGTHS = """
import sys
from pathlib import Path

import torch
from gdnspec.build.loader import load_function

entry = load_function(Path(sys.argv[1]), "kernel.py::prefill_k_last", Path(sys.argv[2]))
T, N, H, D, MARGIN = 100, 2, 1, 16, 300
def inside(rows, *shape, margin, dtype=torch.float32):
    whole = torch.full((rows + 2 * margin, *shape), torch.nan, dtype=dtype)
    whole[margin : margin + rows] = torch.randn(rows, *shape).clamp(-1, 1).to(dtype)
    return whole, whole[margin : margin + rows]

def finite(bounds, dtype=torch.int64):
    (_, q), (_, k), (_, v), (o_whole, output) = (
        inside(T, H, D, margin=MARGIN, dtype=torch.bfloat16) for _ in range(4)
    )
    (_, g), (_, beta) = (inside(T, H, margin=MARGIN) for _ in range(2))
    (_, initial), (s_whole, final) = (inside(N, H, D, D, margin=3) for _ in range(2))
    g.fill_(0.9), beta.fill_(0.5), output.fill_(0), final.fill_(torch.nan)
    entry(q=q, k=k / 4, v=v, g=g, beta=beta, cu_seqlens=torch.tensor(bounds, dtype=dtype), initial_state=initial,
          scale=None, output=output, final_state=final)
    assert o_whole[:MARGIN].isnan().all() and o_whole[MARGIN + T :].isnan().all(), bounds
    assert s_whole[:3].isnan().all() and s_whole[3 + N :].isnan().all(), bounds
    return bool(output.isfinite().all() and final.isfinite().all())

for bounds in ([0, 70, 250], [0, 250, 100], [-150, 70, 100], [150, 200, 250], [70, 0, 100], [-5, -4, -3]):
    assert finite(bounds) and finite(bounds, torch.int32), bounds
for bounds in ([2**40, -2**40, 0], [0, 2**62, -2**62]):
    assert finite(bounds), bounds
print("none outside")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [pytest.param(OUTSIDE, id="checkpoints", marks=pytest.mark.thorough), pytest.param(LENGTHS, id="lengths")],
)
def test_nothing_is_read_or_written_out_of_bounds(program: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "GDNSPEC_DEBUG": "0"}
    (tmp_path / "program.py").write_text(program)
    given = [str(ROOT / "solutions/triton_chunkwise"), str(tmp_path)]
    done = forked_command.run(given, environment, script=tmp_path / "program.py")
    assert done.stdout == "none outside\n", done.stderr

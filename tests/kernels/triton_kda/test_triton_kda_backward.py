"""The backward pass of triton_kda beyond the workloads: other head sizes and types, rows behind the last sequence, what
the host refuses. The compiled kernels fit into a multiprocessor, and spill no more than the log says."""

import json
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

from gdnspec.build.resources import triton_resources  # noqa: E402

FOLDER = ROOT / "solutions/triton_kda"
BF16 = torch.bfloat16
Arguments = dict[str, Any]


@pytest.mark.parametrize(
    ("size", "dtype", "lengths"),
    [
        (40, "bfloat16", ("0", "66", "0", "5")),
        pytest.param(80, "float16", ("130",), marks=pytest.mark.thorough),
        pytest.param(200, "bfloat16", ("66", "1"), marks=pytest.mark.thorough),
        # One sequence of five chunks, in segments.
        pytest.param(128, "bfloat16", ("300",), marks=pytest.mark.thorough),
    ],
)
def test_sizes_and_rows_that_no_workload_has(size: int, dtype: str, lengths: tuple[str, ...], tmp_path: Path) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    script = Path(__file__).with_name("interpreted_kda_backward.py")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = forked_command.run([str(tmp_path), str(size), dtype, *lengths], environment, script=script)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert max(found["errors"].values()) < 8e-3, found["errors"]


# --- what the host refuses ----------------------------------------------------------------------------------------


def arguments(D: int = 16, T: int = 140, N: int = 2, heads: tuple[int, int] = (1, 2), device: str = "cpu") -> Arguments:
    HQ, H = heads
    rows = lambda count: torch.zeros(T, count, D, dtype=BF16, device=device)  # noqa: E731
    f32 = lambda *shape: torch.zeros(*shape, device=device)  # noqa: E731
    return {
        "q": rows(HQ), "k": rows(HQ), "v": rows(H), "g": f32(T, H, D), "beta": f32(T, H),
        "cu_seqlens": torch.zeros(N + 1, dtype=torch.int64, device=device), "initial_state": f32(N, H, D, D),
        "scale": None, "do": rows(H), "dht": f32(N, H, D, D), "dq": rows(HQ), "dk": rows(HQ), "dv": rows(H),
        "dg": f32(T, H, D), "dbeta": f32(T, H), "dh0": f32(N, H, D, D),
    }  # fmt: skip


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    entry = load_function(FOLDER, "backward.py::backward_k_last", tmp_path_factory.mktemp("build"))
    return sys.modules[entry.__module__]


def strided(x: Any) -> Any:
    return x.repeat_interleave(2, dim=0)[::2]


TENSORS = [name for name in arguments() if name != "scale"]
BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    *((name, lambda x: x.double(), "float64") for name in TENSORS),
    *((name, strided, f"{name} must be contiguous") for name in TENSORS),
    *((name, lambda x: x[:-1], "has shape") for name in TENSORS if name not in ("cu_seqlens", "dh0")),
    ("dg", lambda x: x.to(BF16), "dg is torch.bfloat16"),
    ("dg", lambda x: x[..., 0].contiguous(), "dg has shape"),
    ("do", lambda x: x.half(), "do is torch.float16"),
    ("cu_seqlens", lambda x: x[:1], "for a sequence at least"),
    ("v", lambda x: x[:, :0], "do not divide 0 value heads"),
    ("beta", lambda x: x.to("meta"), "beta is on meta"),
]


@pytest.mark.parametrize(("name", "change", "says"), BAD)
def test_bad_input_is_refused(kernel: ModuleType, name: str, change: Callable[[Any], Any], says: str) -> None:
    bad = arguments()
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        kernel.backward_k_last(**bad)


def test_a_head_size_past_256_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="head_size 272"):
        kernel.backward_k_last(**arguments(D=272))


@pytest.mark.parametrize("bounds", [[1, 70, 140], [0, 141, 140], [0, 70, 141]])
def test_bounds_that_lie_are_refused_when_asked_to_look(
    kernel: ModuleType, bounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernel.check_backward.__globals__, "DEBUG", True)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 and end within total_seq_len 140"):
        kernel.backward_k_last(**arguments() | {"cu_seqlens": torch.tensor(bounds)})


# --- what is compiled for sm_90 -----------------------------------------------------------------------------------

KERNELS = ["decays", "scores", "inverse", "states", "walk_back", "within", "between", "queries", "keys"]
IN_SEGMENTS = [*KERNELS[:3], "states", "back_scan", "states", "walk_back", "back_scan", "walk_back", *KERNELS[5:]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("shape", "spilled"),
    [
        pytest.param({"heads": (32, 32), "N": 8}, 48, id="kimi linear"),
        pytest.param({"heads": (8, 8), "N": 1, "T": 32768}, 80, id="segments"),
        pytest.param({"heads": (32, 32), "N": 50}, 440, id="short"),
        pytest.param({"D": 64, "heads": (8, 8)}, 80, id="d64"),
        pytest.param({"D": 256, "heads": (8, 8)}, 260, id="d256"),
    ],
)
def test_kernels_fit_into_a_multiprocessor(shape: Arguments, spilled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What spills is in the log. It may not grow unseen."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # must not reach the process that compiles
    call = arguments(**{"D": 128, "T": 1000, "device": "meta"} | shape)
    (kernels,) = triton_resources(FOLDER, [("backward.py::backward_k_last", call)])
    for x in kernels:
        print(
            f"{x.name:18} {x.registers} registers, {x.spill_stores} + {x.spill_loads} bytes spilled, {x.shared_bytes}"
        )
    names = IN_SEGMENTS if call["q"].shape[0] > 8000 else KERNELS
    assert [x.name for x in kernels] == [f"{name}_kernel" for name in names]
    assert all(x.shared_bytes <= 227 * 1024 for x in kernels)
    assert all(max(x.spill_stores, x.spill_loads) <= spilled for x in kernels)
    assert not any(x.refilled for x in kernels)  # once within_kernel's: dk and dg were wrong, and other ones each time

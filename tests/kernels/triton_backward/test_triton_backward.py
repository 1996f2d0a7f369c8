"""triton_backward beyond the workloads: the types that no definition has, rows behind the last sequence, and what the
host refuses. The compiled kernels fit into a multiprocessor, and take no operand of a wgmma from registers."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import forked_command
import pytest
from backward_arguments import MAKERS, arguments, kept_arguments, raw_arguments
from conftest import ROOT
from gdnspec.build.loader import load_function

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gdnspec.build.resources import triton_resources  # noqa: E402

FOLDER = ROOT / "solutions/triton_backward"
HERE = Path(__file__).parent
KERNELS = ["prepare", "forward", "backward", "within", "gradients", "gates", "shared", "steep"]
BESIDE = ["prepare", "backward", "forward", "forward", "within", "gradients", *KERNELS[5:]]
IN_SEGMENTS = ["prepare", *["backward"] * 2, "forward", *["scan"] * 2, "forward", "backward", *KERNELS[3:]]
BF16 = torch.bfloat16
Arguments = dict[str, Any]


def program(name: str, *arguments: str, **environment: str) -> Any:
    """The last line that a file here prints, which is JSON."""
    kept = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = forked_command.run([*arguments], kept | {"PYTHONPATH": path} | environment, script=HERE / name)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LIMITS = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 1e-2}


@pytest.mark.parametrize(
    ("entry", "dtype"),
    [
        ("backward_k_last", "float32"),
        pytest.param("backward_k_last", "float16", marks=pytest.mark.thorough),
        pytest.param("backward_k_last", "bfloat16", marks=pytest.mark.thorough),
        pytest.param("backward_k_first", "float32", marks=pytest.mark.thorough),
        pytest.param("backward_k_first", "bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_all_types_and_rows_that_belong_to_no_sequence(entry: str, dtype: str, tmp_path: Path) -> None:
    lengths = ("0", "66", "0", "5")
    found = program("interpreted_backward.py", entry, dtype, str(tmp_path), "0", *lengths, TRITON_INTERPRET="1")
    assert found["not zero behind"] == []
    assert found["empty sequences hand dht on"]
    assert max(found["errors"].values()) < LIMITS[dtype], found["errors"]  # NaN is not less
    assert dtype != "float32" or found["way"] == [4, 1, False, False]  # so small heads take more than twice the inputs


@pytest.mark.thorough
def test_segments_are_walked_side_by_side_where_pairs_are_few(tmp_path: Path) -> None:
    options = ("backward_k_last", "float32", str(tmp_path), "0", "200")
    found = program("interpreted_backward.py", *options, TRITON_INTERPRET="1")
    assert found["not zero behind"] == []
    assert max(found["errors"].values()) < LIMITS["float32"], found["errors"]
    assert found["way"] == [2, 1, False, True]


def test_what_grows_as_much_as_it_decays_is_not_left_out(tmp_path: Path) -> None:
    """Gates alone would say that a segment leaves nothing of a gradient; its key brings most of that back."""
    options = ("backward_k_last", "float32", str(tmp_path), "0", "256")
    found = program("interpreted_backward.py", *options, TRITON_INTERPRET="1", GDNSPEC_TEST_GROWTH="1")
    assert found["way"] == [2, 1, False, True]
    assert found["errors"]["dh0"] < 1e-4, found["errors"]


@pytest.mark.parametrize(
    ("kept", "lengths"),
    [
        pytest.param(16, ("0", "66", "0", "5"), marks=pytest.mark.thorough),
        pytest.param(9, ("0", "1100", "300"), marks=pytest.mark.thorough),
        pytest.param(12, ("1100", "0", "300"), marks=pytest.mark.thorough),
    ],
)
def test_both_walks_side_by_side(kept: int, lengths: tuple[str, ...], tmp_path: Path) -> None:
    """With places for the gradients of states of all 16 parts, and of fewer, which are then taken twice."""
    options = ("backward_k_last", "float32", str(tmp_path), str(kept))
    found = program("interpreted_backward.py", *options, *lengths, TRITON_INTERPRET="1")
    assert found["way"] == [16, kept, True, False]
    assert found["not zero behind"] == []
    assert found["empty sequences hand dht on"]
    assert max(found["errors"].values()) < LIMITS["float32"], found["errors"]


def test_a_write_gate_of_zero_has_a_gradient_and_its_value_none(tmp_path: Path) -> None:
    """Where both walks are side by side, dbeta is found by a division by beta, and dv has another factor at first."""
    options = ("backward_k_last", "float32", str(tmp_path), "16", "200", "70")
    found = program("interpreted_backward.py", *options, TRITON_INTERPRET="1", GDNSPEC_TEST_ZERO_BETA="1")
    assert max(found["errors"].values()) < LIMITS["float32"], found["errors"]
    assert found["way"] == [16, 16, True, False]
    assert found["dv of beta = 0"] == 0
    assert found["dk of the last sequence"] == 0, "nothing is written, and gradients know it"


def test_decays_below_the_normal_numbers_are_not_flushed(tmp_path: Path) -> None:
    assert program("flushed_backward.py", str(tmp_path), TRITON_INTERPRET="1") < 1e-5


# --- what the host refuses ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    entry = load_function(FOLDER, "kernel.py::backward_k_last", tmp_path_factory.mktemp("build"))
    return sys.modules[entry.__module__]


def strided(x: Any) -> Any:
    return x.repeat_interleave(2, dim=0)[::2]


TENSORS = [name for name in arguments() if name != "scale"]
BAD: list[tuple[str, Callable[[Any], Any], str]] = [
    *((name, lambda x: x.double(), "float64") for name in TENSORS),
    *((name, strided, f"{name} must be contiguous") for name in TENSORS),
    *((name, lambda x: x[:-1], "has shape") for name in TENSORS if name not in ("cu_seqlens", "dh0")),
    *((name, lambda x: x[:, :1].contiguous(), f"{name} has shape") for name in ("g", "do", "dht", "dh0", "dbeta")),
    ("do", lambda x: x.float(), "do is torch.float32"),
    ("dht", lambda x: x.to(BF16), "dht is torch.bfloat16"),
    ("dg", lambda x: x.to(BF16), "dg is torch.bfloat16"),
    ("cu_seqlens", lambda x: x[:1], "for a sequence at least"),
    ("k", lambda x: x.repeat(1, 3, 1), "neither GQA nor GVA"),
    ("beta", lambda x: x.to("meta"), "beta is on meta"),
]


@pytest.mark.parametrize(("name", "change", "says"), BAD)
def test_bad_input_is_refused(kernel: ModuleType, name: str, change: Callable[[Any], Any], says: str) -> None:
    bad = arguments()
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        kernel.backward_k_last(**bad)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("a", lambda x: x[:, :1].contiguous(), "a has shape"),
        ("da", strided, "da must be contiguous"),
        ("A_log", lambda x: x.to(BF16), "A_log is torch.bfloat16"),
        ("dA_log", lambda x: x[:1], "dA_log has shape"),
        ("ddt_bias", lambda x: x.to(BF16), "ddt_bias is torch.bfloat16"),
        ("dq", lambda x: x.float(), "dq is torch.float32"),
    ],
)
def test_bad_raw_gates_are_refused(kernel: ModuleType, name: str, change: Callable[[Any], Any], says: str) -> None:
    bad = raw_arguments()
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        kernel.backward_raw_gates(**bad)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("checkpoints", lambda x: x[:, :1].contiguous(), "checkpoints has shape"),
        ("checkpoints", lambda x: x.to(BF16), "checkpoints is torch.bfloat16"),
        ("checkpoint_cu_starts", lambda x: x[:-1], "checkpoint_cu_starts has shape"),
        ("checkpoint_interval", lambda x: 100, "positive multiple of 64; it is 100"),
    ],
)
def test_bad_checkpoints_are_refused(kernel: ModuleType, name: str, change: Callable[[Any], Any], says: str) -> None:
    bad = kept_arguments(64)
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        kernel.backward_checkpoints(**bad)


def test_loads_are_less_far_ahead_where_shared_memory_is_short(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kib, stages in ((227, 4), (163, 2), (99, 1)):
        room = SimpleNamespace(shared_memory_per_block_optin=kib * 1024)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device, room=room: room)
        assert kernel.ahead(4, torch.device("cuda")) == stages
    assert kernel.ahead(4, torch.device("cpu")) == 4


def test_a_head_size_past_256_is_refused(kernel: ModuleType) -> None:
    with pytest.raises(ValueError, match="head_size 272"):
        kernel.backward_k_last(**arguments(D=272))


@pytest.mark.parametrize("bounds", [[1, 70, 140], [0, 141, 140], [0, -1, 140], [0, 70, 141]])
def test_bounds_that_lie_are_refused_when_asked_to_look(
    kernel: ModuleType, bounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernel.check.__globals__, "DEBUG", True)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 and end within total_seq_len 140"):
        kernel.backward_k_last(**arguments() | {"cu_seqlens": torch.tensor(bounds)})


def test_checkpoints_that_lie_elsewhere_are_refused_when_asked_to_look(
    kernel: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernel.check.__globals__, "DEBUG", True)
    bounds = torch.tensor([0, 70, 140])
    with pytest.raises(ValueError, match=r"must count \[1, 1\] checkpoints up to all 2; it is \[0, 0, 2\]"):
        kernel.backward_checkpoints(
            **kept_arguments(64) | {"cu_seqlens": bounds, "checkpoint_cu_starts": torch.tensor([0, 0, 2])}
        )


# --- what is compiled for sm_90 -----------------------------------------------------------------------------------

PREPARE_SPILLS = 224  # one warp has all of a chunk: faster than four, which spill nothing (LOG.md)
COMPILED = [
    pytest.param("backward_k_last", {"D": 128}, 24, id="k_last"),
    pytest.param("backward_k_last", {"D": 128, "T": 8192, "N": 1}, 40, id="side by side"),
    pytest.param("backward_k_first", {"D": 128}, 28, id="k_first"),
    pytest.param("backward_raw_gates", {"D": 128}, 20, id="raw_gates"),
    pytest.param("backward_checkpoints", {"D": 128}, 24, id="checkpoints"),
    pytest.param("backward_k_last", {"D": 128, "given": False}, 40, id="no states"),
    pytest.param("backward_k_last", {"D": 128, "heads": (16, 8, 8)}, 100, id="gqa"),
    pytest.param("backward_raw_gates", {"D": 64, "heads": (4, 2, 2)}, 210, id="gqa, raw gates"),
    pytest.param("backward_k_last", {"D": 128, "heads": (2, 2, 8), "T": 32768, "N": 1}, 80, id="segments"),
    pytest.param("backward_k_last", {"D": 64}, 16, id="d64"),
    pytest.param("backward_k_last", {"D": 256}, 300, id="d256"),
    pytest.param("backward_k_last", {"D": 128, "dtype": torch.float32}, 760, id="float32"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("entry", "shape", "spilled"), COMPILED)
def test_kernels_fit_into_a_multiprocessor(
    entry: str, shape: Arguments, spilled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What spills is in the README. It may not grow unseen."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # must not reach the process that compiles
    make = MAKERS.get(entry, arguments)
    call = make(**{"heads": (16, 16, 32), "T": 1000} | shape, device="meta")
    (kernels,) = triton_resources(FOLDER, [(f"kernel.py::{entry}", call)])
    for x in kernels:
        print(
            f"{x.name:16} {x.registers} registers, {x.spill_stores} + {x.spill_loads} bytes spilled, {x.shared_bytes}"
        )
    names = IN_SEGMENTS if call["q"].shape[0] > 10000 else BESIDE if call["q"].shape[0] > 8000 else KERNELS
    if call["dht"] is None:  # a second round has one: what the first has left in dh0
        names = [*KERNELS[:5], "backward", *KERNELS[5:]]
    left_out = {"shared"} if call["v"].shape[1] == call["do"].shape[1] else set()
    left_out |= set() if entry in ("backward_k_last", "backward_checkpoints") else {"steep"}
    assert [x.name for x in kernels] == [f"{name}_kernel" for name in names if name not in left_out]
    assert all(x.shared_bytes <= 227 * 1024 for x in kernels)
    for x in kernels:
        limit = max(spilled, PREPARE_SPILLS if x.name == "prepare_kernel" else 0)
        assert max(x.spill_stores, x.spill_loads) <= limit, x.name
    assert not any(x.refilled for x in kernels)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("entry", "shape"),
    [
        ("backward_k_last", [128, 16, 16, 32]),
        ("backward_k_last", [128, 16, 8, 8]),
        ("backward_k_last", [64, 16, 16, 32]),
        ("backward_k_last", [256, 16, 16, 32]),
        ("backward_k_first", [128, 16, 16, 32]),
        ("backward_raw_gates", [128, 16, 16, 32]),
        ("backward_checkpoints", [128, 16, 16, 32]),
    ],
)
def test_no_wgmma_takes_an_operand_from_registers(entry: str, shape: list[int], tmp_path: Path) -> None:
    """Triton up to 3.7.0 makes wrong code of those on Hopper (README)."""
    found = program("compiled_backward.py", str(tmp_path), entry, *map(str, shape))
    for name, counts in found.items():
        # wgmma is an instruction of four warps
        assert counts["from shared memory"] > 0 or counts["warps"] < 4 or name == "shared_kernel", name
        assert counts["from registers"] == 0, name

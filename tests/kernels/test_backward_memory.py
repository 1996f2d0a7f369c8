"""What backward solutions in Triton allocate beside inputs and outputs: counted from their own code, without a GPU, for
the rows of the performance suite and of benchmarks/backward_rows.py, and as their pages say."""

import re
import sys
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import ROOT
from gdnspec.build.loader import load_function
from gdnspec.catalog.definitions import definition as found_definition
from gdnspec.catalog.workloads import workloads

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "triton_backward"), str(ROOT / "benchmarks")]

from backward_arguments import arguments  # noqa: E402
from prefill_shapes import RAGGED, rows  # noqa: E402

BACKWARD = "gdn_prefill_backward_k_last"


class Shape(NamedTuple):
    """Head size 128, bfloat16, states given."""

    heads: tuple[int, int]  # of queries and keys, of values
    tokens: int
    sequences: int

    @property
    def inputs(self) -> int:
        """Bytes."""
        (hk, h), tokens = self.heads, self.tokens
        return tokens * (256 * (2 * hk + 2 * h) + 8 * h) + 8 * (self.sequences + 1) + 2 * self.sequences * h * 65536


SHAPES = sorted(
    {Shape(row.heads, sum(row.lengths), len(row.lengths)) for row in rows() if row.head_size == 128}
    | {
        Shape((hk, h), line.axes["total_seq_len"], line.axes["num_seqs"])
        for line in workloads(found_definition(BACKWARD)) if line.suite == "performance"
        for hk, h in [((16, 32) if "16x32" in line.name else (16, 64) if "16x64" in line.name else (4, 16))]
    }
)  # fmt: skip


def shape_of(text: str) -> Shape:
    """Of "16/32, 4x2048"."""
    heads, lengths = text.split(", ")
    hk, h = map(int, heads.split("/"))
    if lengths == "ragged16":
        return Shape((hk, h), sum(RAGGED), len(RAGGED))
    count, tokens = map(int, lengths.split("x"))
    return Shape((hk, h), count * tokens, count)


def stated(solution: str) -> dict[Shape, float]:
    """The table of the solution's page: bytes beside inputs and outputs over bytes of inputs."""
    text = (ROOT / f"solutions/{solution}/README.md").read_text()
    row = r"^\| (\d+/\d+, (?:\d+x\d+|ragged16))(?: \(cut\))? \| [\d,]+ MB \| [\d,]+ MB \| ([\d.]+) \|$"
    found = re.findall(row, text, re.M)
    return {shape_of(text): float(ratio) for text, ratio in found}


class Allocated(TorchDispatchMode):
    """The bytes that are allocated inside, at the most at a time."""

    def __init__(self, given: Any) -> None:
        super().__init__()
        self.seen: weakref.WeakSet[Any] = weakref.WeakSet(x.untyped_storage() for x in given)
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for x in tree_leaves(found):
            if isinstance(x, torch.Tensor) and (storage := x.untyped_storage()) not in self.seen:
                self.seen.add(storage)
                self._count(storage.nbytes())
                weakref.finalize(storage, self._count, -storage.nbytes())
        return found

    def _count(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)


class Launched:
    """A kernel that is not launched."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **options: None


def allocated_by(call: Any, given: dict[str, Any]) -> int:
    """Bytes that a call in Triton allocates at the most, for tensors without memory, as if a GPU had them."""
    places = [call.__globals__, *(x.__globals__ for x in call.__globals__.values() if hasattr(x, "__globals__"))]
    with pytest.MonkeyPatch.context() as patch:
        for own in places:
            for name in [name for name in own if name.endswith("_kernel")]:
                patch.setitem(own, name, Launched())
            if "INTERPRETED" in own:
                patch.setitem(own, "INTERPRETED", False)
        with Allocated([x for x in given.values() if isinstance(x, torch.Tensor)]) as allocated:
            call(**given)
    return allocated.most


@pytest.fixture(scope="module")
def of_triton(tmp_path_factory: pytest.TempPathFactory) -> dict[Shape, float]:
    pytest.importorskip("triton")
    folder = ROOT / "solutions/triton_backward"
    call = load_function(folder, "kernel.py::backward_k_last", build_dir=tmp_path_factory.mktemp("build"))
    found = {}
    for x in SHAPES:
        given = arguments(128, x.tokens, x.sequences, (x.heads[0], *x.heads), device="meta")
        found[x] = allocated_by(call, given) / x.inputs
    return found


def test_triton_backward_takes_at_most_twice_its_inputs(of_triton: dict[Shape, float]) -> None:
    assert max(of_triton.values()) <= 2.0, max(of_triton, key=lambda x: of_triton[x])


def test_its_page_has_what_the_code_allocates(of_triton: dict[Shape, float]) -> None:
    page = stated("triton_backward")
    assert len(page) >= 8
    for shape, ratio in page.items():
        assert of_triton[shape] == pytest.approx(ratio, abs=0.006), shape


@pytest.mark.parametrize(
    ("definition", "entry", "most"),
    [
        ("gdn_conv1d_backward", "conv1d.py::conv1d_backward", 0.08),
        ("gdn_conv_gates_backward", "conv_gates.py::conv_gates_backward", 0.08),
        ("gdn_gated_rms_norm_backward", "gated_norm.py::gated_rms_norm_backward", 0.05),
    ],
)
def test_what_is_around_the_rule_takes_a_fraction(definition: str, entry: str, most: float, tmp_path: Path) -> None:
    """The convolution of 8,192 channels, four taps, states given, alone and before 16 and 32 heads; and the norm of 32
    heads of 128."""
    pytest.importorskip("triton")
    call = load_function(ROOT / "solutions/triton_layer_backward", entry, build_dir=tmp_path)
    rows = lambda *shape: torch.empty(*shape, dtype=torch.bfloat16, device="meta")  # noqa: E731
    f32 = lambda *shape: torch.empty(*shape, device="meta")  # noqa: E731
    for line in (line for line in workloads(found_definition(definition)) if line.suite == "performance"):
        if "batch_size" in line.axes:
            x = (line.axes["batch_size"], 32, 128)
            given = {"x": rows(*x), "z": rows(*x), "weight": f32(128), "eps": None, "do": rows(*x)}
            out = {"dx": rows(*x), "dz": rows(*x), "dweight": f32(128)}
        else:
            T, N, C = line.axes["total_seq_len"], line.axes["num_seqs"], 8192
            given = {
                "x": rows(T, C), "weight": rows(C, 4), "bias": rows(C), "do": rows(T, C), "dht": f32(N, C, 3),
                "cu_seqlens": torch.empty(N + 1, dtype=torch.int64, device="meta"), "initial_state": rows(N, C, 3),
            }  # fmt: skip
            out = {"dx": rows(T, C), "dweight": f32(C, 4), "dbias": f32(C), "dh0": f32(N, C, 3)}
            if definition == "gdn_conv_gates_backward":
                del given["do"]
                for inside, outside in (("weight", "conv_weight"), ("bias", "conv_bias")):
                    given[outside], out[f"d{outside}"] = given.pop(inside), out.pop(f"d{inside}")
                given |= {"a": rows(T, 32), "b": rows(T, 32), "A_log": f32(32), "dt_bias": rows(32), "dg": f32(T, 32)}
                given |= {"dbeta": f32(T, 32), "dq": rows(T, 16, 128), "dk": rows(T, 16, 128), "dv": rows(T, 32, 128)}
                out |= {"da": rows(T, 32), "db": rows(T, 32), "dA_log": f32(32), "ddt_bias": f32(32)}
        inputs = sum(x.numel() * x.element_size() for x in given.values() if x is not None)
        assert allocated_by(call, given | out) <= most * inputs, line.name

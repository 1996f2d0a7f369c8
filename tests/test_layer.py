"""The layer around the rule: its reference by hand and against another package, and what kernels refuse."""

from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.build.loader import load_function
from helpers_unit import reference

layer = reference("layer")
F64, BF16 = torch.float64, torch.bfloat16
Keywords = dict[str, Any]

# --- the norm ---------------------------------------------------------------------------------------------------


def test_a_norm_worked_out_by_hand() -> None:
    x, z = torch.tensor([[3.0, -4.0]], dtype=F64), torch.tensor([[0.0, 2.0]], dtype=F64)
    # Mean of squares 12.5, and eps 3.5 makes it 16: x / 4 = [0.75, -1]; silu(0) = 0; weight 5.
    got = layer.gated_rms_norm(x, z, torch.tensor([1.0, 5.0], dtype=F64), 3.5)
    silu = 2 / (1 + torch.exp(torch.tensor(-2.0, dtype=F64)))
    torch.testing.assert_close(got, torch.tensor([[0.0, -5.0]], dtype=F64) * silu, rtol=1e-15, atol=0)


def test_an_absent_eps_is_1e_6_and_0_is_0() -> None:
    x = torch.full((1, 4), 1e-3, dtype=F64)
    one, gate = torch.ones(4, dtype=F64), torch.full((1, 4), 50.0, dtype=F64)
    assert float(layer.gated_rms_norm(x, gate, one, None)[0, 0]) == pytest.approx(50 * 0.5**0.5)
    assert float(layer.gated_rms_norm(x, gate, one, 0.0)[0, 0]) == pytest.approx(50)


def test_the_transformers_package_norms_alike() -> None:
    package = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    norm = package.Qwen3NextRMSNormGated(24, eps=1e-6)
    generator = torch.Generator().manual_seed(1)
    norm.weight.data = torch.randn(24, generator=generator)
    x, z = torch.randn(2, 9, 3, 24, generator=generator).unbind()
    x[0] *= 1e-4
    torch.testing.assert_close(layer.gated_rms_norm(x, z, norm.weight.data, None), norm(x, z), rtol=2e-6, atol=1e-7)


@pytest.fixture(scope="module")
def norm_kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    build = tmp_path_factory.mktemp("build")
    return load_function(ROOT / "solutions/triton_layer", "gated_norm.py::gated_rms_norm", build)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": torch.ones(3, 16, dtype=BF16)}, "x has 2 dimensions, not 3"),
        ({"x": torch.ones(3, 2, 16, dtype=torch.int32)}, "x is torch.int32"),
        ({"z": torch.ones(3, 2, 16)}, "z is torch.float32"),
        ({"z": torch.ones(3, 1, 16, dtype=BF16)}, "z has shape"),
        ({"z": torch.ones(3, 16, 2, dtype=BF16).mT}, "z must be contiguous"),
        ({"weight": torch.ones(2, 16, dtype=BF16)}, "weight has shape"),
        ({"output": torch.ones(2, 2, 16, dtype=BF16)}, "output has shape"),
    ],
)
def test_what_the_norm_cannot_serve_it_refuses(norm_kernel: Any, changes: Keywords, says: str) -> None:
    rows = {name: torch.ones(3, 2, 16, dtype=BF16) for name in ("x", "z", "output")}
    with pytest.raises(ValueError, match=says):
        norm_kernel(**rows | {"weight": torch.ones(16, dtype=BF16), "eps": None} | changes)


# --- straight from the convolution --------------------------------------------------------------------------------

T, N, HK, H, K, V, SLOTS = 70, 2, 1, 2, 16, 32, 4


@pytest.fixture(scope="module")
def from_conv(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("triton")
    build = tmp_path_factory.mktemp("build")
    return load_function(ROOT / "solutions/triton_layer", "from_conv.py::prefill_from_conv", build)


def from_conv_arguments() -> Keywords:
    return {
        "qkv": torch.ones(T, 2 * HK * K + H * V, dtype=BF16), "decay": torch.ones(T, H), "beta": torch.ones(T, H),
        "recurrent_state": torch.zeros(SLOTS, H, K, V), "slots": torch.tensor([3, 0], dtype=torch.int32),
        "row_offsets": torch.tensor([0, 5, T], dtype=torch.int32), "output": torch.zeros(T, H * V),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"qkv": torch.ones(T, 2 * HK * K + H * V + 8, dtype=BF16)}, "rows of 104 channels are not q, k and v of 2"),
        ({"qkv": torch.ones(T, H * V, dtype=BF16)}, "rows of 64 channels are not q, k and v"),
        ({"qkv": torch.ones(T, 6 * K + H * V, dtype=BF16)}, "are not q, k and v of 2 value heads of 32"),
        ({"qkv": torch.ones(T, 96, dtype=torch.int32)}, "qkv is torch.int32"),
        ({"decay": torch.ones(T, H, dtype=BF16)}, "decay is torch.bfloat16"),
        ({"beta": torch.ones(T - 1, H)}, "beta has shape"),
        ({"recurrent_state": torch.zeros(SLOTS, H, V, K).mT}, "must be contiguous but for its first dimension"),
        (
            {"recurrent_state": torch.zeros(1, H, K, V).expand(SLOTS, -1, -1, -1)},
            "must be contiguous but for its first",
        ),
        ({"recurrent_state": torch.zeros(SLOTS, H, 272, V)}, "heads of 272 and 32 elements are not served"),
        ({"slots": torch.tensor([3, 0])}, "slots is torch.int64"),
        ({"slots": torch.tensor([3], dtype=torch.int32)}, "slots has shape"),
        ({"row_offsets": torch.tensor([0, 5, T])}, "row_offsets is torch.int64"),
        ({"row_offsets": torch.tensor([0], dtype=torch.int32)}, "row_offsets has one entry more"),
        ({"output": torch.zeros(T, H * V, dtype=BF16)}, "output is torch.bfloat16"),
    ],
)
def test_what_it_cannot_serve_it_refuses(from_conv: Any, changes: Keywords, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_conv(**from_conv_arguments() | changes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"slots": torch.tensor([SLOTS, 0], dtype=torch.int32)}, "slot 4 is none of the pool's 4"),
        ({"slots": torch.tensor([2, 2], dtype=torch.int32)}, "slot 2 is named twice"),
        ({"row_offsets": torch.tensor([0, 71, T], dtype=torch.int32)}, "row_offsets must rise from 0 to 70"),
    ],
)
def test_values_that_lie_are_refused_when_asked_to_look(
    from_conv: Any, changes: Keywords, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(from_conv.__globals__, "DEBUG", True)
    with pytest.raises(ValueError, match=says):
        from_conv(**from_conv_arguments() | changes)

"""torch_backward and the plain solutions of Kimi Delta Attention called directly: what they refuse, and rows behind the
last sequence, whose gradients are zero."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from gdnspec.build.loader import load_function

torch = pytest.importorskip("torch")

T, N, H, D, C, W = 75, 2, 2, 8, 6, 4
Arguments = dict[str, Any]


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Callable[..., Any]]:
    folder: Path = ROOT / "solutions/torch_backward"
    build = tmp_path_factory.mktemp("build")
    return lambda name: load_function(folder, name, build)


def rule() -> Arguments:
    torch.manual_seed(0)
    k = torch.nn.functional.normalize(torch.randn(T, 1, D), dim=-1).bfloat16()
    return {
        "q": torch.randn(T, 1, D).bfloat16(), "k": k, "v": torch.randn(T, H, D).bfloat16(), "g": torch.rand(T, H),
        "beta": torch.rand(T, H), "cu_seqlens": torch.tensor([0, 5, 70]), "initial_state": torch.randn(N, H, D, D),
        "scale": None, "do": torch.randn(T, H, D).bfloat16(), "dht": torch.randn(N, H, D, D),
    }  # fmt: skip


def kept() -> Arguments:
    starts = {"checkpoint_cu_starts": torch.tensor([0, 0, 1]), "checkpoint_interval": 64}
    return rule() | {"checkpoints": torch.randn(1, H, D, D)} | starts


def raw() -> Arguments:
    torch.manual_seed(0)
    gates = {"a": torch.randn(T, H), "b": torch.randn(T, H), "A_log": torch.randn(H), "dt_bias": torch.randn(H)}
    return {name: x for name, x in rule().items() if name not in ("g", "beta")} | gates | {"use_qk_l2norm": True}


def convolution() -> Arguments:
    torch.manual_seed(0)
    return {
        "x": torch.randn(T, C).bfloat16(), "weight": torch.randn(C, W).bfloat16(), "bias": torch.randn(C).bfloat16(),
        "cu_seqlens": torch.tensor([0, 5, 70]), "initial_state": torch.randn(N, C, W - 1).bfloat16(),
        "do": torch.randn(T, C).bfloat16(), "dht": torch.randn(N, C, W - 1),
    }  # fmt: skip


def conv_gates() -> Arguments:
    """One key head, two value heads of 8."""
    torch.manual_seed(0)
    given = {
        "x": torch.randn(T, 32).bfloat16(), "conv_weight": torch.randn(32, W).bfloat16(),
        "conv_bias": torch.randn(32).bfloat16(), "a": torch.randn(T, H).bfloat16(), "b": torch.randn(T, H).bfloat16(),
        "A_log": torch.randn(H), "dt_bias": torch.randn(H).bfloat16(), "cu_seqlens": torch.tensor([0, 5, 70]),
        "initial_state": torch.randn(N, 32, W - 1).bfloat16(),
    }  # fmt: skip
    given |= {name: torch.randn(T, heads, D).bfloat16() for name, heads in (("dq", 1), ("dk", 1), ("dv", H))}
    return given | {"dg": torch.randn(T, H), "dbeta": torch.randn(T, H), "dht": torch.randn(N, 32, W - 1)}


def layer() -> Arguments:
    """One key head, two value heads of 8."""
    torch.manual_seed(0)
    x, do = torch.randn(T, C), torch.randn(T, C)
    sizes = {"qkv_weight": 32, "z_weight": 16, "a_weight": H, "b_weight": H}
    weights = {name: torch.randn(rows, C) for name, rows in sizes.items()}
    more = {"A_log": torch.randn(H), "dt_bias": torch.randn(H), "norm_weight": torch.randn(D)}
    return {
        "x": x, **weights, "conv_weight": torch.randn(32, W), **more, "out_weight": torch.randn(C, 16),
        "cu_seqlens": torch.tensor([0, 5, 70]), "conv_state": torch.randn(N, 32, W - 1),
        "initial_state": torch.randn(N, H, D, D), "do": do, "dconv_ht": torch.randn(N, 32, W - 1),
        "dht": torch.randn(N, H, D, D),
    }  # fmt: skip


def norm() -> Arguments:
    torch.manual_seed(0)
    x, z, do = (torch.randn(T, H, D).bfloat16() for _ in range(3))
    return {"x": x, "z": z, "weight": torch.randn(D).bfloat16(), "eps": None, "do": do}


MADE: dict[str, Callable[[], Arguments]] = {
    "kernel.py::backward_k_last": rule, "kernel.py::backward_k_first": rule, "kernel.py::backward_checkpoints": kept,
    "around.py::raw_gates": raw, "around.py::convolution": convolution, "around.py::gated_norm": norm,
}  # fmt: skip
CONV_GATES = "conv_gates.py::conv_gates"

# PyTorch would broadcast the first of each, or read a part of it.
OF_ALL: list[tuple[str, Callable[[Any], Any], str]] = [
    ("do", lambda x: x[:, :1], "do has shape"),
    ("do", lambda x: torch.cat([x, x]), "do has shape"),
    ("do", lambda x: x.long(), "do is torch.int64"),
]
OF_SEQUENCES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("dht", lambda x: x[:1], "dht has shape"),
    ("dht", lambda x: x[:, :1], "dht has shape"),
    ("initial_state", lambda x: x[:1], "initial_state has shape"),
    *(
        ("cu_seqlens", lambda _, bounds=bounds: torch.tensor(bounds), "cu_seqlens must rise from 0 and end within")
        for bounds in ([0, 5, T + 1], [0, 9, 5], [1, 5, 70], [-5, 5, 70])
    ),
    ("cu_seqlens", lambda x: x.float(), "cu_seqlens is torch.float32"),
    ("cu_seqlens", lambda x: x[None], "cu_seqlens is torch.int64 of shape"),
]
OF_RULE: list[tuple[str, Callable[[Any], Any], str]] = [
    ("q", lambda x: x[0], "q has 2 dimensions"),
    ("k", lambda x: x[:, :0], "neither GQA nor GVA"),
    ("v", lambda x: x[:5], "v has shape"),
]
BAD = [
    *((name, *bad) for name in MADE for bad in OF_ALL),
    *((name, *bad) for name in (*MADE, CONV_GATES) if "norm" not in name for bad in OF_SEQUENCES),
    *(
        (CONV_GATES, name, lambda x: x[..., :1], f"{name} has shape")
        for name in ("x", "conv_bias", "a", "b", "A_log", "dt_bias", "dk", "dg", "dbeta")
    ),
    (CONV_GATES, "dq", lambda x: x[0], "dq has 2 dimensions"),
    (CONV_GATES, "dq", lambda x: x[..., :4], "32 channels are not those of 1 query and key and 2 value heads of 4"),
    (CONV_GATES, "dv", lambda x: x[:5], "dv has shape"),
    (CONV_GATES, "dg", lambda x: x.long(), "dg is torch.int64"),
    *((name, *bad) for name, made in MADE.items() if "q" in made() for bad in OF_RULE),
    *(("kernel.py::backward_k_last", name, lambda x: x[:, :1], f"{name} has shape") for name in ("g", "beta")),
    *(
        ("around.py::raw_gates", name, lambda x: x[..., :1], f"{name} has shape")
        for name in ("a", "b", "A_log", "dt_bias")
    ),
    ("kernel.py::backward_checkpoints", "checkpoints", lambda x: x[:, :1], "checkpoints has shape"),
    ("kernel.py::backward_checkpoints", "checkpoints", lambda x: x[:0], r"must count \[0, 1\]"),
    ("kernel.py::backward_checkpoints", "checkpoint_interval", lambda _: 96, "a positive multiple of 64"),
    ("around.py::convolution", "bias", lambda x: x[:1], "bias has shape"),
    ("around.py::gated_norm", "z", lambda x: x[:1], "z has shape"),
    ("around.py::gated_norm", "weight", lambda x: x[:1], "weight has shape"),
]


@pytest.mark.parametrize(("name", "argument", "change", "says"), BAD)
def test_bad_input_is_refused(
    entry: Callable[[str], Callable[..., Any]], name: str, argument: str, change: Callable[[Any], Any], says: str
) -> None:
    given = (MADE | {CONV_GATES: conv_gates})[name]()
    with pytest.raises(ValueError, match=says):
        entry(name)(**given | {argument: change(given[argument])})


@pytest.mark.parametrize("name", [*(name for name in MADE if "norm" not in name), CONV_GATES, "layer.py::layer"])
def test_rows_behind_the_last_sequence_have_zero_gradients(
    entry: Callable[[str], Callable[..., Any]], name: str
) -> None:
    """Whatever stands in them, and no other gradient sees it."""
    given = (MADE | {CONV_GATES: conv_gates, "layer.py::layer": layer})[name]()
    rows = [key for key, x in given.items() if torch.is_tensor(x) and x.shape[:1] == (T,)]
    junk = given | {key: given[key].clone() for key in rows}
    for key in rows:
        junk[key][70:] = torch.nan
    found, of_junk = (entry(name)(**x) for x in (given, junk))
    for x, y in zip(found, of_junk, strict=True):
        assert torch.equal(x, y)
        assert x.isfinite().all()
        assert x.shape[0] != T or (x[:70].any() and not x[70:].any())


def test_an_absent_switch_of_the_norm_is_on(entry: Callable[[str], Callable[..., Any]]) -> None:
    of_raw = entry("around.py::raw_gates")
    absent, on, off = (of_raw(**raw() | {"use_qk_l2norm": x})[0] for x in (None, True, False))
    assert torch.equal(absent, on)
    assert not torch.equal(absent, off)


def test_its_modules_are_its_own(entry: Callable[[str], Callable[..., Any]]) -> None:
    """triton_layer_backward has a checks.py as well."""
    other = load_function(ROOT / "solutions/triton_layer_backward", "conv1d.py::conv1d_backward", Path("unused"))
    assert sys.modules[other.__module__] is not sys.modules[entry("around.py::convolution").__module__]
    with pytest.raises(ValueError, match="do has shape"):
        entry("around.py::convolution")(**convolution() | {"do": torch.zeros(1, C)})


KDA = ("torch_chunkwise_kda", "torch_recurrent_kda")


def kda() -> Arguments:
    """A decay for each key channel."""
    return rule() | {"g": -torch.rand(T, H, D)}


@pytest.mark.parametrize("bounds", [[0, 5, T + 1], [0, 9, 5], [1, 5, 70], [-5, 5, 70]])
@pytest.mark.parametrize("entry", ["prefill_backward_k_last", "prefill_k_last", "prefill_k_first"])
@pytest.mark.parametrize("solution", KDA)
def test_kimi_delta_attention_refuses_wrong_bounds(
    solution: str, entry: str, bounds: list[int], tmp_path: Path
) -> None:
    """They were other gradients and outputs, or an error of PyTorch's."""
    given = {name: x for name, x in kda().items() if "backward" in entry or name not in ("do", "dht")}
    function = load_function(ROOT / "solutions" / solution, f"kernel.py::{entry}", tmp_path)
    assert all(x.isfinite().all() for x in function(**given)[1:])
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 and end within"):
        function(**given | {"cu_seqlens": torch.tensor(bounds)})


@pytest.mark.parametrize("solution", KDA)
def test_kimi_delta_attention_reads_no_row_behind_the_last_sequence(solution: str, tmp_path: Path) -> None:
    given = kda()
    junk = {name: x.clone() if torch.is_tensor(x) else x for name, x in given.items()}
    for x in junk.values():
        if torch.is_tensor(x) and x.shape[:1] == (T,):
            x[70:] = torch.nan
    function = load_function(ROOT / "solutions" / solution, "kernel.py::prefill_backward_k_last", tmp_path)
    for x, y in zip(function(**given), function(**junk), strict=True):
        assert torch.equal(x, y)
        assert x.shape[0] != T or not x[70:].any()

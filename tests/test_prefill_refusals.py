"""What the chunkwise prefill cannot serve it refuses on the host, before anything is launched."""

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

D, T, N, HQ, H = 16, 5, 2, 1, 2
BF16 = torch.bfloat16
Arguments = dict[str, Any]


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    spec = importlib.util.spec_from_file_location("chunkwise_kernel", ROOT / "solutions/triton_chunkwise/kernel.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments() -> Arguments:
    return {
        "q": torch.zeros(T, HQ, D, dtype=BF16), "k": torch.zeros(T, HQ, D, dtype=BF16),
        "v": torch.zeros(T, H, D, dtype=BF16), "g": torch.ones(T, H), "beta": torch.ones(T, H),
        "cu_seqlens": torch.tensor([0, 2, 5]), "initial_state": torch.zeros(N, H, D, D), "scale": None,
        "output": torch.zeros(T, H, D, dtype=BF16), "final_state": torch.zeros(N, H, D, D),
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


@pytest.mark.parametrize("entry", ["prefill_k_last", "prefill_k_first"])
@pytest.mark.parametrize(("name", "change", "says"), BAD)
def test_bad_input_is_refused(
    kernel: ModuleType, entry: str, name: str, change: Callable[[Any], Any], says: str
) -> None:
    bad = arguments()
    bad[name] = change(bad[name])
    with pytest.raises(ValueError, match=says):
        getattr(kernel, entry)(**bad)


def test_a_head_size_past_256_is_refused(kernel: ModuleType) -> None:
    bad = arguments() | {name: torch.zeros(T, HQ, 272, dtype=BF16) for name in ("q", "k")}
    with pytest.raises(ValueError, match="head_size 272"):
        kernel.prefill_k_last(**bad)


@pytest.mark.parametrize("bounds", [[1, 2, 5], [0, 2, 4], [0, 6, 5], [0, -1, 5]])
def test_bounds_that_lie_are_refused_when_asked_to_look(
    kernel: ModuleType, bounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "DEBUG", True)
    with pytest.raises(ValueError, match="cu_seqlens must rise from 0 to total_seq_len 5"):
        kernel.prefill_k_last(**arguments() | {"cu_seqlens": torch.tensor(bounds)})

"""Arguments of a call of triton_backward: zeros, or tensors without memory."""

from typing import Any

import torch

BF16 = torch.bfloat16
Arguments = dict[str, Any]


def arguments(
    D: int = 16, T: int = 140, N: int = 2, heads: tuple[int, int, int] = (1, 1, 2), dtype: Any = BF16,
    device: str = "cpu", given: bool = True,
) -> Arguments:  # fmt: skip
    """Of a call. `given`: with an initial state, and a gradient of the final one."""
    (HQ, HK, HV), H = heads, max(heads)
    rows = lambda count: torch.zeros(T, count, D, dtype=dtype, device=device)  # noqa: E731
    f32 = lambda *shape: torch.zeros(*shape, device=device)  # noqa: E731
    states = f32(N, H, D, D) if given else None
    return {
        "q": rows(HQ), "k": rows(HK), "v": rows(HV), "g": f32(T, H), "beta": f32(T, H),
        "cu_seqlens": torch.zeros(N + 1, dtype=torch.int64, device=device), "initial_state": states, "scale": None,
        "do": rows(H), "dht": states, "dq": rows(HQ), "dk": rows(HK), "dv": rows(HV), "dg": f32(T, H),
        "dbeta": f32(T, H), "dh0": f32(N, H, D, D),
    }  # fmt: skip


def raw_arguments(**shape: Any) -> Arguments:
    """The same for the entry with raw gates."""
    given = arguments(**shape)
    T, H = given["g"].shape
    device = given["g"].device
    of_heads = {name: torch.zeros(H, device=device) for name in ("A_log", "dt_bias", "dA_log", "ddt_bias")}
    of_tokens = {name: torch.zeros(T, H, dtype=BF16, device=device) for name in ("a", "b", "da", "db")}
    kept = {name: x for name, x in given.items() if name not in ("g", "beta", "dg", "dbeta")}
    return kept | of_heads | of_tokens | {"use_qk_l2norm": True}


def kept_arguments(interval: int = 256, **shape: Any) -> Arguments:
    """The same for the entry with checkpoints, a row of them for every interval of all tokens."""
    given = arguments(**shape)
    states, bounds = given["dh0"], given["cu_seqlens"]
    rows = states.new_zeros(len(given["q"]) // interval, *states.shape[1:])
    more = {"checkpoints": rows, "checkpoint_cu_starts": torch.zeros_like(bounds), "checkpoint_interval": interval}
    return given | more


MAKERS = {"backward_raw_gates": raw_arguments, "backward_checkpoints": kept_arguments}  # of others: `arguments`

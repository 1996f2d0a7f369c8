"""Calls the emulated kernels of cuda_kda_decode; run by test_kda_decode_emulation.py in a process of its own, which the
emulator ends where it finds an error. The argument is the library.

It prints, for each case, the relative errors of output and new state against the rule in float64, and whether what is
not named stayed as it was.
"""

import ctypes
import json
import math
import sys
from typing import Any

import torch

DENSE, POOLED, PACKED = range(3)  # packed: dense states, and q, k and v in one row
BOUND = -5.0  # of gate B
# Head size, bfloat16 states, kind, lower bound, whether q and k are normalised.
CASES = (
    (64, False, DENSE, None, True), (128, True, DENSE, BOUND, False), (128, False, POOLED, None, True),
    (128, True, POOLED, BOUND, True), (64, False, PACKED, BOUND, True), (128, True, PACKED, None, True),
    (64, True, POOLED, None, False), (256, True, DENSE, None, True),
)  # fmt: skip
ROWS, KEY_HEADS, GROUP, SLOTS = 3, 1, 2, 6
POINTER, LONG, INT, FLOAT, BOOL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float, ctypes.c_bool


class Arguments(ctypes.Structure):
    _fields_ = [
        ("q", POINTER), ("k", POINTER), ("v", POINTER), ("qk_stride", LONG), ("v_stride", LONG), ("states", POINTER),
        ("to", POINTER), ("slot_stride", LONG), ("read", POINTER), ("write", POINTER), ("num_slots", INT),
        ("A_log", POINTER), ("dt_bias", POINTER), ("a", POINTER), ("b", POINTER), ("output", POINTER), ("H", INT),
        ("scale", FLOAT), ("lower_bound", FLOAT), ("normalise", BOOL), ("bounded", BOOL),
    ]  # fmt: skip


def rule(x: dict[str, torch.Tensor], lower_bound: float | None, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and new state [rows, H, V, K] in float64."""
    q, k, v, S, A_log, a, dt_bias, b = (x[name].double() for name in ("q", "k", "v", "S", "A_log", "a", "dt_bias", "b"))
    if normalise:
        q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    q, k = (y.repeat_interleave(GROUP, 1) for y in (q, k))
    rate, raw = A_log.exp()[None, :, None], a + dt_bias
    g = -rate * torch.nn.functional.softplus(raw) if lower_bound is None else lower_bound * torch.sigmoid(rate * raw)
    S = S * g.exp()[:, :, None, :]
    u = torch.sigmoid(b)[..., None] * (v - torch.einsum("bhvk,bhk->bhv", S, k))
    S = S + u[..., None] * k[:, :, None, :]
    return q.shape[-1] ** -0.5 * torch.einsum("bhvk,bhk->bhv", S, q), S


def run(library: Any, D: int, halves: bool, kind: int, lower_bound: float | None, normalise: bool) -> dict[str, Any]:
    draw, H = torch.Generator().manual_seed(D), KEY_HEADS * GROUP
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    unit = torch.nn.functional.normalize
    dtype = torch.bfloat16 if halves else torch.float32
    x = {
        "q": normal(ROWS, KEY_HEADS, D).bfloat16(), "k": unit(normal(ROWS, KEY_HEADS, D), dim=-1).bfloat16(),
        "v": normal(ROWS, H, D).bfloat16(), "S": normal(ROWS, H, D, D).to(dtype), "A_log": normal(H),
        "a": normal(ROWS, H, D).bfloat16(), "dt_bias": normal(H, D), "b": normal(ROWS, H).bfloat16(),
        "output": torch.full((ROWS, H, D), math.nan).bfloat16(),
    }  # fmt: skip
    p = Arguments(**{name: x[name].data_ptr() for name in x if name != "S"})
    p.qk_stride, p.v_stride, p.slot_stride, p.H = KEY_HEADS * D, H * D, H * D * D, H
    mixed = torch.cat([x[name].flatten(1) for name in "qkv"], dim=1)
    if kind == PACKED:
        p.q, p.qk_stride, p.v_stride = mixed.data_ptr(), mixed.shape[1], mixed.shape[1]
        p.k, p.v = (p.q + heads * D * mixed.element_size() for heads in (KEY_HEADS, 2 * KEY_HEADS))
    p.scale, p.normalise, p.bounded, p.lower_bound = D**-0.5, normalise, lower_bound is not None, lower_bound or 0.0
    given = x["S"]
    new = torch.full_like(given, math.nan)
    live, to, kept = [0, 1, 2], [0, 1, 2], True
    if kind == POOLED:
        live, to = [0, 2], [4, 0]
        slots = {
            name: torch.tensor(to, dtype=torch.int32) for name, to in (("read", [4, -1, 2]), ("write", [4, -1, 0]))
        }
        pool = normal(SLOTS, H, D, D).to(dtype)
        pool[[4, 2]] = given[live]
        before, given, new = pool.clone(), pool, pool
        p.read, p.write, p.num_slots = slots["read"].data_ptr(), slots["write"].data_ptr(), SLOTS
    p.states, p.to = given.data_ptr(), new.data_ptr()
    library.kda_decode(ctypes.byref(p), halves, D, POOLED if kind == POOLED else DENSE, GROUP, KEY_HEADS, ROWS)
    if kind == POOLED:
        others = [slot for slot in range(SLOTS) if slot not in to]
        kept = bool((x["output"][1] == 0).all()) and torch.equal(pool[others], before[others])
    output, states = rule(x, lower_bound, normalise)
    found = (x["output"][live], new[to])
    errors = [
        float((y.double() - z[live]).norm() / z[live].norm()) for y, z in zip(found, (output, states), strict=True)
    ]
    return {"halves": halves, "errors": errors, "kept": kept}


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    print(json.dumps([run(library, *case) for case in CASES]))


if __name__ == "__main__":
    main()

"""Calls the emulated kernels of cuda_decode; run by test_decode_emulation.py in a process of its own, which the
emulator ends where it finds an error. The argument is the library.

It prints, for each case, the relative errors of output and new state against the rule in float64, whether what is not
named stayed as it was, and a digest of the live rows. Then the shape of the tile on either side of each threshold.
"""

import ctypes
import hashlib
import json
import math
import sys
from typing import Any

import torch

DENSE, POOLED = range(2)
FEW, MANY = 1, 1024
# Head size, bfloat16 states, kind, whether q and k are normalised, the pairs of a row and a head that choose a tile.
CASES = (
    (64, False, DENSE, True, FEW), (64, True, POOLED, True, FEW), (256, False, POOLED, True, MANY),
    (128, False, DENSE, False, FEW), (128, True, POOLED, False, FEW),
    (128, False, DENSE, True, 159), (128, False, DENSE, True, 160),
    (128, True, DENSE, True, MANY - 1), (128, True, DENSE, True, MANY),
    (128, False, POOLED, True, MANY - 1), (128, False, POOLED, True, MANY),
    (128, True, POOLED, True, MANY - 1), (128, True, POOLED, True, MANY),
)  # fmt: skip
# Bfloat16 states, kind, pairs below and at each threshold.
EDGES = [(False, DENSE, (159, 160, 256, 257)), (True, DENSE, (63, 64, 96, 97, 239, 240, 256, 257, MANY - 1, MANY)),
         (False, POOLED, (MANY - 1, MANY)), (True, POOLED, (MANY - 1, MANY))]  # fmt: skip
ROWS, KEY_HEADS, GROUP, SLOTS, GAP = 5, 1, 2, 8, 64
READ, WRITE = [4, -1, 2, 5, SLOTS], [4, -1, 0, -1, 3]  # rows in place, skipped, moved, not written, out of the pool
LIVE, TO = [0, 2], [4, 0]
POINTER, LONG, INT, FLOAT, BOOL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float, ctypes.c_bool


class Arguments(ctypes.Structure):
    _fields_ = [
        ("q", POINTER), ("k", POINTER), ("v", POINTER), ("qk_stride", LONG), ("v_stride", LONG), ("states", POINTER),
        ("to", POINTER), ("slot_stride", LONG), ("read", POINTER), ("write", POINTER), ("accepted", POINTER),
        ("num_slots", INT), ("A_log", POINTER), ("a", POINTER), ("dt_bias", POINTER), ("b", POINTER),
        ("output", POINTER), ("H", INT), ("T", INT), ("scale", FLOAT), ("normalise", BOOL),
    ]  # fmt: skip


class Shape(ctypes.Structure):
    _fields_ = [("lanes", INT), ("loads", INT), ("warps", INT)]


def rule(x: dict[str, torch.Tensor], normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and new state [rows, H, V, K] in float64."""
    q, k, v, S, A_log, a, dt_bias, b = (x[name].double() for name in ("q", "k", "v", "S", "A_log", "a", "dt_bias", "b"))
    if normalise:
        q, k = (y * torch.rsqrt((y * y).sum(-1, keepdim=True) + 1e-6) for y in (q, k))
    q, k = (y.repeat_interleave(GROUP, 1) for y in (q, k))
    g = -A_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    S = S * g.exp()[:, :, None, None]
    u = torch.sigmoid(b)[..., None] * (v - torch.einsum("bhvk,bhk->bhv", S, k))
    S = S + u[..., None] * k[:, :, None, :]
    return q.shape[-1] ** -0.5 * torch.einsum("bhvk,bhk->bhv", S, q), S


def run(library: Any, D: int, halves: bool, kind: int, normalise: bool, pairs: int) -> dict[str, Any]:
    draw, H = torch.Generator().manual_seed(D), KEY_HEADS * GROUP
    normal = lambda *shape: torch.randn(*shape, generator=draw)  # noqa: E731
    unit = torch.nn.functional.normalize
    dtype = torch.bfloat16 if halves else torch.float32
    x = {
        "q": normal(ROWS, KEY_HEADS, D).bfloat16(), "k": unit(normal(ROWS, KEY_HEADS, D), dim=-1).bfloat16(),
        "v": normal(ROWS, H, D).bfloat16(), "S": normal(ROWS, H, D, D).to(dtype), "A_log": normal(H),
        "a": normal(ROWS, H).bfloat16(), "dt_bias": normal(H).bfloat16(), "b": normal(ROWS, H).bfloat16(),
        "output": torch.full((ROWS, H, D), math.nan).bfloat16(),
    }  # fmt: skip
    p = Arguments(**{name: x[name].data_ptr() for name in x if name != "S"})
    p.qk_stride, p.v_stride, p.slot_stride, p.H, p.T = KEY_HEADS * D, H * D, H * D * D, H, 1
    p.scale, p.normalise = D**-0.5, normalise
    given, live, to, kept = x["S"], [*range(ROWS)], [*range(ROWS)], True
    new = torch.full_like(given, math.nan)
    if kind != DENSE:
        live, to = LIVE, TO
        slots = {name: torch.tensor(one, dtype=torch.int32) for name, one in (("read", READ), ("write", WRITE))}
        memory = torch.full((SLOTS, H * D * D + GAP), math.nan, dtype=dtype)
        pool = memory[:, :-GAP].view(SLOTS, H, D, D)
        pool.copy_(normal(SLOTS, H, D, D))
        pool[[READ[row] for row in live]] = given[live]
        before, given, new = pool.clone(), pool, pool
        p.read, p.write, p.num_slots = slots["read"].data_ptr(), slots["write"].data_ptr(), SLOTS
        p.slot_stride = H * D * D + GAP
    p.states, p.to = given.data_ptr(), new.data_ptr()
    shape = library.decode(ctypes.byref(p), halves, D, kind, LONG(pairs), GROUP, KEY_HEADS, ROWS, 1)
    if kind != DENSE:
        others, skipped = ([n for n in range(count) if n not in own] for count, own in ((SLOTS, to), (ROWS, live)))
        kept = not bool(x["output"][skipped].any()) and torch.equal(pool[others], before[others])
        kept &= bool(memory[:, -GAP:].isnan().all())
    output, states = rule(x, normalise)
    found = (x["output"][live], new[to])
    errors = [
        float((y.double() - z[live]).norm() / z[live].norm()) for y, z in zip(found, (output, states), strict=True)
    ]
    written = (x["output"][LIVE], new[to if kind != DENSE else LIVE])
    digest = hashlib.sha256(b"".join(y.contiguous().view(torch.uint8).numpy().tobytes() for y in written)).hexdigest()
    return {"D": D, "halves": halves, "normalise": normalise, "errors": errors, "kept": kept, "digest": digest,
            "tile": numbers(shape)}  # fmt: skip


def numbers(shape: Shape) -> list[int]:
    return [shape.lanes, shape.loads, shape.warps]


def chosen(library: Any, D: int, halves: bool, kind: int, pairs: int) -> list[int]:
    return numbers(library.decode(None, halves, D, kind, LONG(pairs), GROUP, KEY_HEADS, ROWS, 1))


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.decode.restype = Shape
    found = [run(library, *case) for case in CASES]
    edges = [
        {
            "kind": ("dense", "pool")[kind],
            "halves": halves,
            "D": D,
            "pairs": pairs,
            "tile": chosen(library, D, halves, kind, pairs),
        }
        for halves, kind, asked in EDGES
        for D in (64, 128, 256)
        for pairs in asked
    ]
    print(json.dumps([{"cases": found, "edges": edges}]))


if __name__ == "__main__":
    main()

"""fused_conv_prefill's device code, emulated, on drawn calls; run in a process of its own by test_conv_emulation.py.

python conv_emulated.py LIBRARY CALLS      prints a JSON object: call to what is wrong with it, "" where nothing is
"""

import ctypes
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))

from gdnspec.catalog.definitions import definition
from helpers_unit import reference

conv = reference("convolution")
FOUND = definition("gdn_conv_gates_prefill")
BF16, GUARD = torch.bfloat16, 64


def guarded(*shape: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of NaN or -1 and, around it, what nobody may write to; both views of one memory."""
    size = int(torch.Size(shape).numel())
    whole = torch.full((size + 2 * GUARD,), torch.nan if dtype.is_floating_point else -1, dtype=dtype)
    return whole[GUARD : GUARD + size].view(shape), whole


def given(x: torch.Tensor) -> torch.Tensor:
    """The same between guards: whoever reads past an end, reads NaN."""
    inner, _ = guarded(*x.shape, dtype=x.dtype)
    return inner.copy_(x)


def drawn(HK: int, H: int, D: int, W: int, lengths: list[int], bias: bool, seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    T, C, N = sum(lengths), (2 * HK + H) * D, len(lengths)
    slots = torch.randperm(N + 2, generator=generator)[:N].to(torch.int32)
    slots[torch.rand(N, generator=generator) < 0.15] = -1
    if N > 2:
        slots[1] = N + 5  # none: skipped as well
    return {
        "x": normal(T, C).to(BF16), "conv_weight": normal(C, W).to(BF16),
        "conv_bias": normal(C).to(BF16) if bias else None, "a": normal(T, H).to(BF16), "b": normal(T, H).to(BF16),
        "A_log": normal(H), "dt_bias": normal(H).to(BF16), "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0),
        "conv_states": normal(N + 2, C, W - 1).to(BF16), "slots": slots,
        "has_initial_state": torch.rand(N, generator=generator) < 0.5, "head_dim": D,
    }  # fmt: skip


def wrong(library: ctypes.CDLL, call: dict[str, Any], strip: int, seed: int, lies: list[int] | None = None) -> str:
    """What differs from the reference, by more than rounding. With bounds that are `lies`: what was written beside."""
    legal = torch.where(call["slots"] < len(call["conv_states"]), call["slots"], -1)
    wide = {name: x.double() if getattr(x, "is_floating_point", bool)() else x for name, x in call.items()}
    values = conv.conv_gates_prefill(**wide | {"slots": legal})
    expected = dict(zip(["q", "k", "v", "g", "beta", "conv_states"], values, strict=True))
    T, H, D, W = len(call["x"]), call["a"].shape[1], call["head_dim"], call["conv_weight"].shape[1]
    HK = (call["x"].shape[1] // D - H) // 2
    outputs = {name: guarded(*expected[name].shape, dtype=BF16) for name in "qkv"}
    outputs |= {name: guarded(T, H, dtype=torch.float32) for name in ("g", "beta")}
    slots, C = len(call["conv_states"]), call["x"].shape[1]
    pool, whole = guarded(slots, C + 8, W - 1, dtype=BF16)  # slots stand apart
    pool[:, :C] = call["conv_states"]
    bounds = call["cu_seqlens"] if lies is None else torch.tensor(lies)
    inputs = [*(call[name] for name in ["x", "conv_weight", "conv_bias", "a", "b", "A_log", "dt_bias"]), bounds]
    held = [None if x is None else given(x) for x in inputs]
    last = [given(call["slots"]), given(call["has_initial_state"].to(torch.uint8))]
    pointers = [*held, pool, *last, *(outputs[name][0] for name in ("q", "k", "v", "g", "beta"))]
    library.conv_gates(
        *(ctypes.c_void_p(None if x is None else x.data_ptr()) for x in pointers), ctypes.c_int64(pool.stride(0)),
        *(ctypes.c_int(x) for x in (T, len(call["slots"]), slots, HK, H, D, W, strip)), ctypes.c_uint(seed),
    )  # fmt: skip
    for name, (x, memory) in outputs.items():
        if not bool(torch.isnan(memory[:GUARD]).all() and torch.isnan(memory[-GUARD:]).all()):
            return f"{name}: written beside"
        if lies is not None:
            continue
        difference = (x.double() - expected[name]).abs()
        limit = (2**-8 if name in "qkv" else 1e-6) * expected[name].abs() + 1e-6
        if not bool((difference <= limit).all()):
            return f"{name}: off at {(~(difference <= limit)).nonzero()[0].tolist()}"
    if lies is None and not torch.equal(pool[:, :C].double(), expected["conv_states"]):
        return "conv_states"
    if not bool(
        torch.isnan(pool[:, C:]).all() and torch.isnan(whole[:GUARD]).all() and torch.isnan(whole[-GUARD:]).all()
    ):
        return "conv_states: written beside"
    return ""


def main() -> None:
    library = ctypes.CDLL(sys.argv[1])
    library.conv_gates.restype = None
    draw, found = random.Random(1), {}
    for i in range(int(sys.argv[2])):
        HK, H = draw.choice([(1, 1), (1, 2), (2, 4), (1, 3), (3, 9)])
        D, W, strip = draw.choice([64, 128, 256]), draw.choice([2, 3, 4]), draw.choice([8, 9, 16, 33])
        kinds = {
            "edges": [strip - 1, 1, 2, strip, 3, 0],
            "short": [0, 1, 2, 3, 1, 2],
            "long": [0, 1, 2 * strip + 3, 5 * strip],
        }
        kind = draw.choice(list(kinds))
        lengths = [draw.choice(kinds[kind]) for _ in range(draw.choice([1, 3, 40] if kind == "short" else [1, 2, 5]))]
        if sum(lengths) == 0:
            lengths.append(1)
        case = f"{i}: heads {HK}/{H} of {D}, width {W}, strips of {strip}, lengths {lengths}"
        call = drawn(HK, H, D, W, lengths, draw.random() < 0.5, i)
        found[case] = wrong(library, call, strip, i)
        lies = [draw.choice([-(2**40), -1, 0, 3, sum(lengths), 2**40, *lengths]) for _ in range(len(lengths) + 1)]
        found[f"{case}, lies {lies}"] = wrong(library, call, strip, i, lies)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

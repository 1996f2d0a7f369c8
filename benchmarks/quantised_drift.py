"""How far do quantised states drift from exact ones? By regime, type of codes, and rows per scale.

    python benchmarks/quantised_drift.py [--tokens 4096] [--heads 4] [--size 128] [--solution] [--rows 1,16,32,128]

A state is decoded token by token, and quantised after each, as gdn_decode_pool_k_last_fp8_state and _int8_state say.
Figures are the relative L2 of outputs and of the state over the last tokens, against the recurrence in float64 on exact
states: the worst head. They are figures, not budgets. Everything runs on the CPU: quantised and exact recurrence in
float64; with --solution the solution torch_quantised as well, in float32 on the same inputs.
"""

import argparse
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from reference.gdn import quantised  # noqa: E402
from reference.gdn.gated_delta_net import l2_normalise, step  # noqa: E402

CODES: dict[str, tuple[float, Callable[[Tensor], Tensor], torch.dtype]] = {
    "e4m3": (448.0, quantised.to_e4m3, torch.float8_e4m3fn), "int8": (127.0, quantised.to_int8, torch.int8),
}  # fmt: skip
LAST = 256  # tokens that a figure averages
Gates = Callable[[Tensor], Tensor]  # uniform random numbers [T, H] -> gates
REGIMES: dict[str, tuple[str, Gates, Gates, bool]] = {
    "typical": ("as models are initialised: alpha 0.2 to 0.9999", lambda u: mamba(u), lambda u: logistic(u), False),
    "strong decay": ("alpha e^-2 to e^-0.1", lambda u: torch.exp(-0.1 - 1.9 * u), lambda u: logistic(u), False),
    "slow decay": ("alpha 0.999", lambda u: torch.full_like(u, 0.999), lambda u: logistic(u), False),
    "no decay": ("alpha 1", torch.ones_like, lambda u: logistic(u), False),
    "repeated keys": ("alpha 0.99 to 1, one key", lambda u: 0.99 + 0.01 * u, lambda u: u, True),
}


def logistic(u: Tensor) -> Tensor:
    """The sigmoid of a normal number."""
    return torch.sigmoid(torch.erfinv((2 * u - 1).clamp(-1 + 1e-12, 1 - 1e-12)) * 2**0.5)


def mamba(u: Tensor) -> Tensor:
    """Rates uniform in (0, 16] and steps log-uniform from 1e-3 to 0.1, one of each for a head; steps vary by tokens."""
    H = u.shape[1]
    rate = 16 * (torch.arange(H, dtype=u.dtype) + 0.5) / H
    dt = 10 ** (-3 + 2 * ((torch.arange(H, dtype=u.dtype) * 0.618) % 1))
    return torch.exp(-rate * dt * torch.exp(u - 0.5))


def draw(regime: str, T: int, H: int, D: int) -> dict[str, Tensor]:
    """Inputs of T tokens and H heads in float64, q and k of unit norm, rounded to bfloat16 before the norm."""
    generator = torch.Generator().manual_seed(7)
    _, forget, write, repeated = REGIMES[regime]
    q, k, v = (torch.randn(T, H, D, generator=generator).bfloat16().double() for _ in range(3))
    if repeated:
        k = k[:1].expand(T, H, D)
    alpha, beta = (gate(torch.rand(T, H, generator=generator, dtype=torch.float64)) for gate in (forget, write))
    return {"q": l2_normalise(q), "k": l2_normalise(k), "v": v, "alpha": alpha, "beta": beta}


def requantised(S: Tensor, codes: str, rows: int) -> Tensor:
    """S [H, V, K] as codes can hold it, with one scale for every `rows` rows."""
    largest, to_code, _ = CODES[codes]
    H, V, K = S.shape
    blocks = S.reshape(H, V // rows, rows * K)
    return quantised.dequantise(*quantised.quantise(blocks, largest, to_code)).reshape(S.shape)


def states(x: dict[str, Tensor], kept: Callable[[Tensor], Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Output and kept state after each token."""
    T, H, D = x["q"].shape
    S = torch.zeros(H, D, D, dtype=torch.float64)
    for t in range(T):
        o, S = step(S, x["q"][t], x["k"][t], x["v"][t], x["alpha"][t], x["beta"][t], D**-0.5)
        S = kept(S)
        yield o, S


def solved(x: dict[str, Tensor], codes: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The same by the functions of torch_quantised, in float32."""
    kernel: dict[str, Any] = runpy.run_path(str(ROOT / "solutions" / "torch_quantised" / "kernel.py"))
    T, H, D = x["q"].shape
    pool, scales = torch.zeros(1, H, D, D).to(CODES[codes][2]), torch.zeros(1, H, D)
    slot, given = torch.tensor([0]), {name: value.float() for name, value in x.items()}
    for t in range(T):
        one = [given[name][t : t + 1] for name in ("q", "k", "v", "alpha", "beta")]
        o, S = kernel["step"](kernel["load"](pool, scales, slot), *one)
        kernel["store"](S, pool, scales, slot)
        yield D**-0.5 * o[0].double(), kernel["load"](pool, scales, slot)[0].double()


def drift(
    exact: list[tuple[Tensor, Tensor]], found: Iterator[tuple[Tensor, Tensor]], after: int
) -> tuple[float, float]:
    """Relative L2 of outputs and of states over the last tokens, of the worst head."""
    sums = torch.zeros(4, exact[0][0].shape[0], dtype=torch.float64)
    for t, (o, S) in enumerate(found):
        if t >= after:
            o_want, S_want = exact[t - after]
            pairs = ((o - o_want), o_want, (S - S_want).flatten(1), S_want.flatten(1))
            sums += torch.stack([x.square().sum(-1) for x in pairs])
    return float((sums[0] / sums[1]).sqrt().max()), float((sums[2] / sums[3]).sqrt().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rows", default="1,16,32,128", help="rows of a state for each scale")
    parser.add_argument("--regime", action="append", choices=[*REGIMES], help="none: all")
    parser.add_argument("--solution", action="store_true", help="torch_quantised as well")
    options = parser.parse_args()
    blocks = [int(rows) for rows in options.rows.split(",")]
    last = min(LAST, options.tokens)
    heads = [f"{rows} row{'s' * (rows > 1)}" for rows in blocks] + ["torch_quantised"] * options.solution
    print(f"| regime | codes | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}")
    for regime in options.regime or REGIMES:
        x = draw(regime, options.tokens, options.heads, options.size)
        exact = [one for t, one in enumerate(states(x, lambda S: S)) if t >= options.tokens - last]
        for codes in CODES:
            runs = [states(x, lambda S, rows=rows, codes=codes: requantised(S, codes, rows)) for rows in blocks]
            runs += [solved(x, codes)] * options.solution
            cells = ["{:.3f}, {:.3f}".format(*drift(exact, run, options.tokens - last)) for run in runs]
            print(f"| {regime} | {codes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

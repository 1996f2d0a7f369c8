"""The convolution and the gated norm around the rule, forward and backward, beside FLA.

    python benchmarks/around_rows.py [--rows TEXT,TEXT] [--json FILE]

bfloat16, four taps with SiLU, heads of 128; no states, as training calls them. triton_layer has the forward passes and
triton_layer_backward the gradients, with all that their entries launch. FLA's kernels are called as its autograd calls
them, each way that it has: for the convolution in Triton and in Gluon, which `FLA_CONV_GLUON=1` chooses. Its gradient
of the norm is given what the forward pass keeps.

Microseconds a call: the median of replays of a CUDA graph of calls over inputs of more than three times the L2 cache,
in turns. What cannot be captured is timed by events over eager calls and marked with `*`. What differs by more than 2%
of a norm is marked with `!`. The bound is all bytes, inputs read once and outputs written once, at the rate of a copy.
The ratio is FLA's least time over that of gdnspec.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gdnspec.bench.ceilings import copy_bandwidth
from gdnspec.build.loader import load_function
from prefill_rows import Timed
from prefill_shapes import COPY_RATES
from row_files import made_with, said_with
from torch import Tensor

SOLUTIONS = Path(__file__).resolve().parent.parent / "solutions"
W, D, WINDOWS, BYTES = 4, 128, 9, 200_000_000
RAGGED = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)
# Channels are those of 16/32, 8/16 and 4/8 heads.
CONVOLUTIONS = {
    "8192 1x2048": (8192, (2048,)), "8192 4x2048": (8192, (2048,) * 4), "8192 1x32768": (8192, (32768,)),
    "8192 ragged16": (8192, RAGGED), "8192 48x512": (8192, (512,) * 48), "8192 1x100": (8192, (100,)),
    "8192 256x7": (8192, (7,) * 256), "8192 512x1": (8192, (1,) * 512), "4096 1x8192": (4096, (8192,)),
    "4096 17x100": (4096, (100,) * 17), "2048 64x128": (2048, (128,) * 64), "2048 100x300": (2048, (300,) * 100),
}  # fmt: skip
NORMS = {
    f"{heads} heads {tokens}": (tokens, heads)
    for heads, tokens in ((32, 16), (32, 300), (32, 2048), (32, 8192), (32, 32768), (16, 8192), (8, 1000), (8, 30000))
}
Tensors = dict[str, Tensor]
Way = Callable[[Tensors], Callable[[], Tensors]]  # of inputs, a call


class Stage(NamedTuple):
    """What is timed: its rows, how inputs are drawn, and who computes it. The first way is that of gdnspec."""

    rows: dict[str, Any]
    draw: Callable[..., Tensors]
    outputs: dict[str, str]  # the input that each is like
    ways: dict[str, Way]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def of_convolution(channels: int, lengths: tuple[int, ...]) -> Tensors:
    tokens = sum(lengths)
    return {
        "x": drawn(tokens, channels), "weight": drawn(channels, W) / 2, "bias": drawn(channels),
        "cu_seqlens": torch.tensor([0, *lengths], device="cuda").cumsum(0), "do": drawn(tokens, channels),
    }  # fmt: skip


def of_norm(tokens: int, heads: int) -> Tensors:
    x, z, do = (drawn(tokens, heads, D) for _ in range(3))
    return {"x": x, "z": z, "weight": drawn(D), "do": do}


def like(given: Tensors, **names: str) -> Tensors:
    """Outputs, each like an input: gradients of parameters in float32, the others in its type."""
    wide = ("weight", "bias")
    return {
        name: torch.full_like(given[of], math.nan, dtype=torch.float32 if of in wide else None)
        for name, of in names.items()
    }


# --- gdnspec ----------------------------------------------------------------------------------------------------------


def ours(scratch: Path) -> dict[str, Way]:
    def entry(solution: str, name: str) -> Callable[..., Any]:
        return load_function(SOLUTIONS / solution, name, scratch / solution)

    forward, norm = (entry("triton_layer", x) for x in ("conv1d.py::conv1d_prefill", "gated_norm.py::gated_rms_norm"))
    backward = entry("triton_layer_backward", "conv1d.py::conv1d_backward")
    norm_backward = entry("triton_layer_backward", "gated_norm.py::gated_rms_norm_backward")

    def conv(given: Tensors) -> Callable[[], Tensors]:
        x, count = given["x"], len(given["cu_seqlens"]) - 1
        more = {
            "conv_states": torch.zeros(count, x.shape[1], W - 1, device="cuda", dtype=x.dtype),
            "slots": torch.arange(count, device="cuda", dtype=torch.int32),
            "has_initial_state": torch.zeros(count, device="cuda", dtype=torch.bool),
        }
        out = like(given, output="x")
        return lambda: (forward(**given, **more, **out), out)[1]

    def conv_backward(given: Tensors) -> Callable[[], Tensors]:
        count, channels = len(given["cu_seqlens"]) - 1, given["x"].shape[1]
        out = like(given, dx="x", dweight="weight", dbias="bias")
        more = {"initial_state": None, "dht": None, "dh0": torch.empty(count, channels, W - 1, device="cuda")}
        return lambda: (backward(**given, **more, **out), out)[1]

    def gated(given: Tensors) -> Callable[[], Tensors]:
        out = like(given, output="x")
        return lambda: (norm(**given, eps=None, **out), out)[1]

    def gated_backward(given: Tensors) -> Callable[[], Tensors]:
        out = like(given, dx="x", dz="z", dweight="weight")
        return lambda: (norm_backward(**given, eps=None, **out), out)[1]

    return {
        "convolution": conv, "convolution, gradients": conv_backward,
        "norm": gated, "norm, gradients": gated_backward,
    }  # fmt: skip


# --- FLA --------------------------------------------------------------------------------------------------------------


def flas() -> dict[str, dict[str, Way]]:
    from fla.modules.causal_conv1d import ops as triton_conv
    from fla.modules.norm.fused_norm_gate import layer_norm_gated_bwd, layer_norm_gated_fwd
    from fla.ops.utils.index import prepare_chunk_indices

    def convolution(function: Callable[..., Any], gradients: bool) -> Way:
        def way(given: Tensors) -> Callable[[], Tensors]:
            bounds = given["cu_seqlens"]
            chunks = prepare_chunk_indices(bounds, 64, cu_seqlens_cpu=bounds.cpu())
            common: dict[str, Any] = {name: given[name] for name in ("weight", "bias", "cu_seqlens")}
            common |= {"activation": "silu", "chunk_indices": chunks, "x": given["x"][None]}
            if not gradients:
                return lambda: {"output": function(**common, residual=None)[0][0]}
            names, do = ("dx", "dweight", "dbias"), given["do"][None]
            return lambda: dict(zip(names, function(dy=do, dht=None, **common)[:3], strict=True))

        return way

    def norm(given: Tensors) -> Callable[[], Tensors]:
        x, z = (given[name].view(-1, D) for name in "xz")
        more = {"weight": given["weight"], "bias": None, "activation": "swish", "eps": 1e-6, "is_rms_norm": True}
        return lambda: {"output": layer_norm_gated_fwd(x, z, **more)[0]}

    def norm_backward(given: Tensors) -> Callable[[], Tensors]:
        x, z, do = (given[name].view(-1, D) for name in ("x", "z", "do"))
        rstd = (x.float().square().mean(-1) + 1e-6).rsqrt()
        more = {"weight": given["weight"], "bias": None, "activation": "swish", "eps": 1e-6, "is_rms_norm": True}
        names = ("dx", "dz", "dweight")
        return lambda: dict(zip(names, layer_norm_gated_bwd(do, x, z, rstd=rstd, **more)[:3], strict=True))

    found: dict[str, dict[str, Way]] = {
        "convolution": {"FLA": convolution(triton_conv.causal_conv1d_fwd, False)},
        "convolution, gradients": {"FLA": convolution(triton_conv.causal_conv1d_bwd, True)},
        "norm": {"FLA": norm},
        "norm, gradients": {"FLA": norm_backward},
    }
    with suppress(ImportError):
        from fla.modules.causal_conv1d.backends import gluon

        found["convolution"]["Gluon"] = convolution(gluon.causal_conv1d_fwd_gluon, False)
        found["convolution, gradients"]["Gluon"] = convolution(gluon.causal_conv1d_bwd_gluon, True)
    return found


# --- a row ------------------------------------------------------------------------------------------------------------


def far(found: Tensors, expected: Tensors) -> bool:
    errors = (
        float((found[x].double().view(y.shape) - y.double()).norm() / y.double().norm()) for x, y in expected.items()
    )
    return not all(error <= 0.02 for error in errors)  # NaN is far


def measure(stage: Stage, name: str) -> tuple[dict[str, tuple[float, str]], int]:
    """Microseconds and marks of each way, and the bytes of inputs and outputs."""

    def drawn_once() -> Tensors:
        given = stage.draw(*stage.rows[name])
        return given if "dx" in stage.outputs else {key: x for key, x in given.items() if key != "do"}

    sets = [drawn_once()]
    moved = sum(x.nbytes for x in (*sets[0].values(), *like(sets[0], **stage.outputs).values()))
    sets += [drawn_once() for _ in range(min(7, BYTES // moved))]
    timed: dict[str, Timed] = {}
    marks: dict[str, str] = {}
    expected: Tensors = {}
    for way, bind in stage.ways.items():
        try:
            calls = [bind(given) for given in sets]
            found = calls[0]()
        except Exception as error:
            if not expected:
                raise
            print(f"{name}: {way} is left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
            continue  # a library may refuse a shape; the others go on
        expected = expected or {key: x.clone() for key, x in found.items()}
        timed[way] = Timed(calls)
        marks[way] = "!" * far(found, expected) + "*" * (timed[way].graph is None)
    for _ in range(1 + WINDOWS):
        for one in timed.values():
            one.window()
    return {way: (one.median, marks[way]) for way, one in timed.items()}, moved


def report(what: str, stage: Stage, asked: list[str], rate: float, file: Path | None) -> None:
    ratios = []
    print(f"\n{what:22}{'bound':>8}" + "".join(f"{way:>12}" for way in stage.ways) + f"{'ratio':>8}{'share':>8}")
    for name in asked:
        us, moved = measure(stage, name)
        least, (mine, _), *others = 1e6 * moved / rate, *us.values()
        ratio = min((time for time, _ in others), default=math.nan) / mine
        ratios.append(ratio)
        cells = "".join(f"{us[way][0]:>10.1f}{us[way][1]:2}" if way in us else f"{'':12}" for way in stage.ways)
        print(f"{name:22}{least:8.1f}{cells}{ratio:8.2f}{least / mine:8.0%}", flush=True)
        if file:
            line = {"device": torch.cuda.get_device_name(), "what": what, "row": name, "bound": least, "us": us}
            with file.open("a") as to:
                to.write(json.dumps(line | {"made_with": made_with()}) + "\n")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{len(ratios)} of {len(stage.rows)} rows: geometric mean {mean:.2f}, least {min(ratios):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    parser.add_argument("--json", type=Path, help="append a line a row")
    options = parser.parse_args()
    texts = options.rows.split(",")
    if not any(text in name for text in texts for name in (*CONVOLUTIONS, *NORMS)):
        raise SystemExit(f"around_rows.py: no row has one of {options.rows!r} in its name")
    if not torch.cuda.is_available():
        raise SystemExit("around_rows.py: needs a CUDA GPU")
    device = torch.cuda.get_device_name()
    rate = next((rate for name, rate in COPY_RATES.items() if name in device), None) or copy_bandwidth()
    print(f"{device}, copy {rate / 1e12:.2f} TB/s, {said_with(made_with())}")
    try:
        others = flas()
    except ImportError as error:
        print(f"FLA is left out: {error}")
        others = {}
    with tempfile.TemporaryDirectory() as scratch:
        for what, mine in ours(Path(scratch)).items():
            norm, gradients = what.startswith("norm"), what.endswith("gradients")
            names = {"output": "x"}
            if gradients:
                names = {"dx": "x", "dweight": "weight"} | ({"dz": "z"} if norm else {"dbias": "bias"})
            draw, rows = (of_norm, NORMS) if norm else (of_convolution, CONVOLUTIONS)
            stage = Stage(rows, draw, names, {"gdnspec": mine, **others.get(what, {})})
            asked = [name for name in rows if any(text in name for text in texts)]
            if asked:
                report(what, stage, asked, rate, options.json)


if __name__ == "__main__":
    main()

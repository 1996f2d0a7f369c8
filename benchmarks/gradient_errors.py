"""Errors of gradients, solutions and other libraries side by side, on inputs on which kernels differ.

    python benchmarks/gradient_errors.py [--solutions hopper_backward,hopper_backward:two_terms,triton_backward]
                                         [--against flash_qla_backward,attn_gym] [--inputs TEXT,TEXT] [--draws 4]
                                         [--device cuda] [--json FILE]

gdn_prefill_backward_k_first, sequences of 257, 63 and 192 tokens, 2 key and 4 value heads of 128, bfloat16, states
given at both ends. Relative L2 of each gradient, all of it together, against the reference in float64: the median over
draws. The last lines compare each solution with each peer: how large its errors are at most, as a multiple of the
peer's, over the inputs on which all errors of that peer are below 5%. Whether a gradient is within its budget, for each
sequence and head, `gdnspec check` says.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from backward_rows import OUTPUTS, Solution, said_of
from gdnspec.build.interpreter import correct_interpreter
from prefill_rows import folder_of
from row_files import made_with, refuse, said_with

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from reference.gdn.backward_chunkwise import prefill_backward_k_first

DEFINITION, LENGTHS, HK, H, D = "gdn_prefill_backward_k_first", (257, 63, 192), 2, 4, 128
GOOD = 0.05  # a peer with larger errors is none to compare with
Tensors = dict[str, Any]
Change = Callable[[Tensors, torch.Generator], None]


def strong_decay(given: Tensors, random: torch.Generator) -> None:
    rate = 16 * torch.rand(H, generator=random)
    given["g"] = -rate * torch.nn.functional.softplus(0.5 * torch.randn(given["g"].shape, generator=random) + 1)


def one_key(beta: float) -> Change:
    def change(given: Tensors, random: torch.Generator) -> None:
        given["k"] = given["k"][:1].expand_as(given["k"]).contiguous()
        given["g"], given["beta"] = torch.full_like(given["g"], math.log(0.999)), torch.full_like(given["beta"], beta)

    return change


def resets(given: Tensors, random: torch.Generator) -> None:
    given["g"][::7] = -math.inf


def scaled(factor: float) -> Change:
    def change(given: Tensors, random: torch.Generator) -> None:
        given["do"], given["dht"] = given["do"] * factor, given["dht"] * factor

    return change


INPUTS: dict[str, Change] = {
    "typical": lambda given, random: None, "strong decay": strong_decay, "one key, beta 1.5": one_key(1.5),
    "one key, beta 1.9": one_key(1.9), "one key, beta 1.99": one_key(1.99), "alpha 0 at every 7th": resets,
    "cotangents of 1e-4": scaled(1e-4), "cotangents of 1e4": scaled(1e4),
}  # fmt: skip


def draw(name: str, seed: int) -> Tensors:
    random = torch.Generator().manual_seed(seed)
    T, N = sum(LENGTHS), len(LENGTHS)
    normal = lambda *shape: torch.randn(*shape, generator=random)  # noqa: E731
    uniform = lambda *shape: torch.rand(*shape, generator=random)  # noqa: E731
    q, k = (torch.nn.functional.normalize(normal(T, HK, D), dim=-1).bfloat16() for _ in range(2))
    given = {
        "q": q, "k": k, "v": normal(T, H, D).bfloat16(),
        "g": -16 * uniform(H) * torch.exp(math.log(1e-3) + math.log(100.0) * uniform(T, H)), "beta": uniform(T, H),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0), "initial_state": normal(N, H, D, D), "scale": None,
        "do": normal(T, H, D).bfloat16(), "dht": normal(N, H, D, D),
    }  # fmt: skip
    INPUTS[name](given, random)
    return given


def exact(given: Tensors) -> tuple[torch.Tensor, ...]:
    wide = {name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for name, x in given.items()}
    return prefill_backward_k_first(**wide)


def errors(subject: Solution, given: Tensors, right: tuple[torch.Tensor, ...], device: str) -> list[float]:
    found = subject.bound({name: x.to(device) if torch.is_tensor(x) else x for name, x in given.items()})()
    return [float((found[name].cpu().double() - y).norm() / y.norm()) for name, y in zip(OUTPUTS, right, strict=True)]


def worst(mine: dict[str, list[float]], theirs: dict[str, list[float]]) -> str:
    """The largest ratio of errors, and where it is."""
    ratios = {
        f"{output} of {name}": x / y
        for name in mine.keys() & theirs.keys()
        if max(theirs[name]) < GOOD  # not so for NaN
        for output, x, y in zip(OUTPUTS, mine[name], theirs[name], strict=True)
    }
    if not ratios:
        return "no input to compare on"
    bad = [where for where, ratio in ratios.items() if math.isnan(ratio)]
    where = bad[0] if bad else max(ratios, key=lambda where: ratios[where])
    return f"at most {ratios[where]:.2f} times ({where})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--solutions", default="hopper_backward,hopper_backward:two_terms,triton_backward", metavar="S,S"
    )
    parser.add_argument("--against", default="flash_qla_backward,attn_gym", metavar="S,S", help="peers")
    parser.add_argument("--inputs", default="", metavar="TEXT,TEXT", help="only those with one of these in their name")
    parser.add_argument("--draws", type=int, default=4, help="of each input")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line per input and solution")
    options = parser.parse_args()
    named = [(name, among) for among, names in (("solutions", options.solutions), ("peers", options.against))
             for name in names.split(",") if name]  # fmt: skip
    inputs = [name for name in INPUTS if any(text in name for text in options.inputs.split(","))]
    if not inputs:
        parser.error(f"--inputs: none of {', '.join(map(repr, INPUTS))} has one of {options.inputs!r}")
    if not named or options.draws < 1:
        parser.error("--solutions and --draws: name one at least, and draw once at least")
    refuse(parser, options, [folder_of(name, among) for name, among in named])
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gradient_errors.py: no CUDA GPU here (--device cpu runs what needs none)")
    if options.device == "cpu":
        correct_interpreter()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{DEFINITION} on {device}, {said_with(made_with())}; medians of {options.draws}\n")
    print(f"| input | kernel | {' | '.join(OUTPUTS)} |\n|---|---|{'---|' * len(OUTPUTS)}")
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        subjects = []
        for name, among in named:
            try:
                subjects.append(Solution(name, Path(scratch), DEFINITION, among))
            except Exception as error:  # a library may be missing; the others go on
                print(f"{name} is left out: {said_of(error)}", file=sys.stderr)
        for name in inputs:
            drawn = [draw(name, seed) for seed in range(options.draws)]
            right = [exact(given) for given in drawn]
            for subject in subjects:
                try:
                    seen = [errors(subject, *one, options.device) for one in zip(drawn, right, strict=True)]
                except Exception as error:  # a library may refuse an input
                    print(f"| {name} | {subject.name} | {said_of(error)} |{' |' * (len(OUTPUTS) - 1)}", flush=True)
                    continue
                of_all = [statistics.median(one) if all(map(math.isfinite, one)) else math.nan for one in zip(*seen)]  # noqa: B905
                found.setdefault(subject.name, {})[name] = of_all
                print(f"| {name} | {subject.name} | {' | '.join(f'{x:.1e}' for x in of_all)} |", flush=True)
                if options.json:
                    line = {"device": device, "input": name, "solution": subject.name, "draws": options.draws}
                    with options.json.open("a") as to:
                        to.write(
                            json.dumps(line | {"errors": dict(zip(OUTPUTS, of_all, strict=True))} | made_with()) + "\n"
                        )
    print()
    mine, theirs = (
        [subject.name for subject in subjects if among == subject.among] for among in ("solutions", "peers")
    )
    for one in mine:
        for peer in theirs:
            print(f"errors of {one} beside {peer}: {worst(found.get(one, {}), found.get(peer, {}))}")


if __name__ == "__main__":
    main()

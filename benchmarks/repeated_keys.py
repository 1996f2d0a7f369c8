"""Errors on repeated keys, solutions and other libraries side by side: where the inverse of a chunk decides.

    python benchmarks/repeated_keys.py [--solutions hopper_prefill,hopper_prefill:strict,triton_chunkwise]
                                       [--against flashinfer,fla,flash_qla] [--beta 1,1.5,1.9,1.99] [--device cuda]

gdn_prefill_k_last, 512 tokens of one key a head, alpha 0.999, one beta throughout, 4 key and 8 value heads of 128,
bfloat16. Relative L2 of output and final state against the reference in float64, medians over 8 draws; constant betas
make a lottery of a single one.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.interpreter import correct_interpreter
from prefill_rows import DEFINITION, Subject, folder_of, short

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from reference.gdn.gated_delta_net import prefill_k_last

T, HK, H, D, DRAWS = 512, 4, 8, 128, 8


def draw(seed: int, beta: float, device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    key = torch.nn.functional.normalize(normal(1, HK, D), dim=-1)
    given: dict[str, Any] = {
        "q": torch.nn.functional.normalize(normal(T, HK, D), dim=-1).bfloat16(),
        "k": key.expand(T, HK, D).bfloat16().contiguous(), "v": normal(T, H, D).bfloat16(),
        "g": torch.full((T, H), 0.999), "beta": torch.full((T, H), beta), "cu_seqlens": torch.tensor([0, T]),
        "initial_state": torch.zeros(1, H, D, D), "scale": None,
    }  # fmt: skip
    given |= {"output": torch.empty_like(given["v"]), "final_state": torch.empty(1, H, D, D)}
    return {name: x.to(device) if torch.is_tensor(x) else x for name, x in given.items()}


def expected(given: dict[str, Any]) -> tuple[torch.Tensor, ...]:
    names = [name for name in given if name not in ("output", "final_state")]
    exact = [x.cpu().double() if torch.is_tensor(x) and x.is_floating_point() else x for x in map(given.get, names)]
    exact = [x.cpu() if torch.is_tensor(x) else x for x in exact]
    output, state = prefill_k_last(*exact)[:2]
    return output, state


def errors(subject: Subject, given: dict[str, Any], right: tuple[torch.Tensor, ...]) -> list[float]:
    for name in ("output", "final_state"):
        given[name].fill_(torch.nan)
    answer = subject.bound(given)()
    found = (given["output"], given["final_state"]) if answer is None else answer
    return [float((x.cpu().double() - y).norm() / y.norm()) for x, y in zip(found, right, strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--solutions", default="hopper_prefill,hopper_prefill:strict,triton_chunkwise")
    parser.add_argument("--against", default="flashinfer,fla,flash_qla")
    parser.add_argument("--beta", default="1,1.5,1.9,1.99")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("repeated_keys.py: no CUDA GPU here (--device cpu runs what needs none)")
    if options.device == "cpu":
        correct_interpreter()
    betas = [float(x) for x in options.beta.split(",")]
    print(f"{DEFINITION}: errors of output / state" + "".join(f"{beta:>20g}" for beta in betas))
    with tempfile.TemporaryDirectory() as scratch:
        cases = [[draw(seed, beta, options.device) for seed in range(DRAWS)] for beta in betas]
        right = [[expected(given) for given in row] for row in cases]
        for names, among in ((options.solutions, "solutions"), (options.against, "peers")):
            for name in filter(None, names.split(",")):
                try:
                    subject = Subject(name, folder_of(name, among), Path(scratch))
                    seen = [[errors(subject, *one) for one in zip(*row, strict=True)] for row in zip(cases, right)]  # noqa: B905
                except Exception as error:  # a library may be missing, or refuse; the others go on
                    print(f"{short(name):33} left out: {type(error).__name__}: {str(error).splitlines()[:1]}")
                    continue
                medians = [[statistics.median(one[i] for one in row) for i in range(2)] for row in seen]
                print(
                    f"{short(name):41}" + "".join(f"{o:11.2e} /{s:.1e}"[:20].rjust(20) for o, s in medians), flush=True
                )


if __name__ == "__main__":
    main()

"""A layer of Qwen3-Next in training, forward and backward between its projections: by transformers' own code, with
FLA's kernels, and with these.

    python benchmarks/layer_training.py [--paths fla,gdnspec] [--cases '4x2048;ragged'] [--json FILE]
    python benchmarks/layer_training.py --profile gdnspec        # which kernels its time is made of
    python benchmarks/layer_training.py --tiny --device cpu      # tries the script, measures nothing of interest

Random weights, 16 key and 32 value heads of 128, bfloat16. What the projections would give is drawn, and wants
gradients, and so do the layer's own weights: convolution, rates, norm. A call is the output and all gradients for a
drawn gradient of the output. `differs` compares those with the first path's: the largest relative L2 distance.

Figures are medians of windows of replays of a CUDA graph, all paths in turns. Where a graph cannot record a call, it is
the time of its kernels by the profiler, and the table marks the path with "kernels". A path that cannot run a case is
left out, and stderr says why. FLA runs its own kernels; `FLA_DISABLE_BACKEND_DISPATCH=0` lets it hand over to others,
such as FlashQLA. On Hopper its own backward pass raises an error with Triton 3.4.0 to 3.7.0.
"""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from end_to_end import RAGGED, Case, Given, about, built, distance, projected
from graph_times import Timed, Unrecorded, medians, recorded, said_of
from model_paths import PATHS
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

CASES = (
    Case("1x8192", (8192,)), Case("4x2048", (2048,) * 4), Case("ragged16", RAGGED), Case("64x128", (128,) * 64),
    Case("1x300", (300,)),
)  # fmt: skip
TINY_CASES = (Case("1x70", (70,)), Case("5+1+70", (5, 1, 70)))
PROJECTIONS = ("in_proj_qkvz", "in_proj_ba")


class Training:
    """Forward and backward of a layer for a case."""

    def __init__(self, layer: Any, case: Case, model: Any) -> None:
        self.layer, self.device = layer, model.device
        random = torch.Generator(self.device).manual_seed(1)
        drawn = lambda *shape: torch.randn(*shape, generator=random, device=self.device).to(model.dtype)  # noqa: E731
        rows = {name: drawn(1, case.tokens, getattr(layer, name).out_features) for name in PROJECTIONS}
        self.given: dict[str, nn.Module] = {name: Given(x.requires_grad_()) for name, x in rows.items()}
        self.given |= {"out_proj": nn.Identity()}
        self.hidden = drawn(1, case.tokens, 1)
        self.cotangent = drawn(1, case.tokens, layer.value_dim)
        starts = torch.tensor([0, *case.lengths], device=self.device).cumsum(0)
        self.more = {"cu_seq_lens_q": starts} if case.packed else {}
        own = [x for name, x in layer.named_parameters() if "proj" not in name]
        self.wanted = [*rows.values(), *own]

    def __call__(self) -> list[Tensor]:
        """The output, then the gradients of projections and weights."""
        with projected([self.layer], [self.given]):
            output = self.layer(self.hidden, attention_mask=None, **self.more)
        return [output.detach(), *torch.autograd.grad(output, self.wanted, self.cotangent)]


def ready(model: Any, case: Case, paths: list[str]) -> tuple[dict[str, Timed], dict[str, list[Tensor]]]:
    """A call of each path that can run the case, and what it gave."""
    calls: dict[str, Timed] = {}
    outputs: dict[str, list[Tensor]] = {}
    layer = next(x.linear_attn for x in model.layers if hasattr(x, "linear_attn"))
    for path in paths:
        training = Training(layer, case, model)
        try:
            if path == "transformers" and case.packed:
                raise ValueError("its state runs on over the bounds of packed sequences")
            call = on_path(path, model, training)
            outputs[path] = [x.clone() for x in call()]
            calls[path] = recorded(call, model.device)
        except Exception as error:
            outputs.pop(path, None)
            print(f"{case.name}: {path} is left out: {said_of(error)}", file=sys.stderr)
    return calls, outputs


def on_path(path: str, model: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    def called() -> Any:
        with PATHS[path](model):
            return call()

    return called


def profiled(model: Any, case: Case, path: str) -> None:
    """Prints the kernels of a call by their time."""
    layer = next(x.linear_attn for x in model.layers if hasattr(x, "linear_attn"))
    call = on_path(path, model, Training(layer, case, model))
    for _ in range(2):
        call()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    print(f"\n{case.name}, {path}: {total:,.0f} us in {sum(event.count for event in events)} kernels")
    for event in events[:25]:
        print(f"{event.self_device_time_total:10,.0f} us {event.count:5}  {event.key[:100]}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, apart by ;")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--profile", metavar="PATH", choices=PATHS, help="print the kernels of this path instead")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small layer and short sequences")
    parser.add_argument("--json", type=Path, help="append a line a case")
    given = parser.parse_args(arguments)
    paths = given.paths.split(",")
    if unknown := set(paths) - set(PATHS):
        parser.error(f"--paths: {', '.join(sorted(unknown))} is unknown: {', '.join(PATHS)} are known")
    cases = [x for x in (TINY_CASES if given.tiny else CASES) if any(part in x.name for part in given.cases.split(";"))]
    if not cases:
        parser.error(f"--cases: no case has {given.cases!r} in its name")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU here: --tiny --device cpu tries the script")
    if given.device == "cpu" and (not given.tiny or given.profile):
        parser.error("--device cpu takes --tiny, and no --profile: times on a CPU say nothing of a GPU")
    model = built(given.tiny, 1, given.device).train()
    facts = about(given.device)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    print(f"{facts['card']} ({facts['machine']}): {versions}")
    if given.profile:
        for case in cases:
            profiled(model, case, given.profile)
        return
    print("\n| case | path | us | path / gdnspec | differs |\n|---|---|---:|---:|---:|")
    for case in cases:
        calls, outputs = ready(model, case, paths)
        times = medians(calls, given.windows, model.device)
        for path, seconds in times.items():
            ratio = f"{seconds / times['gdnspec']:.2f}x" if "gdnspec" in times else "-"
            differs = distance(outputs[path], next(iter(outputs.values())))
            name = f"{path}, kernels" if isinstance(calls[path], Unrecorded) else path
            print(f"| {case.name} | {name} | {seconds * 1e6:,.0f} | {ratio} | {differs:.1e} |", flush=True)
            if given.json:
                line = {**facts, "case": case.name, "path": name, "seconds": seconds, "differs": differs}
                with given.json.open("a") as to:
                    to.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

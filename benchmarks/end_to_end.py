"""A Qwen3-Next on one GPU: tokens per second by transformers' own code, with FLA's kernels, and with these.

    python benchmarks/end_to_end.py [--layers 4] [--paths transformers,fla,gdnspec] [--windows 7] [--json FILE]
    python benchmarks/end_to_end.py --cases 'batch 8;1x8192'     # cases that have one of these in their names
    python benchmarks/end_to_end.py --tiny --device cpu          # tries the script, measures nothing of interest

The model has the layer sizes of Qwen3-Next-80B-A3B, random weights, few layers and no head. `whole` is a forward pass
of it. `core` is what the linear attention layers do in it between their projections: convolution, gates, rule, norm and
their states. It is timed by itself, with tensors in place of what the projections would give. `differs` compares the
core's output with that of the first path: the relative L2 distance, the largest of all layers.

On a GPU, every figure is the median of windows of replays of a CUDA graph, all paths in turns. Where a graph cannot
record a call, or the call has thousands of kernels, it is the time of the call's kernels by the profiler, without the
gaps between them, and the table marks the path with "kernels". A path that cannot run a case is left out, and so is
what would begin after --seconds. stderr says why, and how long each path took to compile, tune and record.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from graph_times import Timed, Unrecorded, medians, recorded, said_of
from model_paths import PATHS
from torch import Tensor, nn
from transformers import Qwen3NextConfig, Qwen3NextModel, StaticCache

RAGGED = (37, 1300, 64, 513, 2048, 1, 700, 129, 3000, 255, 64, 90, 1111, 5, 800, 2000)
BASE = "fla"  # what others are compared with
PROMPT = 4
PARTS = ("whole", "core")
TINY = {
    "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """Sequences of these lengths in one row, or one more token for each of `batch` sequences."""

    name: str
    lengths: tuple[int, ...] = ()
    batch: int = 1
    context: int = 0

    @property
    def tokens(self) -> int:
        return sum(self.lengths) or self.batch

    @property
    def packed(self) -> bool:
        return len(self.lengths) > 1


CASES = (
    Case("prefill 1x8192", (8192,)), Case("prefill ragged16", RAGGED),
    *(Case(f"decode, batch {batch}", batch=batch, context=4096) for batch in (1, 8, 64)),
)  # fmt: skip
TINY_CASES = (
    Case("prefill 1x96", (96,)), Case("prefill 5+1+70", (5, 1, 70)),
    *(Case(f"decode, batch {batch}", batch=batch, context=16) for batch in (1, 3)),
)  # fmt: skip


# --- what is called ---------------------------------------------------------------------------------------------


class Given(nn.Module):
    """Stands for a projection, and gives what was drawn for it."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, hidden: Tensor) -> Tensor:
        return self.value


class Run:
    """A case on a model, with a cache of its own."""

    def __init__(self, model: Any, case: Case) -> None:
        device = model.device
        self.model, self.case = model, case
        self.linear = [x.linear_attn for x in model.layers if hasattr(x, "linear_attn")]
        places = case.tokens if case.lengths else case.context + 1
        self.cache = None if case.packed else StaticCache(model.config, places)
        rows, columns = (1, case.tokens) if case.lengths else (case.batch, 1)
        self.ids = torch.randint(0, model.config.vocab_size, (rows, columns), generator=_seeded(device), device=device)
        positions = [torch.arange(n) for n in case.lengths] or [torch.full((1,), case.context)]
        self.positions = torch.cat(positions)[None].to(device)
        self.more: dict[str, Any] = {"use_cache": self.cache is not None}
        mask = None
        if case.packed:
            starts = torch.tensor([0, *case.lengths], device=device).cumsum(0)
            self.more |= {"cu_seq_lens_q": starts}
            row = torch.repeat_interleave(torch.arange(len(case.lengths), device=device), starts.diff())
            mask = (row[:, None] == row).tril()[None, None]
        self.masks = {"full_attention": mask, "linear_attention": None}
        self.given = [self._drawn(layer) for layer in self.linear]
        if not case.lengths:
            self._prompt()

    def _drawn(self, layer: Any) -> dict[str, nn.Module]:
        """What stands for the projections of a layer."""
        options = {"generator": _seeded(self.model.device), "device": self.model.device}
        found: dict[str, nn.Module] = {"out_proj": nn.Identity()}
        for name in ("in_proj_qkvz", "in_proj_ba"):
            size = getattr(layer, name).out_features
            found[name] = Given(torch.randn(*self.ids.shape, size, **options).to(self.model.dtype))
        return found

    def _prompt(self) -> None:
        """Fills the cache as if it had the context."""
        ids, n = self.ids.expand(-1, PROMPT), self.case.context + 1
        mask = torch.ones(PROMPT, n, dtype=torch.bool, device=ids.device).tril()[None, None]
        positions = torch.arange(PROMPT, device=ids.device)[None]
        masks = {"full_attention": mask, "linear_attention": None}
        self._model(ids, positions, masks, {"use_cache": True})

    def _rewind(self) -> None:
        """The cache is where it was, so that every call does the same."""
        for layer in () if self.cache is None else self.cache.layers:
            if hasattr(layer, "cumulative_length") and layer.is_initialized:
                layer.cumulative_length.fill_(self.case.context)
            if hasattr(layer, "has_previous_state") and self.case.lengths:
                layer.has_previous_state[0] = False

    def whole(self) -> Tensor:
        self._rewind()
        return self._model(self.ids, self.positions, self.masks, self.more)

    def _model(self, ids: Tensor, positions: Tensor, masks: dict[str, Any], more: dict[str, Any]) -> Tensor:
        found = self.model(ids, masks, positions, self.cache, **more)
        return found.last_hidden_state

    def core(self) -> list[Tensor]:
        self._rewind()
        hidden, more = self.ids[..., None].to(self.model.dtype), dict(self.more)
        more.pop("use_cache")
        with projected(self.linear, self.given):
            return [layer(hidden, cache_params=self.cache, attention_mask=None, **more) for layer in self.linear]


@contextmanager
def projected(layers: list[Any], given: list[dict[str, nn.Module]]) -> Iterator[None]:
    before = [{name: getattr(layer, name) for name in names} for layer, names in zip(layers, given, strict=True)]

    def put(all_modules: list[dict[str, nn.Module]]) -> None:
        for layer, modules in zip(layers, all_modules, strict=True):
            for name, module in modules.items():
                setattr(layer, name, module)

    put(given)
    try:
        yield
    finally:
        put(before)


def _seeded(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(1)


# --- the table --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A path that ran a case, with times in seconds; or why it is left out."""

    case: str
    path: str
    tokens: int
    whole: float = 0.0
    core: float = 0.0
    base_core: float | None = None
    differs: float = 0.0
    left_out: str | None = None
    unrecorded: dict[str, str] = field(default_factory=dict)  # parts that no graph records, and why

    def line(self) -> str:
        against = "-" if self.base_core is None else f"{self.base_core / self.core:.2f}x"
        path = f"{self.path}, kernels" if self.unrecorded else self.path
        return (
            f"| {self.case} | {path} | {self.tokens / self.whole:,.0f} | {self.whole * 1e6:,.0f} us "
            f"| {self.core * 1e6:,.0f} us | {self.core / self.whole:.0%} | {against} | {self.differs:.1e} |"
        )


def distance(found: list[Tensor], wanted: list[Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(((x.float() - y.float()).norm() / y.float().norm()).item() for x, y in pairs)


def measured(model: Any, case: Case, paths: list[str], windows: int, until: float) -> list[Row]:
    """The rows of a case: first the paths that are left out, then those that ran it. `until`: when nothing begins."""
    calls: dict[Any, Timed] = {}
    outputs: dict[str, list[Tensor]] = {}
    rows = []
    for path in paths:
        start = time.monotonic()
        try:
            if path == "transformers" and case.packed:
                raise ValueError("its state runs on over the bounds of packed sequences")
            if start >= until:
                raise TimeoutError("--seconds were over")
            with PATHS[path](model):
                run = Run(model, case)
                outputs[path] = [x.clone() for x in run.core()]
            found = {(path, part): recorded(_on(path, model, getattr(run, part)), model.device) for part in PARTS}
        except Exception as error:
            outputs.pop(path, None)
            said = said_of(error)
            print(f"{case.name}: {path} is left out: {said}", file=sys.stderr)
            rows.append(Row(case.name, path, case.tokens, left_out=said))
            continue
        calls |= found
        print(f"{case.name}: {path} was ready in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
    times = medians(calls, windows, model.device)
    for path in outputs:
        differs = distance(outputs[path], outputs[next(iter(outputs))])
        whole, core, base = (times.get(key) for key in ((path, "whole"), (path, "core"), (BASE, "core")))
        unrecorded = {part: call.why for part in PARTS if isinstance(call := calls[path, part], Unrecorded)}
        for part, why in unrecorded.items():
            print(f"{case.name}: {path} has no graph of {part}, so its kernels are timed: {why}", file=sys.stderr)
        rows.append(Row(case.name, path, case.tokens, whole, core, base, differs, unrecorded=unrecorded))
    return rows


def _on(path: str, model: Any, call: Callable[[], Any]) -> Callable[[], Any]:
    def on_path() -> Any:
        with PATHS[path](model):
            return call()

    return on_path


def built(tiny: bool, layers: int, device: str) -> Any:
    config = Qwen3NextConfig(vocab_size=1024, num_hidden_layers=layers, **(TINY if tiny else {}))
    config._experts_implementation = "grouped_mm"  # a graph can record it
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3NextModel._from_config(config, dtype=torch.float32 if device == "cpu" else torch.bfloat16)
    return model.eval()


def about(device: str) -> dict[str, Any]:
    versions = {"CUDA": torch.version.cuda} if torch.version.cuda else {}
    for name in ("torch", "transformers", "triton", "fla-core", "gdnspec"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return {
        "card": "a CPU, whose times say nothing of a GPU" if device == "cpu" else torch.cuda.get_device_name(),
        "machine": platform.machine(),
        "versions": versions,
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--layers", type=int, default=4, help="every fourth has full attention")
    parser.add_argument("--paths", default=",".join(PATHS))
    parser.add_argument("--cases", default="", help="only cases whose name contains one of these, apart by ;")
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=600, help="no path of a case begins after so many")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small layers and short sequences")
    parser.add_argument("--json", type=Path, help="also write the figures here, with card, versions and commit")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.seconds
    paths = given.paths.split(",")
    if unknown := set(paths) - set(PATHS):
        parser.error(f"--paths: {', '.join(sorted(unknown))} is unknown: {', '.join(PATHS)} are known")
    cases = [x for x in (TINY_CASES if given.tiny else CASES) if any(part in x.name for part in given.cases.split(";"))]
    if not cases:
        parser.error(f"--cases: no case has {given.cases!r} in its name")
    if given.layers < 1 or given.windows < 1:
        parser.error("--layers and --windows take 1 and more")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("no CUDA GPU here: --tiny --device cpu tries the script")
    if given.json and not given.json.absolute().parent.is_dir():
        parser.error(f"--json: there is no folder {given.json.parent}: make it first")
    if given.device == "cpu" and not given.tiny:
        parser.error("--device cpu takes --tiny as well: the layers are too large for a CPU")
    model = built(given.tiny, given.layers, given.device)
    facts, rows = about(given.device), []
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    print(f"{facts['card']} ({facts['machine']}): {versions}")
    print(f"\n| case | path | tokens/s | whole | core | core of whole | core, {BASE} / this | differs |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    with torch.no_grad():
        for case in cases:
            for row in measured(model, case, paths, given.windows, until):
                rows.append(asdict(row))
                if row.left_out is None:
                    print(row.line(), flush=True)
    if given.json:
        given.json.write_text(json.dumps({**facts, "layers": given.layers, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

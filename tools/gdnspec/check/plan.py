"""Which workloads are run on which solutions, and which of them cannot be."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache

from gdnspec import __version__, paths
from gdnspec.build.machine import Device, environment, lacking
from gdnspec.build.reference import code_hash
from gdnspec.catalog.definitions import Found, preset_of
from gdnspec.catalog.solutions import Solution
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.expression import ExpressionError, parse
from gdnspec.model.solution import Entry
from gdnspec.model.workload import Workload

# The interpreter takes about 2.6 ms for a token of a (sequence, head).
INTERPRETER_LIMIT = 2000


@dataclass(frozen=True)
class Extras:
    """What is looked at beside the verdict: each symmetry by itself; errors by position. `repeats`: how often each call
    is repeated, None for what is usual on the device."""

    symmetries: bool = False
    errors: bool = False
    repeats: int | None = None


@dataclass(frozen=True, eq=False)
class Job:
    """One verdict to be had. `unsupported` says why there will be none."""

    solution: Solution
    found: Found
    workload: Workload
    device: Device
    unsupported: str | None = None
    extras: Extras = Extras()

    @property
    def entry(self) -> Entry:
        return self.solution.manifest.entries[self.found.definition.name]

    @property
    def vanishing(self) -> bool:
        """Whether so little of a state is left that scaling by powers of two need not be exact."""
        return self.workload.regime in self.found.family.about.vanishing

    @property
    def interpreted(self) -> bool:
        return interpreted(self.solution, self.device)

    def key(self) -> str:
        """Names everything that the verdict depends on."""
        parts = [
            __version__,
            code_hash(self.found.family),
            judge_hash(),
            self.solution.source_hash,
            self.found.definition.model_dump(mode="json"),
            self.workload.model_dump(mode="json"),
            preset_of(self.found, self.workload).model_dump(mode="json"),
            environment(self.device),
            self._tensors_hash(),
            asdict(self.extras),
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def _tensors_hash(self) -> str | None:
        if self.workload.tensors is None or self.workload.sha256 is not None:
            return None
        return hashlib.sha256(self.found.tensors(self.workload.tensors).read_bytes()).hexdigest()


@cache
def judge_hash() -> str:
    """sha256 over this package's own sources: another judge, another verdict."""
    digest = hashlib.sha256()
    for file in sorted(paths.PACKAGE.rglob("*.py")):
        digest.update(str(file.relative_to(paths.PACKAGE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def plan(
    solutions: list[Solution],
    selected: list[tuple[Found, list[Workload]]],
    device: Device,
    extras: Extras = Extras(),  # frozen
) -> Iterator[Job]:
    """Jobs, solution by solution: each has one child."""
    for solution in solutions:
        reason = lacking(solution.manifest, device)
        for found, workloads in selected:
            entry = solution.manifest.entries.get(found.definition.name)
            if entry is None:
                continue
            for workload in workloads:
                why = reason or _unsupported(solution, entry, found, workload, device)
                yield Job(solution, found, workload, device, why, extras)


def _unsupported(solution: Solution, entry: Entry, found: Found, workload: Workload, device: Device) -> str | None:
    if workload.device == "cuda" and device.kind != "cuda":
        return "the workload is for a CUDA GPU"
    scope = workload.scope(found.definition, preset_of(found, workload))
    outside = beyond(entry, found.definition, scope, device.kind, workload)
    if outside is not None:
        return outside
    if interpreted(solution, device):
        programs = token_programs(found.definition, scope)
        if programs > INTERPRETER_LIMIT:
            return f"interpreted on a CPU only up to {INTERPRETER_LIMIT} token-programs ({programs} here)"
    return None


def beyond(entry: Entry, definition: Definition, scope: Scope, device: str, workload: Workload) -> str | None:
    """The condition of `supports` that a call does not meet: one of this shape, its tensors laid out as the workload's
    are."""
    # A switch that a line does not mention has its default.
    switches = {t.name: parse(t.default or "True").evaluate({}) for t in definition.inputs if t.is_switch}
    dtypes = {f"{t.name}_dtype": t.dtype for t in definition.inputs}
    names: Scope = {**switches, **scope, **dtypes, "device": device, "contiguous": workload.contiguous(definition)}
    for text in entry.supports:
        try:
            if not parse(text).holds(names):
                return f"the solution supports {'contiguous inputs alone' if text == 'contiguous' else text}"
        except ExpressionError as error:
            return f"supports: {error}"
    return None


def interpreted(solution: Solution, device: Device) -> bool:
    """Triton without a GPU."""
    return solution.manifest.language == "triton" and device.kind == "cpu"


def token_programs(definition: Definition, scope: Scope) -> int:
    """Tokens times heads: what an interpreted kernel's time goes with."""
    return roles.tokens(definition, scope) * roles.heads(definition, scope)

"""Plans which workloads run on which solutions, and why some cannot run."""

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
from gdnspec.catalog.supports import unmet
from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Scope
from gdnspec.model.solution import Entry
from gdnspec.model.workload import Workload

# Token-programs (tokens times heads): the interpreter takes about 2.6 ms for each.
INTERPRETER_LIMIT = 2000
# A larger interpreted call is made only once, unless --repeat asks for more.
ONCE = 300


@dataclass(frozen=True)
class Extras:
    """Optional extra checks. `symmetries`: run each symmetry separately. `errors`: report errors by position.
    `repeats`: how often to repeat each call; None means the default of the device. `invariance`: instead of all further
    calls, ask whether the bits of a sequence depend on the rest of its batch."""

    symmetries: bool = False
    errors: bool = False
    repeats: int | None = None
    invariance: bool = False


@dataclass(frozen=True, eq=False)
class Job:
    """One check that leads to one verdict. `unsupported`: why it cannot run, or None."""

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
        """Whether states become so small that scaling by powers of two need not be exact."""
        return self.workload.regime in self.found.family.about.vanishing

    @property
    def interpreted(self) -> bool:
        return interpreted(self.solution, self.device)

    def key(self) -> str:
        """A hash of everything that the verdict depends on."""
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
    """sha256 over this package's sources: another judge may give another verdict."""
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
    """The jobs, grouped by solution: each solution runs in one child process."""
    for solution in solutions:
        reason = lacking(solution.manifest, device)
        for found, workloads in selected:
            entry = solution.manifest.entries.get(found.definition.name)
            if entry is None:
                continue
            for workload in workloads:
                limit = ONCE if extras.invariance else INTERPRETER_LIMIT
                why = reason or _unsupported(solution, entry, found, workload, device, limit)
                yield Job(solution, found, workload, device, why, extras)


def _unsupported(
    solution: Solution, entry: Entry, found: Found, workload: Workload, device: Device, limit: int
) -> str | None:
    if workload.device == "cuda" and device.kind != "cuda":
        return "the workload needs a CUDA GPU"
    scope = workload.scope(found.definition, preset_of(found, workload))
    outside = unmet(entry, found.definition, scope, device.kind, workload.contiguous(found.definition))
    if outside is not None:
        return outside
    if interpreted(solution, device):
        programs = token_programs(found.definition, scope)
        if programs > limit:
            return (
                f"{programs} token-programs are too many for Triton's interpreter on a CPU "
                f"(at most {limit}): run it on a GPU"
            )
    return None


def interpreted(solution: Solution, device: Device) -> bool:
    """Whether Triton's interpreter runs the solution, because there is no GPU."""
    return solution.manifest.language == "triton" and device.kind == "cpu"


def token_programs(definition: Definition, scope: Scope) -> int:
    """Tokens times heads: the time of an interpreted kernel is proportional to it."""
    return roles.tokens(definition, scope) * roles.heads(definition, scope)

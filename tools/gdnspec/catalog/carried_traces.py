"""Which traces were measured with other sources that do the same: proofs that `gdnspec traces carry` has written."""

from functools import cache
from pathlib import Path

from gdnspec.catalog.earlier import measured_as
from gdnspec.catalog.solutions import TRACES, Solution
from gdnspec.model.carried import Carried
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import load
from gdnspec.model.solution import KEPT_PROOFS

CARRIED = Path(TRACES) / KEPT_PROOFS


def carried_over(source_hash: str, solution: Solution, definition: str, workload: str) -> Carried | None:
    """The proof that today's sources launch on a workload what those with this hash did; None without one."""
    for proof in proofs(solution.folder):
        if proof.solution != solution.name:
            continue
        row = any((same.definition, same.workload) == (definition, workload) for same in proof.same)
        if row and proof.before == source_hash and proof.after in measured_as(solution, definition):
            return proof
    return None


def proof_files(folder: Path) -> list[Path]:
    """The files of proofs below a solution's folder."""
    return sorted((folder / CARRIED).glob("*.json"))


@cache
def proofs(folder: Path) -> list[Carried]:
    """Those that can be read: one that cannot proves nothing, and `gdnspec validate` says so."""
    found = []
    for file in proof_files(folder):
        try:
            found.append(load_proof(file))
        except SpecError:
            continue
    return found


def load_proof(file: Path) -> Carried:
    """One proof; raises `SpecError` where it is none, or of another solution than the one that it lies with."""
    proof, name = load(Carried, file), file.parents[2].name
    if proof.solution.split(":")[0] != name:
        raise SpecError([Problem(file, f"{proof.solution!r} in the folder of {name!r}", "/solution")])
    return proof

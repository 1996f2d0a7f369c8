"""Finds traces that were measured with other sources but the same machine code, by the proofs of `gdnspec traces
carry`."""

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
    """The proof that today's sources launch on this workload what the sources with this hash launched, or None."""
    for proof in proofs(solution.folder):
        if proof.solution != solution.name:
            continue
        row = any((same.definition, same.workload) == (definition, workload) for same in proof.same)
        if row and proof.before == source_hash and proof.after in measured_as(solution, definition):
            return proof
    return None


def proof_files(folder: Path) -> list[Path]:
    """The proof files of a solution, below its folder."""
    return sorted((folder / CARRIED).glob("*.json"))


@cache
def proofs(folder: Path) -> list[Carried]:
    """The readable proofs of a solution. The others prove nothing; `gdnspec validate` reports them."""
    found = []
    for file in proof_files(folder):
        try:
            found.append(load_proof(file))
        except SpecError:
            continue
    return found


def load_proof(file: Path) -> Carried:
    """One proof. Raises `SpecError` if the file is not valid, or proves something about another solution."""
    proof, name = load(Carried, file), file.parents[2].name
    if proof.solution.split(":")[0] != name:
        message = f"the proof is about {proof.solution!r}, but it is in the folder of {name!r}"
        raise SpecError([Problem(file, message, "/solution")])
    return proof

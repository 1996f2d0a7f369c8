"""Judge outputs in files by the rules of `gdnspec check`."""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from gdnspec import __version__
from gdnspec.build.reference import code_hash
from gdnspec.catalog.families import same_families
from gdnspec.check.plan import judge_hash
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.inputs.tensor_file import Entry
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.model.vectors import VectorWorkload
from gdnspec.model.workload import Workload
from gdnspec.numerics.expected import Expected
from gdnspec.numerics.judge import Verdict, judge_all
from gdnspec.numerics.pools import left, untouched
from gdnspec.numerics.torch_arrays import to_torch
from gdnspec.sandbox.wire.arena import TORCH
from gdnspec.vectors import outputs as files
from gdnspec.vectors import plain
from gdnspec.vectors.describe import file_name
from gdnspec.vectors.read_back import Folder

DEVICE = "files"  # the device that computed the outputs is unknown


@dataclass(frozen=True, eq=False)
class Judged:
    """The verdict on a workload, and the verdicts on its outputs if their numbers were compared."""

    verdict: Verdict
    outputs: list[Verdict] = field(default_factory=list)


class Judge:
    """Judges a folder of outputs. Both folders must have been checked: `read_back.read`, `outputs.require_whole`."""

    def __init__(self, folder: Folder, outputs: Path, warn: Callable[[str], None]) -> None:
        self.folder, self.outputs = folder, outputs
        self._expected = Expected("cpu", warn)

    def run(self) -> Iterator[CheckResult]:
        """Yields one result per workload."""
        for entry in self.folder.workloads:
            yield self._result(entry)

    def _result(self, entry: VectorWorkload) -> CheckResult:
        definition, path = self.folder.found.definition, self.outputs / file_name(entry.workload)
        digest = hashlib.sha256()
        with plain.opened(path) as (file, size):
            found = files.tensors(file, size, path, definition)
            fault = _form(found, entry)
            got = {}
            # A tensor of another shape or type may have any size, so it is not read.
            for name, place in found.items() if fault is None else ():
                data = files.data(file, place, path)
                digest.update(data)
                got[name] = _tensor(data, place)
        judged = Judged(fault) if fault is not None else self._judge(entry.workload, got)
        return self._record(entry.workload, judged, [[*map(str, found.items())], digest.hexdigest()])

    def _judge(self, line: Workload, got: dict[str, Tensor]) -> Judged:
        found = self.folder.found
        try:
            inputs: Inputs = materialise(found, line)  # never read from the user's folder
            expected = self._expected.values(found, inputs)
        except InvalidWorkload as error:
            return Judged(Verdict("INVALID_WORKLOAD", str(error)))
        except MemoryError:
            # A workload that is not judged must not count as passed.
            raise SpecError(
                f"out of memory at workload {line.name!r}: this and later workloads were not judged"
            ) from None
        before = {name: to_torch(array) for name, array in inputs.tensors.items()}
        fault = untouched(found.definition, before, got)
        if fault is not None:
            return Judged(fault)
        got |= left(found.definition, got, inputs.scope)
        verdicts = judge_all(got, expected, found.definition, line, inputs.scope)
        return Judged(next((v for v in verdicts if v.status != "PASSED"), verdicts[0]), verdicts)

    def _record(self, line: Workload, judged: Judged, answer: list[object]) -> CheckResult:
        definition, folders = self.folder.found.definition, (str(self.folder.path), str(self.outputs))
        parts = [
            __version__,
            code_hash(self.folder.found.family),
            judge_hash(),
            definition.model_dump(mode="json"),
            line.model_dump(mode="json"),
            answer,
        ]
        return CheckResult(
            definition=definition.name,
            workload=line.name,
            suite=line.suite,
            solution=self.outputs.resolve().name,
            device=DEVICE,
            status=judged.verdict.status,
            message=judged.verdict.message,
            outputs=[verdict.errors for verdict in judged.outputs if verdict.errors is not None],
            repeat=shlex.join(["gdnspec", "vectors", "judge", *folders, *same_families()]),
            key=hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32],
            environment={"shipped": line.name not in self.folder.own},
        )


def _form(found: dict[str, Entry], entry: VectorWorkload) -> Verdict | None:
    """The verdict if an output has another shape or type than the manifest says; None if all are right."""
    for output in entry.outputs:
        shape = list(found[output.name].shape)
        if shape != output.shape:
            return Verdict("INCORRECT_SHAPE", f"{output.name} has shape {str(shape)[:80]}, not {output.shape}")
    for output in entry.outputs:
        dtype = found[output.name].dtype
        if dtype != output.dtype:
            return Verdict("INCORRECT_DTYPE", f"{output.name} is {ascii(dtype)[1:-1][:40]}, not {output.dtype}")
    return None


def _tensor(data: bytes, place: Entry) -> Tensor:
    if not data:
        return torch.empty(place.shape, dtype=TORCH[place.dtype])
    return torch.frombuffer(bytearray(data), dtype=TORCH[place.dtype]).reshape(place.shape)

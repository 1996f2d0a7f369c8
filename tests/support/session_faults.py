"""Wrong kernels of the table of sessions as solutions, on every smoke and conformance workload that they serve."""

import json
from collections.abc import Iterator
from pathlib import Path

from gdnspec.build.machine import device
from gdnspec.catalog.definitions import Found, definition
from gdnspec.catalog.session_faults import base, source
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import plan
from gdnspec.check.run import Checker, Options
from gdnspec.check.selftest import LONG
from gdnspec.model import roles
from gdnspec.model.result import CheckResult
from gdnspec.model.session_fault import SessionFault
from gdnspec.model.workload import Workload


def single_calls(fault: SessionFault, table: Path, folder: Path) -> Iterator[CheckResult]:
    """The results of a wrong kernel, written to `folder`, on single calls."""
    right = base(fault, table)
    manifest = right.manifest.model_dump(mode="json") | {"name": fault.name}
    manifest["entries"] = {d: manifest["entries"][d] for d in fault.definitions}
    there = folder / fault.name
    there.mkdir()
    for name in right.manifest.sources:
        (there / name).write_text((right.folder / name).read_text())
    (there / fault.edits[0].file).write_text(source(fault, table))
    (there / "solution.json").write_text(json.dumps(manifest))
    found = [definition(d) for d in fault.definitions]
    chosen = [(one, [line for line in workloads(one) if _taken(one, line)]) for one in found]
    cpu = device("cpu")
    assert cpu is not None
    jobs = list(plan([load_solution(there)], chosen, cpu))
    yield from Checker("cpu", Options(), print).run(jobs)


def _taken(found: Found, line: Workload) -> bool:
    """Smoke and conformance, without what the selftest leaves out for wrong solutions too."""
    return line.suite in ("smoke", "conformance") and roles.tokens(found.definition, line.axes) <= LONG

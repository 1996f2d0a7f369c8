"""What tests of calls beside the first need: a check of one solution, and a job of its own."""

import json
from pathlib import Path
from typing import Any

from conftest import Run
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.call import Content
from gdnspec.check.plan import Extras, Job, plan
from gdnspec.inputs.materialise import materialise


def checked(gdnspec: Run, folder: Path, name: str, *options: str) -> tuple[dict[str, dict[str, Any]], str]:
    """The results by workload, and what was said."""
    arguments = [name, "--solutions-dir", folder.parent, "--solution", folder.name, "--device", "cpu", "--seed", "4"]
    done = gdnspec("check", *arguments, "--json", "-", *options)
    return {row["workload"]: row for row in map(json.loads, done.stdout.splitlines())}, done.stderr


def on_a_cpu(folder: Path, which: str, workload: str, extras: Extras = Extras()) -> tuple[Job, Content]:  # noqa: B008
    found, device = definition(which), machine.device("cpu")
    assert device is not None
    line = next(row for row in workloads(found) if row.name == workload)
    (job,) = plan([load_solution(folder)], [(found, [line])], device, extras)
    return job, Content.of(materialise(found, line), "cpu")

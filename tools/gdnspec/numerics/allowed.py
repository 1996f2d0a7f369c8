"""The error that is allowed: what a workload's line has frozen. There is no default to fall back on."""

from gdnspec.model.budget import missing
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload


def budget(definition: Definition, output: Tensor, workload: Workload) -> dict[str, float]:
    """Metric to limit, for one output. Raises `SpecError` where the line has none."""
    if workload.budget is None or output.name not in workload.budget:
        raise unfrozen(definition, workload)
    return {str(metric): limit for metric, limit in workload.budget[output.name].items()}


def unfrozen(definition: Definition, workload: Workload) -> SpecError:
    """The error for a line that cannot be judged by."""
    names = ", ".join(missing(definition, workload.budget))
    return SpecError(
        f"workload {workload.name!r} of {definition.name} has no error budget for {names}: nothing can be judged by it "
        "(gdnspec workloads freeze writes one from honest emulators)"
    )


def require(definition: Definition, workloads: list[Workload]) -> None:
    """Raises `SpecError` for the first line without a budget, but for fresh ones and those that are judged on a sample:
    theirs is measured when they run."""
    for workload in workloads:
        if workload.suite != "fresh" and workload.judged is None and missing(definition, workload.budget):
            raise unfrozen(definition, workload)

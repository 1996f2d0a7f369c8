"""The error budget of a workload, which its line contains. There is no default."""

from gdnspec.model.budget import missing
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload


def budget(definition: Definition, output: Tensor, workload: Workload) -> dict[str, float]:
    """The limit for each metric of one output. Raises `SpecError` if the workload has none."""
    if workload.budget is None or output.name not in workload.budget:
        raise unfrozen(definition, workload)
    return {str(metric): limit for metric, limit in workload.budget[output.name].items()}


def unfrozen(definition: Definition, workload: Workload) -> SpecError:
    """The error for a workload without a budget."""
    names = ", ".join(missing(definition, workload.budget))
    return SpecError(
        f"workload {workload.name!r} of {definition.name} has no error budget for {names}, so it cannot be judged "
        "(gdnspec workloads freeze writes one from honest emulators)"
    )


def require(definition: Definition, workloads: list[Workload]) -> None:
    """Raises `SpecError` for the first workload without a budget. A check measures those of fresh and sampled ones."""
    for workload in workloads:
        if workload.suite != "fresh" and workload.judged is None and missing(definition, workload.budget):
            raise unfrozen(definition, workload)

"""The error that is allowed: what a workload's line has frozen, else a default by the kind of output."""

from gdnspec.model.definition import Definition, Tensor
from gdnspec.model.workload import Workload

DEFAULT = {"relative_l2": 0.01, "worst_vector": 0.03}
# One token from a float32 state: plain float32 arithmetic is near 1e-7, a state stored in bfloat16 shows as 1.7e-3.
ONE_TOKEN_STATE = {"relative_l2": 5e-4, "worst_vector": 1e-3}


def budget(definition: Definition, output: Tensor, workload: Workload) -> dict[str, float]:
    """Metric to limit, for one output."""
    if workload.budget is not None and output.name in workload.budget:
        return {str(metric): limit for metric, limit in workload.budget[output.name].items()}
    one_token = definition.conventions.packing == "one_token"
    exact = one_token and output.is_state and output.dtype == "float32"
    return dict(ONE_TOKEN_STATE if exact else DEFAULT)

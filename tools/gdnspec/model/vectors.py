"""A folder of test vectors: manifest.json, which says all there is to say of the tensors beside it."""

from typing import Annotated

from pydantic import Field, field_validator

from gdnspec.model.base import Model, Version1
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import DType
from gdnspec.model.elements import Name
from gdnspec.model.errors import PlacedError
from gdnspec.model.workload import Workload

Size = Annotated[int, Field(ge=0)]


class VectorTensor(Model):
    """A tensor of a workload: C order, the last dimension contiguous. A size may be 0."""

    name: Name
    dtype: DType
    shape: list[Size]


class VectorScalar(Model):
    """A scalar input. `given`: whether the workload gives it; if not, `value` is the definition's default."""

    name: Name
    dtype: DType
    value: bool | int | float
    given: bool


class VectorOutput(VectorTensor):
    """What is to be written back, and the largest error of each metric that passes."""

    budget: dict[str, float]


class VectorWorkload(Model):
    """One call.

    `workload` is its line, complete; everything else follows from the line and the definition and stands here for
    readers that have no evaluator of expressions. `axes` binds every axis. `omitted`: the input tensors that are left
    out, and the value that each of their elements has by default. `sha256` is that of the file.
    """

    workload: Workload
    axes: dict[Name, int]
    file: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    inputs: list[VectorTensor]
    omitted: dict[Name, bool | float]
    scalars: list[VectorScalar]
    outputs: list[VectorOutput]


class VectorsManifest(Model):
    """The definition in full, and every workload in the order of the suites."""

    schema_version: Version1
    definition: Definition
    workloads: Annotated[list[VectorWorkload], Field(min_length=1)]

    @field_validator("workloads")
    @classmethod
    def _distinct(cls, items: list[VectorWorkload]) -> list[VectorWorkload]:
        seen: dict[str, int] = {}
        for i, item in enumerate(items):
            name = item.workload.name
            if name in seen:
                raise PlacedError(f"/{i}/workload/name", f"{name!r} stands at /workloads/{seen[name]} already")
            seen[name] = i
        return items

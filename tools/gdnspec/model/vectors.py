"""A folder of test vectors: its manifest.json describes the tensor files beside it completely."""

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
    """A tensor of a workload, in C order (the last dimension is contiguous). A size may be 0."""

    name: Name
    dtype: DType
    shape: list[Size]


class VectorScalar(Model):
    """A scalar input. `given`: whether the workload gives its value; otherwise `value` is the definition's default."""

    name: Name
    dtype: DType
    value: bool | int | float
    given: bool


class VectorOutput(VectorTensor):
    """A tensor to write back, and the largest error that passes for each metric."""

    budget: dict[str, float]


class VectorWorkload(Model):
    """One call.

    `workload` is the complete workload line. Everything else follows from the line and the definition; it is here for
    readers without an evaluator of expressions. `axes` binds every axis. `omitted` maps each input tensor that is left
    out to the default value of its elements. `sha256` is the hash of the file.
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
    """The complete definition, and every workload in the order of the suites."""

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
                raise PlacedError(f"/{i}/workload/name", f"/workloads/{seen[name]} already has the name {name!r}")
            seen[name] = i
        return items

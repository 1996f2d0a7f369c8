"""The parts of FlashInfer-Bench's JSON that are read here. Other keys are ignored, as its own loader does."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1)]


class Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Axis(Foreign):
    type: Literal["const", "var"]
    value: Annotated[int, Field(ge=0)] | None = None


class Tensor(Foreign):
    shape: list[Text] | None
    dtype: Text
    optional: bool = False
    description: str | None = None


class Definition(Foreign):
    name: Text
    op_type: Text
    axes: dict[Text, Axis]
    inputs: dict[Text, Tensor]
    outputs: dict[Text, Tensor]
    reference: Text
    tags: list[Text] = []
    constraints: list[Text] = []
    description: str | None = None


class Source(Foreign):
    path: Text
    content: Text


class Spec(Foreign):
    language: Text
    target_hardware: list[str]
    entry_point: Annotated[str, Field(pattern=r"^[^:]+::[^:]+$")]
    dependencies: list[str] = []
    destination_passing_style: bool = True
    binding: str | None = None


class Solution(Foreign):
    name: Text
    definition: Text
    author: Text
    spec: Spec
    sources: Annotated[list[Source], Field(min_length=1)]
    description: str | None = None


class Given(Foreign):
    type: Literal["random", "scalar", "safetensors"]
    value: int | float | bool | None = None
    path: str | None = None
    tensor_key: str | None = None


class Workload(Foreign):
    axes: dict[str, Annotated[int, Field(ge=0)]]
    inputs: dict[str, Given]
    uuid: Text


class Evaluation(Foreign):
    status: Text
    environment: dict[str, Any] = {}
    timestamp: str = ""
    correctness: dict[str, Any] | None = None
    performance: dict[str, Any] | None = None


class Trace(Foreign):
    definition: Text
    workload: Workload
    solution: str | None = None
    evaluation: Evaluation | None = None

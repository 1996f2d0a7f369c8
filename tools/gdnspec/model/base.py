"""The base of every model: frozen, closed, strict, and helpful about a misspelt key."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema, model_validator

from gdnspec.model.errors import NEAR, PlacedError, json_pointer, nearest


def _version_1(version: Any) -> Any:
    if type(version) is not int or version != 1:  # True == 1 == 1.0
        raise PlacedError("", f"version {version!r}; this gdnspec reads version 1")
    return version


# Not Literal[1], which takes true and 1.0 for it.
Version1 = Annotated[int, BeforeValidator(_version_1), WithJsonSchema({"const": 1, "type": "integer"})]


class Model(BaseModel):
    """Frozen; unknown keys are errors that name the nearest valid key; no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)
    most_bytes: ClassVar[int] = 64 << 20  # of a file that holds one: a larger one is not parsed

    @model_validator(mode="before")
    @classmethod
    def _unknown_keys(cls, data: Any) -> Any:
        fields = cls.__pydantic_fields__  # model_fields costs more, and this is asked of every object of every line
        if isinstance(data, dict) and not data.keys() <= fields.keys():
            key = next(key for key in data if key not in fields)
            hint = nearest(str(key), [name for name in fields if name not in data])
            hint = hint if hint.startswith(NEAR) else nearest(str(key), fields)
            raise PlacedError(json_pointer(key), f"unknown key {key!r}", hint)
        return data

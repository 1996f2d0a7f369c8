"""The base of every model: frozen, closed, strict, and helpful about a misspelt key."""

from functools import cache, partial
from typing import Annotated, Any, ClassVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema
from pydantic_core import CoreSchema, SchemaValidator
from pydantic_core.core_schema import no_info_before_validator_function

from gdnspec.model.errors import NEAR, PlacedError, json_pointer, nearest


def _version_1(version: Any) -> Any:
    if type(version) is not int or version != 1:  # True == 1 == 1.0
        raise PlacedError("", f"version {version!r} is unknown: this gdnspec reads version 1")
    return version


# Not Literal[1], which accepts true and 1.0 as well.
Version1 = Annotated[int, BeforeValidator(_version_1), WithJsonSchema({"const": 1, "type": "integer"})]


class Model(BaseModel):
    """A frozen model: an unknown key is an error, and no type is converted silently."""

    model_config = ConfigDict(allow_inf_nan=False, extra="forbid", frozen=True, strict=True, defer_build=True)
    most_bytes: ClassVar[int] = 64 << 20  # size limit of a file of this model: a larger one is not parsed


@cache
def explaining(model: type[BaseModel]) -> SchemaValidator:
    """A validator that accepts what the model accepts, and names the nearest valid key for an unknown one. It is 1.5
    times as slow as the model's own, so it is built only after that one has found a problem."""
    model.model_rebuild()
    # By default the core reuses the prebuilt validators of the classes, which give no hints.
    return SchemaValidator(_with_hints(model.__pydantic_core_schema__), _use_prebuilt=False)


def _with_hints(schema: Any) -> Any:
    """The core schema, in which every model checks its keys before anything else."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_hints, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_hints(value) for key, value in schema.items()}
    if schema.get("type") == "model" and issubclass(schema["cls"], Model):
        ref = inner.pop("ref", None)
        return no_info_before_validator_function(
            partial(_known_keys, schema["cls"]), cast("CoreSchema", inner), ref=ref
        )
    return inner


def _known_keys(model: type[Model], data: Any) -> Any:
    fields = model.__pydantic_fields__
    if isinstance(data, dict) and not data.keys() <= fields.keys():
        key = next(key for key in data if key not in fields)
        hint = nearest(str(key), [name for name in fields if name not in data])
        hint = hint if hint.startswith(NEAR) else nearest(str(key), fields)
        raise PlacedError(json_pointer(key), f"unknown key {key!r}", hint)
    return data

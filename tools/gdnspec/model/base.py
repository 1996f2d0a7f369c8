"""The base of every model: frozen, closed, strict, and helpful about a misspelt key."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from gdnspec.model.errors import PlacedError, nearest


class Model(BaseModel):
    """Frozen; unknown keys are errors that name the nearest valid key; no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in data:
                if key not in cls.model_fields:
                    free = [name for name in cls.model_fields if name not in data]
                    raise PlacedError(f"/{key}", f"unknown key {key!r}", nearest(str(key), free or cls.model_fields))
        return data

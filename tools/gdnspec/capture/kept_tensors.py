"""Files with the tensors of recorded calls."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from gdnspec.inputs.contract import Regrouped


def save(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes the file completely or not at all. Raises `OSError`."""
    partial = path.with_suffix(".partial")
    try:
        save_file(dict(tensors), partial, metadata={"provenance": "recorded by gdnspec.capture"})
        partial.replace(path)
    except Exception as error:  # for a full disk, the library raises its own error without a number
        raise error if isinstance(error, OSError) else OSError(f"{path}: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def regroup(path: Path, change: Regrouped) -> None:
    """Applies a change to a file's tensors. Raises `OSError`."""
    save(change.tensors(load_file(path)), path)

"""Choose the calls whose tensors are kept: of each kind the first, the 4th, the 16th and so on, within limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnspec.inputs.contract import CallReader
from gdnspec.model.errors import SpecError

FORMS = "none, sample:N or all"


class Sample:
    """Keeps tensors of at most `most` calls and `most_bytes` bytes in `folder`, which is made when needed. `text`:
    none, sample:N or all. Raises `SpecError`."""

    def __init__(self, text: str, folder: Path, most_bytes: int) -> None:
        kind, _, count = text.partition(":")
        counted = kind == "sample" and count.isascii() and count.isdigit() and len(count) < 10 and int(count) > 0
        if text not in ("none", "all") and not counted:
            raise SpecError(f"tensors {text!r}: use {FORMS}")
        self.every = text == "all"
        self.most = int(count) if counted else 0 if text == "none" else 1 << 62
        self.folder, self.most_bytes = folder, most_bytes
        self.kept = self.bytes = 0
        self.too_large = 0  # calls whose tensors would have exceeded the limit

    def wants(self, times: int) -> bool:
        """Whether to keep the tensors of a call. `times`: how many calls of its kind there were, including this one."""
        return self.kept < self.most and (self.every or (times & (times - 1) == 0 and times.bit_length() % 2 == 1))

    def keep(self, reader: CallReader, call: Mapping[str, Any], seen: Any) -> str | None:
        """Writes the tensors and returns the path for the workload's line; None if they would exceed the limit. Raises
        `OSError`, and any error of a tensor without values."""
        if self.bytes + reader.size(seen) > self.most_bytes:  # before tensors are copied, which is slow
            self.too_large += 1
            return None
        from gdnspec.capture.kept_tensors import save

        tensors = reader.tensors(call, seen)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.kept}.safetensors"
        save(tensors, path)
        self.kept += 1
        self.bytes += sum(x.numel() * x.element_size() for x in tensors.values())
        return f"{self.folder.name}/{path.name}"

"""Of which calls the tensors are kept: the first of each kind, then its 4th, 16th and so on, within limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnspec.inputs.contract import CallReader
from gdnspec.model.errors import SpecError

FORMS = "none, sample:N or all"


class Sample:
    """`most` calls, `most_bytes` of tensors, in `folder`, which is made when it is needed."""

    def __init__(self, text: str, folder: Path, most_bytes: int) -> None:
        kind, _, count = text.partition(":")
        counted = kind == "sample" and count.isascii() and count.isdigit() and len(count) < 10 and int(count) > 0
        if text not in ("none", "all") and not counted:
            raise SpecError(f"tensors {text!r} is not one of {FORMS}")
        self.every = text == "all"
        self.most = int(count) if counted else 0 if text == "none" else 1 << 62
        self.folder, self.most_bytes = folder, most_bytes
        self.kept = self.bytes = 0
        self.too_large = 0  # calls whose tensors would have passed the limit

    def wants(self, times: int) -> bool:
        """Whether the tensors of a call of a kind are wanted, its so many'th."""
        return self.kept < self.most and (self.every or (times & (times - 1) == 0 and times.bit_length() % 2 == 1))

    def keep(self, reader: CallReader, call: Mapping[str, Any], seen: Any) -> str | None:
        """Writes the tensors; the path that a line names, None where they would pass the limit. Raises `OSError`, and
        whatever a tensor that has no values raises."""
        if self.bytes + reader.size(seen) > self.most_bytes:  # before a copy that takes long
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

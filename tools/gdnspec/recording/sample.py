"""Of which calls the tensors are kept: the first of each kind, then its 4th, 16th and so on, within limits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdnspec.model.definition import Definition
from gdnspec.model.errors import SpecError
from gdnspec.recording.bound import Seen

FORMS = "none, sample:N or all"


class Sample:
    """`most` calls, `most_bytes` of tensors, in `folder`, which is made when it is needed."""

    def __init__(self, text: str, folder: Path, most_bytes: int) -> None:
        kind, _, count = text.partition(":")
        if text not in ("none", "all") and not (kind == "sample" and count.isdigit() and int(count) > 0):
            raise SpecError(f"tensors {text!r} is not one of {FORMS}")
        self.every = text == "all"
        self.most = 0 if text == "none" else int(count) if count else 1 << 62
        self.folder, self.most_bytes = folder, most_bytes
        self.kept = self.bytes = 0
        self.too_large = 0  # calls whose tensors would have passed the limit

    def wants(self, times: int) -> bool:
        """Whether the tensors of a call of a kind are wanted, its so many'th."""
        return self.kept < self.most and (self.every or (times & (times - 1) == 0 and times.bit_length() % 2 == 1))

    def keep(self, definition: Definition, call: Mapping[str, Any], shape: Seen, repeats: int) -> str | None:
        """Writes the tensors; the path that a line names, None where they would pass the limit. Raises `OSError`."""
        from gdnspec.recording.tensors import inputs, save

        tensors = inputs(definition, call, shape, repeats)
        size = sum(x.numel() * x.element_size() for x in tensors.values())
        if self.bytes + size > self.most_bytes:
            self.too_large += 1
            return None
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self.kept}.safetensors"
        save(tensors, path)
        self.kept += 1
        self.bytes += size
        return f"{self.folder.name}/{path.name}"

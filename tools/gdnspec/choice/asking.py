"""A question in words, as a call: a preset, lengths or a batch, a device."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gdnspec.catalog.definitions import Found
from gdnspec.catalog.device_names import cpu_name, slug
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.traces import trace_files
from gdnspec.choice.candidates import Asked
from gdnspec.model import roles
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.errors import PlacedError, SpecError, nearest
from gdnspec.model.expression import ExpressionError
from gdnspec.model.preset import Preset

INTERVAL = 512  # of integer scalars that a call must give: they count tokens
MOST = 1 << 20  # sequences, and tokens of one


def lengths_of(text: str) -> list[int]:
    """`4x2048` or `300,1200` or both, as the lengths of sequences. Raises `SpecError`."""
    found: list[int] = []
    for part in text.split(","):
        count, length = part.strip().split("x", 1) if "x" in part else ("1", part.strip())
        if not (count.isdecimal() and length.isdecimal() and 1 <= int(count) <= MOST and int(length) <= 256 * MOST):
            raise SpecError(f"--lengths: {part.strip()!r} is not COUNTxTOKENS or TOKENS, such as 4x2048 or 300,1200")
        found += [int(length)] * int(count)
        if len(found) > MOST:
            raise SpecError(f"--lengths: more than {MOST:,} sequences")
    return found


def batch_of(found: Found, lengths: str | None, batch: int | None, tokens: int | None) -> list[int]:
    """The lengths of the sequences, or the tokens of each row. Raises `SpecError` if they do not fit the definition."""
    definition = found.definition
    if definition.conventions.packing == "ragged":
        if lengths is None or batch is not None or tokens is not None:
            raise SpecError(f"{definition.name} takes sequences: give --lengths, such as --lengths 1x8192")
        return lengths_of(lengths)
    drafts = roles.axis(definition, "drafts")
    if lengths is not None or batch is None:
        raise SpecError(f"{definition.name} takes rows: give --batch, such as --batch 8")
    if tokens is not None and drafts is None:
        raise SpecError(f"{definition.name} takes one token per row: leave out --tokens")
    return [tokens or (4 if drafts else 1)] * batch


def ask(found: Found, preset: Preset, name: str, each: Sequence[int], device: str) -> Asked:
    """The call. Raises `SpecError` if the preset is not for this definition."""
    definition = found.definition
    lacking = [axis for axis in definition.const_axes() if axis not in preset.axes]
    if lacking:
        raise SpecError(f"preset {name!r} gives axis {lacking[0]!r} of {definition.name} no value")
    if preset.stages is not None and definition.stage not in preset.stages:
        raise SpecError(f"preset {name!r} is for {', '.join(preset.stages)}, not {definition.stage}")
    const = {axis: preset.axes[axis] for axis in definition.const_axes()}
    scalars = scalars_of(found)
    try:
        scope = definition.bind(const | roles.sizes(definition, each, scalars)) | scalars
    except (PlacedError, ExpressionError) as error:
        raise SpecError(f"preset {name!r} does not fit {definition.name}: {error}") from None
    for _, _, why in definition.broken(scope):
        raise SpecError(f"preset {name!r} does not fit {definition.name}: {why}")
    ragged = definition.conventions.packing == "ragged"
    kind = "cpu" if device == slug(cpu_name()) else "cuda"
    return Asked(found, scope, kind, device, True, tuple(each) if ragged else None)


def scalars_of(found: Found) -> dict[str, int]:
    """A value for each integer scalar that a call must give, such as the interval of checkpoints."""
    needed = (t for t in found.definition.inputs if t.is_scalar and t.dtype in INTEGERS and not t.optional)
    return {tensor.name: INTERVAL for tensor in needed}


def device_of(name: str | None) -> str:
    """The slug of the device to choose for: cpu for this machine's processor; by default its GPU, or the device
    on which most solutions have been timed. Raises `SpecError` if the name is not one of a device with traces."""
    files = [file for solution in solutions()[0].values() for file in trace_files(solution)]
    measured = {file.stem for file in files}
    mine = gpu_name()
    known = {*measured, "cpu"} | ({slug(mine)} if mine else set())
    if name in ("cpu", slug(cpu_name())):
        return slug(cpu_name())
    if name is not None and name not in known:
        raise SpecError(f"--device: nothing was measured on {name!r} ({nearest(name, known)})")
    if name is None and mine is None and not measured:
        raise SpecError(f"--device: choose one of {', '.join(sorted(known))}")
    if name is not None:
        return name
    if mine is not None:
        return slug(mine)
    timed = Counter(file.stem for file in files if _has_times(file))
    return max(sorted(measured), key=timed.__getitem__)


def _has_times(file: Path) -> bool:
    """Whether a trace in it has a time: what was found about other batches has none."""
    with file.open() as lines:
        return any('"timing": {' in line for line in lines)


def gpu_name() -> str | None:
    """The name of this machine's first GPU, as the driver says it; None if there is no driver or no GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    try:
        words = [program, "--query-gpu=name", "--format=csv,noheader"]
        said = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    return said[0].strip() or None if said else None

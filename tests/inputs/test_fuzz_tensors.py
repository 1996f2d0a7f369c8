"""Captured tensors that are wrong: safetensors files cut, lengthened, mislabelled and changed, thousands of them.

What is not refused is bit for bit what was recorded.
"""

import json
import math
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gdnspec.catalog.definitions import Found, definition
from gdnspec.cli.commands.validate import validate
from gdnspec.inputs import raw
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from helpers_fuzz import SEED, TENSORS, Tally, put, soon, stands
from helpers_mutations import NO_JSON, ODD, TWICE, Raw, places, replaced, text_of
from helpers_unit import drawn, line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CODES = {name: code for code, name in raw.DTYPES.items()}
SMALL = "synthetic-gva-1x2-d64"
PREFILL, DECODE = definition("gdn_prefill_k_last"), definition("gdn_decode_k_last")
BOTH = pytest.mark.parametrize("found", [PREFILL, DECODE], ids=lambda found: found.definition.name)


@dataclass(frozen=True, eq=False)
class Recording:
    """Drawn inputs as a safetensors file: its header as a tree, its data, and the line that reads it."""

    found: Found
    inputs: Inputs
    header: dict[str, Any]
    data: bytes
    workload: Workload

    def content(self, header: Any = None, data: bytes | None = None, length: int | None = None) -> bytes:
        text = text_of(self.header if header is None else header).encode()
        start = struct.pack("<Q", (len(text) if length is None else length) % (1 << 64))
        return start + text + (self.data if data is None else data)

    def at(self, folder: Path) -> tuple[Path, Found]:
        """Where the file goes, and the definition as found beside it."""
        return folder / "x.safetensors", Found(self.found.definition, folder, self.found.family)


def recording(found: Found) -> Recording:
    return _recording(found.definition.name)


@cache
def _recording(of: str) -> Recording:
    found = definition(of)
    size = {"lengths": (3, 0, 2)} if of == PREFILL.definition.name else {"batch": 2}
    inputs = drawn(found, SMALL, **size)
    header, data = {}, b""
    for name, array in inputs.tensors.items():
        content = array.data.tobytes()
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": CODES[array.dtype], "shape": list(array.shape), "data_offsets": offsets}
        data += content
    row = line(found, SMALL, **size).model_dump(exclude_defaults=True, exclude={"regime", "seed", "sequence_lengths"})
    row |= {"tensors": "x.safetensors", "sha256": inputs.sha256}
    return Recording(found, inputs, header, data, Workload.model_validate(row))


def bits(inputs: Inputs) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {name: (array.dtype, array.shape, array.data.tobytes()) for name, array in inputs.tensors.items()}


def read(tally: Tally, of: Recording, folder: Path, what: str, content: bytes, refused: bool) -> None:
    """The file as `validate` reads it and as a check does: refused, or the very tensors that were recorded."""
    file, found = of.at(folder)
    put(file, content)
    tally.attempt(what, lambda: raw.read_inputs(file, found.definition, ()), file, refused)
    try:
        with soon(what):
            inputs = materialise(found, of.workload)
    except InvalidWorkload as error:
        assert str(error), what
        assert "\n" not in str(error) or "x.safetensors" in str(error), what
    else:
        assert not refused, what
        assert bits(inputs) == bits(of.inputs), f"{what}: other tensors, and nobody minds"


def test_the_file_as_it_stands_is_read(tmp_path: Path) -> None:
    for found in (PREFILL, DECODE):
        tally, of = Tally(), recording(found)
        read(tally, of, tmp_path, "as it is", of.content(), refused=False)
        read(tally, of, tmp_path, "padded", of.content()[:0] + padded(of, b" " * 64), refused=False)
        assert materialise(of.at(tmp_path)[1], of.workload).sha256 == of.inputs.sha256
        assert tally.accepted == 2


def padded(of: Recording, spaces: bytes) -> bytes:
    """The library pads headers with spaces."""
    text = text_of(of.header).encode() + spaces
    return struct.pack("<Q", len(text)) + text + of.data


@BOTH
def test_a_file_cut_anywhere_is_refused(found: Found, tmp_path: Path) -> None:
    """Every byte of the length and of the header, and places all over the data; and a file that goes on."""
    of, tally, rng = recording(found), Tally(), random.Random(SEED)
    whole = of.content()
    start = len(whole) - len(of.data)
    for length in [*range(start + 16), *rng.sample(range(start, len(whole)), 60), len(whole) - 1]:
        read(tally, of, tmp_path, f"the first {length} bytes", whole[:length], refused=True)
    for more in (b"\0", b"{}", whole):
        read(tally, of, tmp_path, "with more behind it", whole + more, refused=True)
    assert tally.refused >= TENSORS["cut"] // 2


@BOTH
def test_a_header_length_that_lies_is_refused(found: Found, tmp_path: Path) -> None:
    of, tally, rng = recording(found), Tally(), random.Random(SEED)
    true = len(text_of(of.header))
    near = [true + d for d in range(-60, 61) if d]
    far = [0, 1, 2, 8, len(of.data), true + len(of.data), true + len(of.data) + 1]
    powers = [2**n + d for n in range(8, 65, 4) for d in (-1, 0, 1)]
    for length in [*near, *far, *powers, *(rng.getrandbits(rng.randint(1, 64)) for _ in range(20))]:
        if length % 2**64 != true:
            read(tally, of, tmp_path, f"length {length}", of.content(length=length), refused=True)
    assert tally.refused >= TENSORS["length"] // 2


def never(of: Recording, place: tuple[str | int, ...], new: Any) -> bool:
    """Whether a header with this in this place cannot be a whole file of these inputs."""
    if isinstance(new, Raw) or len(place) < 2:
        return True
    old = of.header[place[0]][place[1]]
    for part in place[2:]:
        old = old[part]
    return not (type(new) is type(old) and new == old)


@BOTH
def test_a_header_that_was_changed_is_refused_or_changes_nothing(found: Found, tmp_path: Path) -> None:
    """Types, shapes and offsets are bound to the definition and to each other: of one place none can be changed."""
    of, tally, rng = recording(found), Tally(), random.Random(SEED)
    spots = [place for place, _ in places(of.header) if place]
    for _ in range(TENSORS["header"] // 2 + 30):
        place = rng.choice(spots)
        token = Raw(rng.choice(NO_JSON)) if rng.random() < 0.2 else None
        new = token or rng.choice([*ODD, *CODES.values(), "U8", "I16", "F8_E4M3", "C64", 64, [2, 64], [0, 2**63]])
        what = f"{place} = {str(new)[:60]}"
        read(tally, of, tmp_path, what, of.content(replaced(of.header, place, new)), never(of, place, new))
    assert tally.refused >= TENSORS["header"] // 2


def shifted(header: dict[str, Any], name: str, begin: int, end: int) -> dict[str, Any]:
    a, b = header[name]["data_offsets"]
    return replaced(header, (name, "data_offsets"), [a + begin, b + end])


def crooked(of: Recording, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """Headers whose parts are each well formed and do not fit each other."""
    header = of.header
    first, second = rng.sample(list(header), 2)
    d = rng.choice([1, 2, 4, 8, 64, 256, len(of.data), 2**31, 2**63])
    yield "moved on", shifted(header, first, d, d)
    yield "moved back", shifted(header, first, -d, -d)
    yield "longer", shifted(header, first, 0, d)
    yield "shorter", shifted(header, first, 0, -d)
    yield "overlapping", shifted(header, first, -d, 0)
    yield "backwards", replaced(header, (first, "data_offsets"), header[first]["data_offsets"][::-1])
    yield "another shape", replaced(header, (first, "shape", 0), header[first]["shape"][0] + d)
    yield "a product that overflows", replaced(header, (first, "shape"), [2**32, 2**32, *header[first]["shape"]])
    yield "a gap", {name: x for name, x in header.items() if name != first}
    yield "twice, at last right", {TWICE + first: {**header[first], "shape": [d]}, **header}
    yield "twice, at first right", {**header, TWICE + first: header[second]}
    yield "twice and equal", {**header, TWICE + first: header[first]}
    yield "another name", {name + "_" * (name == first): x for name, x in header.items()}
    yield "no name", {"" if name == first else name: x for name, x in header.items()}
    yield "one too many", {**header, "extra": {"dtype": "F32", "shape": [0], "data_offsets": [len(of.data)] * 2}}
    yield "metadata of numbers", {"__metadata__": {"a": 1}, **header}
    yield "a list", list(header.items())
    yield "nested", {"__metadata__": {"a": Raw("[" * 5000 + "]" * 5000)}, **header}


@BOTH
def test_tensors_that_do_not_fit_each_other_are_refused(found: Found, tmp_path: Path) -> None:
    of, tally, rng = recording(found), Tally(), random.Random(SEED)
    for _ in range(12):
        for what, header in crooked(of, rng):
            # A tensor without elements may stand anywhere.
            alike = what in ("backwards", "a gap") and not all(math.prod(x["shape"]) for x in of.header.values())
            read(tally, of, tmp_path, what, of.content(header), refused=not alike)
    assert tally.refused > 180


@BOTH
def test_tensors_that_change_places_are_found_out_by_the_hash(found: Found, tmp_path: Path) -> None:
    """Two inputs of one shape and type, exchanged: the file is whole, and the wrong one."""
    of, tally = recording(found), Tally()
    file, beside = of.at(tmp_path)
    pairs = 0
    for a in of.header:
        for b in of.header:
            if a < b and all(of.header[a][key] == of.header[b][key] for key in ("dtype", "shape")):
                swapped = {**of.header, a: of.header[b], b: of.header[a]}
                read(tally, of, tmp_path, f"{a} for {b}", of.content(swapped), refused=False)
                with pytest.raises(InvalidWorkload, match="sha256"):
                    materialise(beside, of.workload)
                with pytest.raises(SpecError, match="sha256"):
                    checked(tmp_path, of, file)
                pairs += 1
    assert pairs > 0


def checked(folder: Path, of: Recording, file: Path) -> None:
    """`gdnspec validate` of the file, in a definition's folder with its line."""
    count = len(list(folder.glob("definition_*")))
    home = folder / f"definition_{count}" / of.found.definition.name
    (home / "tensors").mkdir(parents=True)
    (home / "definition.json").write_text(of.found.file.read_text())
    row = {**of.workload.model_dump(mode="json", exclude_defaults=True), "tensors": "tensors/x.safetensors"}
    (home / "workloads.jsonl").write_text(json.dumps(row) + "\n")
    (home / "tensors" / "x.safetensors").write_bytes(file.read_bytes())
    validate([home / "tensors" / "x.safetensors"])


@BOTH
def test_a_changed_byte_of_data_is_found_out(found: Found, tmp_path: Path) -> None:
    """With a hash always; without one the values must be finite, inside their domain, and those of the file."""
    of, rng = recording(found), random.Random(SEED)
    file, beside = of.at(tmp_path)
    unhashed = Workload.model_validate(of.workload.model_dump(exclude_defaults=True, exclude={"sha256"}))
    invalid = 0
    for _ in range(TENSORS["data"] // 2):
        name = rng.choice(list(of.header))
        begin, end = of.header[name]["data_offsets"]
        data = bytearray(of.data)
        at = rng.randrange(begin, end)
        if rng.random() < 0.3:
            data[at // 4 * 4 : at // 4 * 4 + 4] = b"\xff" * 4  # no number, in every type of the inputs
        else:
            data[at] ^= 1 << rng.randrange(8)
        put(file, of.content(data=bytes(data)))
        with pytest.raises(InvalidWorkload, match=r"sha256|cu_seqlens|num_seqs"):
            materialise(beside, of.workload)
        try:
            inputs = materialise(beside, unhashed)
        except InvalidWorkload as error:
            invalid += 1
            assert name in str(error) or "cu_seqlens" in str(error) or "|k|^2" in str(error)
            continue
        assert inputs.tensors[name].data.tobytes() == bytes(data[begin:end])
        stands(found, inputs)
    assert invalid > 10


def headed(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


ANY = st.binary(max_size=100) | st.text(max_size=60).map(lambda text: headed(text.encode("utf-8", "replace")))


@settings(
    max_examples=150,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(content=ANY)
def test_any_bytes_are_no_recording(content: bytes, tmp_path: Path) -> None:
    read(Tally(), recording(DECODE), tmp_path, repr(content), content, refused=True)


@pytest.mark.parametrize("more", [{"sequence_lengths": [1, 1, 3]}, {"integers": {"cu_seqlens": [0, 1, 1, 5]}}], ids=str)
def test_a_line_that_contradicts_its_recording_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    of = recording(PREFILL)
    file, beside = of.at(tmp_path)
    put(file, of.content())
    row = of.workload.model_dump(exclude_defaults=True)
    with pytest.raises(InvalidWorkload, match="cu_seqlens: the values differ"):
        materialise(beside, Workload.model_validate({**row, **more}))
    true = Workload.model_validate({**row, "sequence_lengths": [3, 0, 2]})
    assert bits(materialise(beside, true)) == bits(of.inputs)


def test_large_headers_are_refused_at_once(tmp_path: Path) -> None:
    of, tally = recording(DECODE), Tally()
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    wide = {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}
    long_name = {"n" * 1_000_000: empty}
    for what, header in {
        "many names": {f"extra_{i}": empty for i in range(20_000)},
        "many dimensions": {"q": wide},
        "a long name": {**long_name, **of.header},
        "a long type": replaced(of.header, ("q", "dtype"), "F" * 1_000_000),
    }.items():
        read(tally, of, tmp_path, what, of.content(header), refused=True)
    assert tally.refused == 4


def test_a_recording_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    file = recording(DECODE).at(tmp_path)[0]
    makers: list[Callable[[], None]] = [
        lambda: None, lambda: file.mkdir(), lambda: os.mkfifo(file), lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to(file),
    ]  # fmt: skip
    tally = Tally()
    for i, make in enumerate(makers):
        make()
        tally.attempt(f"kind {i}", lambda: raw.read_raw(file), file, refused=True)
        if i:
            file.rmdir() if file.is_dir() else file.unlink()
    assert tally.refused == len(makers)

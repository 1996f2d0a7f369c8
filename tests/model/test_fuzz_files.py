"""Files that are wrong: tens of thousands of them, refused with the file and the place, and nothing else happens.

Every shipped document is changed in its structure and in its bytes. Of most changes it is known by construction that
the file cannot be right any more; whatever is read all the same must hold exactly what its JSON says.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gdnspec.catalog.source import python_functions
from gdnspec.check.record import Recorder
from gdnspec.cli.commands.validate import validate
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import MAX_FILE_BYTES, load_lines
from gdnspec.model.result import CheckResult
from helpers_documents import Document, documents, said
from helpers_fuzz import CHILDREN, EXPRESSIONS, FILES, LINES, MESSAGES, SEED, TENSORS, Tally, put, same, sound
from helpers_mutations import Mutator, Schema, damaged, text_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FORMATS = list(FILES)

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")  # of expressions


def is_read_or_refused(
    tally: Tally, document: Document, file: Path, what: str, refused: bool, near: Any = None
) -> None:
    """Loads a file; where it is taken, what was read is what it says."""
    name = f"{document.file}: {what}"
    read = tally.attempt(name, lambda: document.load(file), file, refused, near)
    if read is not None:
        assert same(said(document, file.read_text(encoding="utf-8")), read), f"{name}: {read}"


# --- the mutations -----------------------------------------------------------------------------------------------


def spread(count: int, kind: str, folder: Path) -> Iterator[tuple[Document, Path, int]]:
    """Documents, of many some; where each may be written; and how many refusals should have come after it, for `count`
    in all."""
    every = documents(kind)
    chosen = random.Random(SEED).sample(every, min(len(every), 24))
    for i, document in enumerate(chosen):
        yield document, document.place(folder / str(i)), -(-count * (i + 1) // len(chosen))


SHARES = [3, pytest.param(1, marks=pytest.mark.thorough)]  # of documents, or of the refusals that are asked for


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_shipped_document_is_read_as_it_stands(kind: str, share: int, tmp_path: Path) -> None:
    tally = Tally()
    for i, document in enumerate(documents(kind)[::share]):
        file = document.place(tmp_path / str(i))
        put(file, document.text)
        is_read_or_refused(tally, document, file, "as it is", refused=False)
    assert tally.refused == 0


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", FORMATS)
def test_a_changed_structure_is_refused_or_read_to_the_letter(kind: str, share: int, tmp_path: Path) -> None:
    """Keys, types, numbers, strings, lists and tokens changed one at a time; the problem points at the change."""
    tally, rng, wanted = Tally(), random.Random(SEED), FILES[kind][0] // share
    for document, file, goal in spread(wanted, kind, tmp_path):
        for mutant in Mutator(Schema(document.model), document.tree).some(2 * wanted, rng):
            if tally.refused >= goal:
                break
            put(file, mutant.text + "\n")
            is_read_or_refused(tally, document, file, mutant.what, mutant.refused, mutant.near)
    assert tally.refused >= wanted
    assert tally.accepted > 0


@pytest.mark.parametrize("kind", FORMATS)
def test_two_changes_at_once_are_refused_or_read_to_the_letter(kind: str, tmp_path: Path) -> None:
    tally, rng = Tally(), random.Random(SEED + 1)
    for document, file, goal in spread(FILES[kind][0] // 20, kind, tmp_path):
        schema = Schema(document.model)
        for first in Mutator(schema, document.tree).some(FILES[kind][0], rng):
            if tally.refused >= goal:
                break
            if not first.refused and isinstance(first.tree, dict):
                second = Mutator(schema, first.tree).one(rng)
                put(file, second.text + "\n")
                is_read_or_refused(tally, document, file, f"{first.what}, {second.what}", second.refused)
    assert tally.refused > 0


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("kind", FORMATS)
def test_damaged_bytes_are_refused_or_read_to_the_letter(kind: str, share: int, tmp_path: Path) -> None:
    tally, rng, wanted = Tally(), random.Random(SEED), FILES[kind][1] // share
    for document, file, goal in spread(wanted, kind, tmp_path):
        while tally.refused < goal:
            how, content, refused = damaged(document.text.encode(), rng)
            put(file, content)
            is_read_or_refused(tally, document, file, f"{how}: {content[:200]!r}", refused)
    assert tally.refused >= wanted


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_ends_too_early_is_refused(kind: str, tmp_path: Path) -> None:
    """An object without its last brace is none, wherever the text ends."""
    tally, rng, wanted = Tally(), random.Random(SEED), FILES[kind][2]
    for document, file, goal in spread(wanted, kind, tmp_path):
        content = document.text.encode().rstrip()
        for length in rng.sample(range(1, len(content)), min(goal - tally.refused, len(content) - 1)):
            put(file, content[:length])
            is_read_or_refused(tally, document, file, f"the first {length} bytes", refused=True)
    assert tally.refused >= wanted


@pytest.mark.parametrize("kind", ["workloads.jsonl", "results.jsonl"])
def test_a_bad_line_is_named_among_good_ones(kind: str, tmp_path: Path) -> None:
    """The number of the line is told, and every bad line of a file at once."""
    tally, rng = Tally(), random.Random(SEED)
    document = documents(kind)[0]
    file = document.place(tmp_path)
    good = document.text
    other = json.dumps({**document.tree, "name": "other"} if kind == "workloads.jsonl" else document.tree) + "\n"
    for mutant in Mutator(Schema(document.model), document.tree).some(300, rng):
        if mutant.refused and "\n" not in mutant.text:
            put(file, good + "\n" + mutant.text + "\n" + other + "{\n")
            is_read_or_refused(tally, document, file, mutant.what, True)
            with pytest.raises(SpecError) as caught:
                document.load(file)
            named = {problem.place.split(":")[0].split(",")[0] for problem in caught.value.problems}
            assert named == {"line 3", "line 5"}, mutant.what
    assert tally.refused > 150


# --- anything at all ---------------------------------------------------------------------------------------------

EXAMPLES = settings(
    max_examples=150, derandomize=True, database=None, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)  # fmt: skip
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


def trees(keys: list[str]) -> st.SearchStrategy[Any]:
    """JSON at random, with the keys of the format and others."""
    names = st.sampled_from(keys) | st.text(max_size=6)
    return st.recursive(
        LEAVES, lambda x: st.lists(x, max_size=4) | st.dictionaries(names, x, max_size=6), max_leaves=20
    )


@pytest.mark.parametrize("kind", FORMATS)
def test_any_json_is_refused_or_read_to_the_letter(kind: str, tmp_path: Path) -> None:
    document = documents(kind)[0]
    file, tally = document.place(tmp_path), Tally()
    keys = [*document.tree, "name", "kind", "axes", "status", "suite"]

    @EXAMPLES
    @given(trees(keys))
    def try_it(tree: Any) -> None:
        text = json.dumps(tree)
        put(file, text + "\n")
        outside = any(word in text for word in ("NaN", "Infinity"))
        is_read_or_refused(tally, document, file, text[:200], outside and not isinstance(tree, str))

    try_it()
    assert tally.refused > 60


@pytest.mark.parametrize("kind", FORMATS)
def test_any_bytes_are_refused(kind: str, tmp_path: Path) -> None:
    document = documents(kind)[0]
    file, tally = document.place(tmp_path), Tally()

    def is_something(content: bytes) -> bool:
        return not kind.endswith("jsonl") or bool(content.decode(errors="replace").strip())

    @EXAMPLES
    @given(st.binary(max_size=80) | st.text(max_size=80).map(lambda x: x.encode("utf-8", "surrogatepass")))
    def try_it(content: bytes) -> None:
        put(file, content)
        is_read_or_refused(tally, document, file, repr(content), refused=b"{" not in content and is_something(content))

    try_it()
    assert tally.refused > 60


# --- large and deep ----------------------------------------------------------------------------------------------


def many(count: int) -> dict[str, int]:
    return {f"key_{i}": i for i in range(count)}


LARGE: dict[str, Callable[[dict[str, Any]], str]] = {
    "keys": lambda tree: json.dumps({**tree, **many(20_000)}),
    "twice_at_the_end": lambda tree: json.dumps(many(60_000))[:-1] + ', "key_59999": 0}',
    "a_long_key": lambda tree: json.dumps({**tree, "k" * 1_000_000: 0}),
    "a_long_string": lambda tree: json.dumps(dict.fromkeys(tree, "x" * 500000)),
    "long_lists_of_numbers": lambda tree: json.dumps({key: [7] * 20_000 for key in tree}),
    "long_lists_of_objects": lambda tree: json.dumps({key: [{"name": "x"}] * 4_000 for key in tree}),
    "long_maps": lambda tree: json.dumps({key: many(5_000) for key in tree}),
    "a_long_number": lambda tree: json.dumps(tree)[:-1] + ', "n": ' + "1" * 100_000 + "}",
    "a_long_fraction": lambda tree: json.dumps(tree)[:-1] + ', "n": 0.' + "1" * 100_000 + "}",
    "deep_lists": lambda tree: '{"name": ' + "[" * 200_000 + "]" * 200_000 + "}",
    "deep_objects": lambda tree: '{"name": ' * 100_000 + "1" + "}" * 100_000,
    "open_brackets": lambda tree: "[" * 500_000,
    "spaces": lambda tree: " " * 2_000_000 + "{",
    "escapes": lambda tree: '{"' + "\\u0041" * 300_000 + '": 1}',
}


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", FORMATS)
def test_large_and_deep_files_are_refused_at_once(kind: str, share: int, tmp_path: Path) -> None:
    document, tally = documents(kind)[0], Tally()
    file, tried = document.place(tmp_path), [*LARGE][FORMATS.index(kind) % share :: share]  # each with some format
    for name in tried:
        put(file, LARGE[name](document.tree) + "\n")
        is_read_or_refused(tally, document, file, name, refused=True)
    assert tally.refused == len(tried) > 3


@pytest.mark.parametrize("kind", FORMATS)
def test_depths_at_which_one_parser_still_follows_and_another_does_not(kind: str, tmp_path: Path) -> None:
    document, tally = documents(kind)[0], Tally()
    file = document.place(tmp_path)
    for depth in [*range(100, 260, 9), *range(700, 1100, 7)]:
        for inner in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            put(file, json.dumps({**document.tree, "nested": 0})[:-2] + inner + "}\n")
            is_read_or_refused(tally, document, file, f"depth {depth}", refused=True)
    assert tally.refused > 100


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_no_regular_file_is_refused(kind: str, tmp_path: Path) -> None:
    """A folder, a pipe, a device, a loop of links, nothing, and a file of more bytes than any."""
    document, tally = documents(kind)[0], Tally()
    file = document.place(tmp_path)
    makers: list[Callable[[], object]] = [
        lambda: file.mkdir(),
        lambda: os.mkfifo(file),
        lambda: file.symlink_to("/dev/zero"),
        lambda: file.symlink_to(file),
        lambda: file.symlink_to(tmp_path / "nowhere"),
        lambda: os.truncate(file, MAX_FILE_BYTES + 1) if file.write_bytes(b"") == 0 else None,
    ]
    load_one = (lambda f: load_lines(CheckResult, f)) if kind == "results.jsonl" else document.load
    for i, make in enumerate(makers):
        file.rmdir() if file.is_dir() else file.unlink()
        make()
        tally.attempt(f"{kind} of kind {i}", lambda: load_one(file), file, refused=True)
    assert tally.refused == len(makers)


# --- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_validate_refuses_what_its_parts_refuse(kind: str, tmp_path: Path) -> None:
    """The command finds a changed file by itself; each lies in a folder of its own, as the command reads one once."""
    rng, document = random.Random(SEED), documents(kind)[0]
    owner = document.file.split("/")[0] if kind == "workloads.jsonl" else None
    count = 0
    for i, mutant in enumerate(Mutator(Schema(document.model), document.tree).some(40, rng)):
        if mutant.refused:
            file = document.place(tmp_path / str(i))
            put(file, mutant.text + "\n")
            with pytest.raises(SpecError) as caught:
                validate([file], owner)
            for problem in caught.value.problems:
                sound(problem, file, mutant.what)
            count += 1
    assert count > 20


# --- what was found ----------------------------------------------------------------------------------------------

CHANGES: list[tuple[str, tuple[str | int, ...], Any, str]] = [
    # a format, a place of its last document, what is put there, and where the problem is
    ("definition.json", ("symmetries", 4, "when"), "head_size / 0", "/symmetries/4/when"),
    ("definition.json", ("symmetries", 4, "groups"), "'a'", "/symmetries/4/groups"),
    ("definition.json", ("symmetries", 4, "groups"), "num_k_heads / 3", "/symmetries/4/groups"),
    ("definition.json", ("inputs", 5, "shape", 0), "'a'", "/inputs/5/shape/0"),
    ("definition.json", ("inputs", 5, "shape", 0), "1e999", "/inputs/5/shape/0"),
    ("definition.json", ("inputs", 5, "shape", 0), "0 - 5", "/inputs/5/shape/0"),
    ("definition.json", ("inputs", 5, "shape", 0), "head_size / 3", "/inputs/5/shape/0"),
    ("definition.json", ("flops",), "1 < 2", "/flops"),
    ("definition.json", ("flops",), "1e999", "/flops"),
    ("definition.json", ("inputs", 3, "default"), "1 / 0", "/inputs/3/default"),
    ("definition.json", ("inputs", 3, "default"), "1 < 2", "/inputs/3/default"),
    (
        "definition.json",
        ("axes", 6, "parts"),
        [{"name": "x", "shape": ["num_v_heads", 2], "description": "?"}],
        "/axes/6/parts",
    ),
    (
        "definition.json",
        ("axes", 6, "parts"),
        [{"name": "x", "shape": ["'a'"], "description": "?"}],
        "/axes/6/parts/0/shape/0",
    ),
    ("definition.json", ("axes", 6, "expression"), "head_size / 3", "/axes"),
    ("definition.json", ("axes", 6, "expression"), "0 - head_size", "/axes"),
    ("definition.json", ("reference",), "a" * 300 + ".py::f", "/reference"),
    ("definition.json", ("description",), "\x1b]52;c;aGk=\x07", "/description"),
    ("solution.json", ("sources",), ["kernel.py", "é" * 150], "/sources/1"),
    ("solution.json", ("license",), "\x1b[2J", "/license"),
    ("solution.json", ("requires", "packages"), ["!! what"], "/requires/packages/0"),
    ("solution.json", ("requires", "packages"), ["torch; python_version ~= 'x'"], "/requires/packages/0"),
    ("solution.json", ("requires", "compute_capability"), "9" * 5000 + ".0", "/requires/compute_capability"),
    ("solution.json", ("requires", "compute_capability"), "\u0668.\u0660", "/requires/compute_capability"),
    ("workloads.jsonl", ("tensors",), "é" * 150, ""),
]


@pytest.mark.parametrize(("kind", "place", "new", "where"), CHANGES, ids=range(len(CHANGES)))
def test_a_value_without_sense_is_refused_with_its_place(
    kind: str, place: tuple[str | int, ...], new: Any, where: str, tmp_path: Path
) -> None:
    """Each was once read without a word, or ended in another exception than the one for bad files."""
    holding = {"definition.json": '"gdn_prefill_k_last"', "solution.json": '"sources": ["kernel.py"]'}
    document = next(d for d in reversed(documents(kind)) if holding.get(kind, "") in d.text)
    tree = json.loads(document.text)
    holder = tree
    for part in place[:-1]:
        holder = holder[part]
    holder[place[-1]] = new
    file = document.place(tmp_path)
    put(file, text_of(tree) + "\n")
    with pytest.raises(SpecError) as caught:
        document.load(file)
    assert any(where in problem.place for problem in caught.value.problems), caught.value
    for problem in caught.value.problems:
        sound(problem, file, str(place))


@pytest.mark.parametrize("text", ["x = " + "-" * 100_000 + "1", "x" + ".x" * 100_000, "x = 1\0", "\udcff", "if 1:"])
def test_a_source_that_no_parser_follows_is_refused(text: str, tmp_path: Path) -> None:
    file, tally = tmp_path / "kernel.py", Tally()
    put(file, text.encode("utf-8", "surrogatepass"))
    tally.attempt(text[:20], lambda: python_functions(file), file, refused=True)
    assert tally.refused == 1


def test_results_are_not_appended_to_what_is_no_line_of_them(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for text in ("[" * 100_000, '{\n  "schema_version": 1,\n', '{"name": "ragged", "suite'):
        put(file, text)
        with pytest.raises(SpecError, match="other than results"):
            Recorder(file)


def test_enough_malformed_inputs_are_tried() -> None:
    """Each of these numbers is asserted where it is reached."""
    others = [*TENSORS.values(), LINES, EXPRESSIONS, *MESSAGES.values(), *CHILDREN.values()]
    assert sum(map(sum, FILES.values())) + sum(others) >= 20_000

"""Workload lines and expressions that are wrong, or right in ways that nobody thought of.

What is drawn has the hash that the line says and fits the definition; an expression has the value that Python gives it.
"""

import ast
import math
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of, presets
from gdnspec.catalog.families import family
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.inputs import memory
from gdnspec.inputs.materialise import Inputs, InvalidWorkload, materialise
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import FUNCTIONS, Expression, ExpressionError
from gdnspec.model.workload import Workload
from helpers_fuzz import EXPRESSIONS, LINES, SEED, put, soon, stands
from helpers_mutations import Mutator, Schema, places, text_of
from helpers_unit import line
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")  # of expressions
SMALL = "synthetic-gva-1x2-d64"
PREFILL, DECODE = definition("gdn_prefill_k_last"), definition("gdn_decode_k_last")
BOTH = pytest.mark.parametrize("found", [PREFILL, DECODE], ids=lambda found: found.definition.name)

REGIMES = family("gdn").about.regimes
# --- workload lines ----------------------------------------------------------------------------------------------

BYTES_OF_A_LINE = 1 << 20


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine on which only small lines fit."""
    monkeypatch.setattr(memory, "available", lambda: memory.DRAWING * BYTES_OF_A_LINE)


@cache
def small_lines() -> list[tuple[Found, dict[str, Any]]]:
    """Shipped lines that are drawn in no time."""
    rows = []
    for found in definitions().values():
        for workload in workloads(found):
            scope = workload.scope(found.definition, preset_of(found, workload))
            if workload.sha256 and not workload.tensors and found.definition.bytes_moved(scope) < BYTES_OF_A_LINE:
                rows.append((found, workload.model_dump(mode="json", exclude_unset=True, exclude={"emulators"})))
    return rows


def drawn_or_refused(found: Found, file: Path, row: Any) -> tuple[Workload, Inputs] | None:
    """The inputs of a line where it has any; else nothing but the documented refusals. Large ones are not drawn."""
    put(file, text_of(row) + "\n")
    try:
        with soon(row):
            (workload,) = load_workloads(file, found)
            memory.require(found, workload)
            return workload, materialise(found, workload)
    except SpecError as error:
        assert error.problems
        assert all(problem.file == file for problem in error.problems)
    except (InvalidWorkload, MemoryError) as error:
        assert str(error)
    return None


FIXED = ("axes", "sequence_lengths", "seed")  # none of them can change without changing what is drawn


def test_a_changed_line_never_draws_other_inputs_under_its_hash(tmp_path: Path, little_memory: None) -> None:
    """What a line says of its inputs is changed while the hash stays: refused, or drawn bit for bit as before."""
    rng, refused, file, schema = random.Random(SEED), 0, tmp_path / "workloads.jsonl", Schema(Workload)
    for _ in range(LINES + LINES // 8):
        found, row = rng.choice(small_lines())
        part = rng.choice([key for key in (*FIXED, "regime", "preset", "omit", "scalars", "integers") if key in row])
        changed = Mutator(schema, row).one(rng, (part,)).tree
        result = drawn_or_refused(found, file, changed)
        refused += result is None
        if result is not None:
            assert result[1].sha256 == row["sha256"]
            for key in FIXED:
                assert changed.get(key) == row.get(key), f"{changed}: the same inputs as {row}"
    assert refused >= LINES


# Most of each are right, and small enough to be drawn.
SIZES = st.sampled_from([*range(1, 12), *range(1, 12), 0, 0, -1, 63, 1 << 20, 1 << 41])
SEEDS = st.integers(0, 9) | st.sampled_from([0, 1, 2**32, 2**63 - 1]) | st.integers(0, 2**63) | st.integers()
SCALES = st.floats(-10, 10) | st.sampled_from([0, 1, -2.5, 1e300, 5e-324, 10**20, True])


@st.composite
def rows(draw: st.DrawFn, found: Found) -> dict[str, Any]:
    """Lines that are right but for a value here and there."""
    names = [tensor.name for tensor in found.definition.inputs]
    optional = [tensor.name for tensor in found.definition.inputs if tensor.optional and not tensor.is_scalar]
    omitted = st.lists(st.sampled_from(optional), max_size=3) if optional else st.just([])
    scalars = {"scale": SCALES, "use_qk_l2norm": st.booleans()}
    row: dict[str, Any] = {
        "name": "drawn",
        "suite": "smoke",
        "preset": draw(st.sampled_from([SMALL] * 20 + ["synthetic-gva-2x4-d64"] * 9 + list(presets()))),
        "regime": draw(st.sampled_from(sorted(REGIMES))),
        "seed": draw(SEEDS),
        "omit": draw(omitted if draw(st.integers(0, 9)) else st.lists(st.sampled_from(names), max_size=2)),
        "scalars": draw(st.fixed_dictionaries({}, optional={x: scalars[x] for x in scalars if x in names})),
    }
    if found.definition.conventions.packing == "ragged":
        lengths = draw(st.lists(SIZES, min_size=1, max_size=5))
        off = draw(st.sampled_from([0] * 9 + [1]))
        row |= {"sequence_lengths": lengths, "axes": {"total_seq_len": sum(lengths) + off, "num_seqs": len(lengths)}}
    else:
        row["axes"] = {"batch_size": draw(SIZES)}
    return row


@BOTH
def test_any_line_is_refused_or_drawn_twice_the_same(found: Found, tmp_path: Path, little_memory: None) -> None:
    """Every regime, preset, length, omission and scalar: what is drawn fits the definition and its domains."""
    file, outcomes = tmp_path / "workloads.jsonl", {"drawn": 0, "refused": 0}

    @settings(max_examples=250, derandomize=True, database=None, deadline=None,
              suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])  # fmt: skip
    @given(rows(found))
    def try_it(row: dict[str, Any]) -> None:
        result = drawn_or_refused(found, file, row)
        outcomes["refused" if result is None else "drawn"] += 1
        if result is not None:
            workload, inputs = result
            stands(found, inputs)
            assert set(inputs.tensors) == {t.name for t in found.definition.inputs if not t.is_scalar} - set(
                workload.omit
            )
            assert {name: inputs.scalars[name] for name in workload.scalars} == workload.scalars
            again = drawn_or_refused(found, file, {**row, "sha256": inputs.sha256})
            assert again is not None
            other = "0" * 63 + ("1" if inputs.sha256.endswith("0") else "0")
            assert drawn_or_refused(found, file, {**row, "sha256": other}) is None

    try_it()
    assert min(outcomes.values()) > 30, outcomes


def test_sizes_past_any_machine_are_refused_before_anything_is_drawn(tmp_path: Path, little_memory: None) -> None:
    file, most = tmp_path / "workloads.jsonl", 1 << 40
    for name in ("gdn_prefill_k_last", "gdn_prefill_k_first"):
        for lengths in ([most], [most // 2] * 2, [0] * 100_000, [most] * 3, [1] * 1000, [1] * 100_000 + [most]):
            axes = {"total_seq_len": sum(lengths), "num_seqs": len(lengths)}
            row = line(definition(name)).model_dump(mode="json", exclude_unset=True)
            assert drawn_or_refused(definition(name), file, {**row, "axes": axes, "sequence_lengths": lengths}) is None
    for size in (most, most - 1, 10**6, most + 1, 10**30, 10**400):
        row = line(DECODE).model_dump(mode="json", exclude_unset=True)
        assert drawn_or_refused(DECODE, file, {**row, "axes": {"batch_size": size}}) is None


# --- expressions -------------------------------------------------------------------------------------------------


@cache
def expressions() -> list[str]:
    """Every expression that is shipped."""
    texts: list[str] = []
    for found in definitions().values():
        tree = found.definition.model_dump(mode="json")
        keys = ("expression", "default", "traffic", "flops", "groups", "when")
        texts += [value for place, value in places(tree) if place and place[-1] in keys and isinstance(value, str)]
    entries = [entry for solution in solutions()[0].values() for entry in solution.manifest.entries.values()]
    return sorted({*texts, *(text for entry in entries for text in entry.supports)})


SCOPE: dict[str, Any] = {
    "total_seq_len": 8, "num_seqs": 3, "batch_size": 4, "num_q_heads": 2, "num_k_heads": 2, "num_v_heads": 4,
    "head_size": 64, "num_sab_heads": 4, "num_o_heads": 4, "num_checkpoints": 2, "checkpoint_interval": 64,
    "scale": 0.125, "use_qk_l2norm": True, "device": "cuda",
}  # fmt: skip
VECTORS: dict[str, Any] = {"cu_seqlens": [0, 3, 3, 8], "checkpoint_cu_starts": [0, 0, 0, 2]}
PIECES = [
    *SCOPE, *VECTORS, *FUNCTIONS, "+", "-", "*", "/", "//", "%", "<", "<=", "==", "!=", ">", "in", "not in", "not",
    "and", "or", "if", "else", "(", ")", "[", "]", ",", "0", "1", "2", "0.5", "1e999", "'cuda'", "True", "False", " ",
    "**", "lambda", ":", ".", "=", ":=", "{", "}", "None", "...", "1j", "b''", "f''", "\x00", "\ud800", "\n", "#", "\\",
    ";",
]  # fmt: skip
WORDS = re.compile(r"\w+|[^\w\s]+|\s+")


def rewritten(text: str, rng: random.Random) -> str:
    """An expression with some of its words taken out, doubled, exchanged or replaced, or cut in a word's midst."""
    words = WORDS.findall(text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = rng.randrange(len(words) + 1)
        match rng.randrange(5):
            case 0:
                words[at : at + 1] = []
            case 1:
                words[at:at] = words[at : at + rng.randrange(1, 4)]
            case 2:
                words[at : at + 1] = [rng.choice(PIECES)]
            case 3:
                words[at:at] = [rng.choice(PIECES)]
            case 4:
                words = WORDS.findall("".join(words)[: rng.randrange(len(text) + 1)])
    return "".join(words)


def of_python(text: str) -> Any:
    """What Python makes of it: the text has passed the evaluator's own grammar."""
    functions = {"min": lambda *x: min(x), "max": lambda *x: max(x), "sqrt": math.sqrt, "all": bool}
    return eval(text, {"__builtins__": {}}, {**functions, **SCOPE})


def comparable(text: str) -> bool:
    """Whether Python means the same by it: no vectors, and nothing of functions that only they have."""
    tree = ast.parse(text, mode="eval")
    if any(isinstance(node, ast.Tuple | ast.Subscript) for node in ast.walk(tree)):
        return False
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return not names & {*VECTORS, *FUNCTIONS.keys() - {"min", "max", "sqrt", "all"}}


def test_a_changed_expression_is_refused_or_means_what_python_means() -> None:
    rng, refused, compared = random.Random(SEED), 0, 0
    tried: set[str] = set()
    while len(tried) < 4 * EXPRESSIONS:
        text = rewritten(rng.choice(expressions()), rng)
        if text in tried:
            continue
        tried.add(text)
        try:
            with soon(text):
                value = Expression(text).evaluate({**SCOPE, **VECTORS})
        except ExpressionError as error:
            assert str(error), text
            refused += 1
            continue
        assert isinstance(value, bool | int | float | str | tuple), text
        if comparable(text):
            compared += 1
            expected = of_python(text)
            # `and` and `or` are conditions here; in Python they give back one of their operands.
            alike = bool(value) is bool(expected) and any(word in text for word in ("and", "or"))
            assert value == expected or alike, text
    assert refused >= EXPRESSIONS
    assert compared > EXPRESSIONS // 5

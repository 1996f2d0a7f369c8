"""Fresh workloads: lengths and gates that nobody has published join every check."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, Run
from gdnspec.build import machine
from gdnspec.build import reference as code
from gdnspec.catalog.definitions import Found, definition, definitions, preset_of
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import load_workloads, workloads
from gdnspec.check.plan import INTERPRETER_LIMIT, plan, token_programs
from gdnspec.check.run import Checker, Options, draw_fresh
from gdnspec.check.selftest import margin
from gdnspec.inputs.fresh import fresh, names, narrower
from gdnspec.inputs.materialise import InvalidWorkload, materialise
from gdnspec.model.budget import LIMITS, MARGIN, METRICS, STRICT_MARGIN, floors
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics.expected import Expected
from gdnspec.numerics.freeze import measure
from gdnspec.numerics.products import OF_FRESH
from helpers_unit import reference
from sampled import one_in

LINES = reference("fresh")
# The families that differ most; of the others as much in a thorough run.
FEW = (
    "gdn_prefill_k_last", "gdn_prefill_checkpoints", "gdn_decode_k_last", "gdn_verify_k_last", "gdn_chunk_state",
    "kda_prefill_k_last",
)  # fmt: skip
LIKE_CPU = {("cuda", name) for name in FEW if name not in ("gdn_prefill_k_last", "gdn_decode_k_last")}
EACH = [pytest.param(name, marks=() if name in FEW else pytest.mark.thorough) for name in definitions()]


SIXTH = one_in(6, definitions())


@pytest.mark.parametrize("name", SIXTH)
def test_a_seed_fixes_lines_and_tensors_and_another_changes_them(name: str) -> None:
    found = definition(name)
    once, again, other = (fresh(found, seed, "cpu") for seed in (7, 7, 8))
    assert once == again
    hashes = [materialise(found, line).sha256 for line in (*once, *again, *other)]
    assert hashes[:2] == hashes[2:4]
    assert len(set(hashes)) == 4, "no two tensors alike"


ON_EACH = [pytest.param(n, d, marks=[pytest.mark.thorough] * (n not in FEW or (d, n) in LIKE_CPU))
           for n in definitions() for d in ("cpu", "cuda")]  # fmt: skip


@pytest.mark.parametrize(("name", "device"), ON_EACH)
def test_every_seed_gives_valid_lines_with_heads_of_models(name: str, device: str) -> None:
    found = definition(name)
    lines_of = code.module(found.family, "fresh")
    seen: dict[str, set[object]] = {"preset": set(), "regime": set(), "lengths": set()}
    counts, scales = set(), set()
    for seed in range(60):
        lines = fresh(found, seed, device)
        assert tuple(line.name for line in lines) == names(found, device)
        for line in lines:
            line.check(found.definition, preset_of(found, line))
            axes = preset_of(found, line).axes
            sizes = tuple(axes.get(size, axes.get("head_size")) for size in ("key_head_dim", "value_head_dim"))
            wide = line.preset in lines_of.WIDE["cpu"]  # many rows or sequences, of few small heads
            of_two = sizes == (96, 192) and ("kv_dims" in name or "neg_eigval" in name)
            assert wide or sizes == (128, 128) or of_two
            counts.add(line.axes.get("num_seqs", line.axes.get("batch_size", 0)))
            scales.add(line.scalars.get("scale"))
            assert axes["num_q_heads"] == axes["num_k_heads"]
            programs = token_programs(found.definition, line.scope(found.definition, preset_of(found, line)))
            assert programs <= INTERPRETER_LIMIT or line.device == "cuda"
            assert (line.device == "cuda") == (line.name == "fresh_large")
            seen["preset"].add(line.preset)
            seen["regime"].add(line.regime)
            seen["lengths"].add(str(line.sequence_lengths or line.axes))
    published = {str(line.sequence_lengths or line.axes) for line in workloads(found)}
    # One definition in a hundred has one of nine regimes in no seed of sixty, and few lines have many rows.
    for line in (line for seed in range(60, 200) for line in fresh(found, seed, device)):
        if max(counts) > 100 and seen["regime"] == set(lines_of.REGIMES):
            break
        seen["regime"].add(line.regime)
        counts.add(line.axes.get("num_seqs", line.axes.get("batch_size", 0)))
    assert seen["regime"] == set(lines_of.REGIMES)
    assert max(counts) > 100
    if any(tensor.name == "scale" for tensor in found.definition.inputs):
        assert {None, 0.0, 1.0} <= scales
        assert min(scale for scale in scales if scale is not None) < 0
    assert len(seen["preset"]) >= 2
    assert len(seen["lengths"] - published) > (110 if "prefill" in name else 12)


@pytest.mark.parametrize("name", EACH)
def test_gates_lie_off_the_grid_of_published_ones(name: str) -> None:
    """Many draws together, for one may have two heads; and nothing from 4 on, where float32 ends at the grid itself."""
    found = definition(name)
    drawn: dict[str, list[np.ndarray]] = {}
    for _ in range(12):
        for line in fresh(found, random.getrandbits(60), "cpu"):
            tensors = materialise(found, line).tensors
            for gate in tensors.keys() & {"g", "decay", "A_log"}:
                drawn.setdefault(gate, []).append(tensors[gate].values().astype(np.float64).flatten())
    for gate, draws in drawn.items():
        values = np.concatenate(draws)
        values = values[(np.abs(values) < 4) & (values != 0)]
        assert len(values) > 40, gate
        assert np.mean(values * 2.0**20 % 1 == 0) < 0.5, gate


# To measure budgets takes seconds: the quick run does it for half of those that differ most.
QUICKLY = [pytest.param(n, marks=[pytest.mark.thorough] * (n not in FEW[::2])) for n in definitions()]


@pytest.mark.parametrize("seeds", [1, pytest.param(5, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", QUICKLY)
def test_budgets_are_those_of_ordinary_workloads_whatever_the_seed(name: str, seeds: int) -> None:
    found, expected = definition(name), Expected("cpu", print)
    for _ in range(seeds):
        for line in fresh(found, random.getrandbits(60), "cpu"):
            judged = draw_fresh(found, line, expected, "cpu").workload
            assert judged.budget is not None
            for output, limits in judged.budget.items():
                least = floors(next(tensor for tensor in found.definition.judged if tensor.name == output))
                for metric, limit in limits.items():  # the floors of codes are the limits
                    assert limit < LIMITS[metric] or limit == least[metric], (output, metric, judged)


def test_they_join_every_suite_and_repeat_by_name_and_seed(gdnspec: Run, tmp_path: Path) -> None:
    args = ("check", "gdn_decode_k_last", "--solution", "torch_recurrent", "--device", "cpu")
    file = tmp_path / "r.jsonl"
    assert gdnspec(*args, "--suite", "strict", "--suite", "smoke", "--json", str(file)).returncode == 0
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    drawn = {row["workload"]: row for row in rows if row["suite"] == "fresh"}
    assert set(drawn) == set(LINES.NAMES["cpu"])
    repeat = drawn["fresh_regime"]["repeat"].split()[1:]
    again = tmp_path / "again.jsonl"
    assert gdnspec(*repeat, "--json", str(again)).returncode == 0
    (row,) = [json.loads(line) for line in again.read_text().splitlines()]
    assert (row["key"], row["outputs"]) == (drawn["fresh_regime"]["key"], drawn["fresh_regime"]["outputs"])
    only = gdnspec(*args, "--suite", "fresh")
    assert "2 of 2" in only.stdout, only.stderr
    assert "1 of 1" in gdnspec(*args, "--workload", "one_row").stdout


def test_no_file_holds_them(tmp_path: Path) -> None:
    found = definition("gdn_decode_k_last")
    file = tmp_path / "w.jsonl"
    line = fresh(found, 3, "cpu")[0]
    file.write_text(json.dumps(line.model_dump(mode="json", exclude_defaults=True)) + "\n")
    with pytest.raises(SpecError, match=r"/suite.*each check draws its own"):
        load_workloads(file, found)


def test_content_that_no_honest_kernel_is_right_on_is_drawn_again(gdnspec: Run) -> None:
    """With this seed an honest emulator had half of all that it may have, so that no budget could be twice as much."""
    seed = ("--workload", "fresh_regime", "--device", "cpu", "--seed", "1169121898874154393")
    done = gdnspec("check", "gdn_prefill_from_conv", "--solution", "torch_layer", *seed)
    assert done.returncode == 0, done.stderr
    assert "INVALID_WORKLOAD" not in done.stdout + done.stderr


def test_many_sequences_are_fewer_where_none_of_their_content_will_do() -> None:
    """With this seed, 177 sequences of one head: honest arithmetic errs much on some one of them, whatever is drawn."""
    found = definition("gdn_prefill_from_conv_f32_qkv")
    (line,) = (line for line in fresh(found, 5, "cpu") if line.name == "fresh_regime")
    fewer = narrower(found, line)
    assert fewer is not None
    assert line.sequence_lengths is not None
    assert fewer.sequence_lengths == line.sequence_lengths[-44:]
    assert (fewer.axes["num_seqs"], fewer.axes["total_seq_len"]) == (44, sum(fewer.sequence_lengths))
    assert (fewer.preset, fewer.regime, fewer.scalars) == (line.preset, line.regime, line.scalars)
    fewer.check(found.definition, preset_of(found, fewer))
    steps = [fewer]
    while (following := narrower(found, steps[-1])) is not None:
        steps.append(following)
    assert [len(step.sequence_lengths or ()) for step in steps] == [44, 11, 2]
    judged = draw_fresh(found, line, Expected("cpu", print), "cpu").workload
    assert judged.budget is not None
    assert len(judged.sequence_lengths or ()) in (44, 11, 2)


def test_another_line_is_drawn_where_no_content_of_one_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for gradients: with some lengths and gates one element of a parameter's is far off, whatever is drawn. Here no
    budget fits the first two lines; then none at all."""
    found, tried = definition("gdn_decode_k_last"), list[Workload]()
    (line,) = (one for one in fresh(found, 7, "cpu") if one.name == "fresh_typical")
    nothing = Expected("cpu", print)
    monkeypatch.setattr(nothing, "values", lambda *more, keep: {})
    monkeypatch.setattr("gdnspec.check.run.measure", lambda *more: {})

    def with_budget(found: Found, one: Workload, measured: object) -> Workload:
        tried.append(one)
        if len({str(x.axes) for x in tried}) < last:
            raise SpecError("cannot be judged")
        return one

    monkeypatch.setattr("gdnspec.check.run.with_budget", with_budget)
    last = 3
    drawn = [draw_fresh(found, line, nothing, "cpu").workload for _ in range(2) if not tried.clear()]
    assert drawn[0] == drawn[1], "a repeat draws the same"
    assert drawn[0].axes != line.axes
    assert {(x.name, x.suite, x.preset) for x in (*tried, line)} == {("fresh_typical", "fresh", line.preset)}
    last = 99
    with pytest.raises(InvalidWorkload, match="cannot be judged"):
        draw_fresh(found, line, nothing, "cpu")


# Rows of a few tokens on which an honest kernel was past its budget or close to it, by the luck of three emulators.
LUCK = {
    "gdn_layer_prefill": (400162, 200009),  # margins of 0.78, which is a rejection, and 1.21
    "gdn_prefill_from_conv_f32_qkv": (455855489279430772, 300002),  # 1.48 and 1.15
}


@pytest.mark.parametrize("name", one_in(2, LUCK))
def test_an_honest_kernel_keeps_its_margin_on_a_row_of_few_tokens(name: str) -> None:
    found, cpu = definition(name), machine.device("cpu")
    assert cpu is not None
    solution = load_solution(ROOT / "solutions" / "triton_layer")
    lines = [one for seed in LUCK[name] for one in fresh(found, seed, "cpu") if one.name == "fresh_regime"]
    results = list(Checker("cpu", Options(), print).run(list(plan([solution], [(found, lines)], cpu))))
    assert [result.status for result in results] == ["PASSED"] * len(lines)
    assert [round(margin([result]), 2) for result in results if margin([result]) < MARGIN] == []


# An honest way of rounding that no emulator has. Its error was 121% and 111% of the budget of the others.
OTHER_WAY = {"_23_20": 23 / 20}


@pytest.mark.parametrize(
    ("name", "row", "seed"),
    [
        ("gdn_layer_prefill", "fresh_typical", 27),
        pytest.param("kda_layer_prefill", "fresh_regime", 27, marks=pytest.mark.thorough),
    ],
)
def test_a_fresh_budget_allows_an_honest_way_of_rounding_that_stands_in_no_list(
    name: str, row: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = definition(name)
    (line,) = (one for one in fresh(found, seed, "cpu") if one.name == row)
    case = draw_fresh(found, line, Expected("cpu", print), "cpu")
    monkeypatch.setattr("gdnspec.numerics.freeze.OF_FRESH", OTHER_WAY)
    figures = measure(found, case.workload, case.inputs, case.expected, "cpu")
    for output, limits in (case.workload.budget or {}).items():
        for metric in METRICS:
            error = max(x for way, x in figures[output][metric].items() if "_23_20" in way)
            assert error <= limits[metric] / STRICT_MARGIN, (output, metric)


@pytest.mark.parametrize(
    ("name", "stored"),
    [("gdn_layer_prefill", 9), ("gdn_chunk_state", 3), ("gdn_prefill_k_last", 12), ("kda_prefill_k_last", 18)],
)
def test_a_fresh_line_has_more_emulators_where_products_take_part(name: str, stored: int) -> None:
    assert len(emulators_of_a_fresh_line(name)) == stored + len(OF_FRESH)


@pytest.mark.parametrize(("name", "stored"), [("gdn_core_decode", 3), ("gdn_decode_k_last", 1)])
def test_a_fresh_line_has_no_more_where_nothing_is_rounded(name: str, stored: int) -> None:
    assert len(emulators_of_a_fresh_line(name)) == stored


def emulators_of_a_fresh_line(name: str) -> list[str]:
    found, expected = definition(name), Expected("cpu", print)
    lines = [line for seed in range(20) for line in fresh(found, seed, "cpu")]
    line = min(lines, key=lambda line: max(line.axes.values()))
    inputs = materialise(found, line)
    figures = measure(found, line, inputs, expected.values(found, inputs), "cpu")
    return list(figures[found.definition.judged[0].name]["relative_l2"])

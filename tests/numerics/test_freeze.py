"""Budgets are data that anybody can measure again: frozen figures, refusals, and what an edited budget is told."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run
from gdnspec.catalog.definitions import Found, definition, definitions
from gdnspec.catalog.workloads import workloads
from gdnspec.model.budget import LIMITS, METRICS, floors
from gdnspec.model.errors import SpecError
from gdnspec.model.workload import Workload
from gdnspec.numerics import expected, in_order, products
from gdnspec.numerics.freeze import drifts, figures, known, recorded
from helpers_unit import reference

gdn, emulators = reference("family"), reference("emulators")
PREFILL = "gdn_prefill_k_last"
SHORT = ["--preset", "synthetic-gva-1x2-d64", "--lengths", "5,9"]


LONG = 4000  # tokens of a workload that a CPU takes many seconds to measure


def is_long(line: Workload) -> bool:
    return sum(line.sequence_lengths or ()) > LONG and line.judged is None


BACKWARD, BACKWARD_KDA = "gdn_prefill_backward_k_last", "kda_prefill_backward_k_last"
# Whose lines are drawn and measured as those of another definition are.
SIMILAR = {
    "gdn_decode_k_first", "gdn_decode_k_first_bf16_state", "gdn_decode_packed_k_last",
    "gdn_decode_pool_k_last_bf16_state", "gdn_prefill_from_conv_bf16_state",
    "gdn_prefill_from_conv_f32_qkv_bf16_state", "gdn_prefill_k_first", "gdn_prefill_backward_k_first",
    "gdn_prefill_backward_raw_gates", "gdn_layer_backward", "gdn_decode_pool_k_last_int8_state",
    "gdn_verify_k_last_fp8_state", "gdn_verify_k_last_int8_state", "kda_decode_k_last_bf16_state",
    "kda_decode_pool_k_last_bf16_state", "kda_decode_packed_k_last", "kda_decode_packed_k_last_bf16_state",
    "kda_layer_decode", "kda_chunk_state", "kda_chunk_output",
}  # fmt: skip
GENERATED = ("pairs_", "size_", "scalar_")
# The quick run has half of the rest.
QUICK = {PREFILL, BACKWARD, *sorted({*definitions()} - SIMILAR)[::2]}
SAMPLED = [pytest.param(n, marks=[pytest.mark.thorough] * (n not in QUICK)) for n in sorted(definitions())]


@pytest.mark.slow
@pytest.mark.parametrize("most", [100, pytest.param(LONG, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", SAMPLED)
def test_every_frozen_figure_is_measured_again(gdnspec: Run, name: str, most: int) -> None:
    """No figure that a budget rests on may have moved by more than a tenth. Both layouts of prefill have like lines:
    the conformance suite is measured on one of them, and its longest lines on a GPU alone."""
    suites = ("smoke", "strict") if name in (PREFILL, BACKWARD, BACKWARD_KDA) else ("smoke", "conformance", "strict")
    lines = [w for w in workloads(definition(name)) if w.suite in suites and w.device == "any"]
    lines = [w for w in lines if sum(w.sequence_lengths or ()) <= most]
    if most == 100:  # of the many rows that are generated alike one in ten
        made = [w for w in lines if w.name.startswith(GENERATED)]
        lines = [w for w in lines if w not in made[: len(made) - len(made) // 10]]
        lines = lines[::16]  # the thorough run measures each
    if name == "gdn_prefill_checkpoints":  # its longer lines are those of prefill, measured there
        lines = [w for w in lines if sum(w.sequence_lengths or ()) <= LONG // 4]
    chosen = [option for line in lines for option in ("--workload", line.name)]
    done = gdnspec("workloads", "freeze", name, "--check", "--device", "cpu", *chosen)
    assert done.returncode == 0, done.stderr
    assert f"{len(lines)} workloads recomputed" in done.stdout


def test_no_figure_depends_on_an_order_of_summation() -> None:
    """Nor on a processor's exp: a last bit of float32 that differs turns roundings of operands behind it."""
    large, small = torch.tensor([2.0**30]), torch.tensor([1.0])
    x = torch.cat([large, small, -large])
    lower = torch.tril(torch.rand(64, 64, generator=torch.Generator().manual_seed(0)))

    def reference(x: torch.Tensor, lower: torch.Tensor) -> tuple[torch.Tensor, ...]:
        one = torch.ones(64, 1)
        solved = torch.linalg.solve_triangular(lower, one, upper=False, unitriangular=True)
        return x.sum(), x.cumsum(0)[-1], torch.einsum("i,i->", x, torch.ones(3)), torch.exp(x[1] / 3), solved

    exact = torch.linalg.solve_triangular(lower.double(), torch.ones(64, 1).double(), upper=False, unitriangular=True)
    wanted = [1.0, 1.0, 1.0, torch.exp(torch.tensor(1 / 3, dtype=torch.float32).double()).float(), exact.float()]
    for _, values in products.rounded_products(reference, {"x": x, "lower": lower}, strict=False):
        for got, want in zip(values, wanted, strict=True):
            assert got.dtype == torch.float32
            assert torch.equal(got, torch.as_tensor(want))


def test_strict_figures_add_terms_that_cancel_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any other order a few of these ones survive. Frozen figures differed by half between two processors."""
    a = torch.ones(1, 64)
    a[0, 0], a[0, -1] = 2.0**53, -(2.0**53)
    assert in_order.product(a.double(), torch.ones(64, 1).double()) == 0
    lower = torch.eye(64)
    lower[-1, :-1] = 1.0
    right = torch.ones(64, 1)
    right[-2:] = 2.0**54

    def solved(lower: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)

    for _, (found,) in products.rounded_products(solved, {"lower": lower, "right": right}, strict=True):
        assert found[-1, 0] == 0
    monkeypatch.setattr(in_order, "product", lambda a, b: torch.full((1, 2), 7.0, dtype=torch.float64))
    for strict in (True, False):
        for _, (found,) in products.rounded_products(lambda a, b: a @ b, {"a": a, "b": torch.ones(64, 2)}, strict):
            assert bool((found == 7).all()) == strict


def test_products_of_a_chunk_of_one_token_are_rounded_as_those_of_others() -> None:
    """Kernels fill such a chunk up: for a long time their q k had no counterpart among the emulators."""
    found = definition("gdn_prefill_from_conv_f32_qkv")
    line = next(w for w in workloads(found) if w.name == "ragged")
    cut = line.model_copy(
        update={"axes": line.axes | {"total_seq_len": 3}, "sequence_lengths": [1, 1, 1], "sha256": None}
    )
    for measured in figures(found, cut, expected.Expected("cpu", print))["output"]["relative_l2"].values():
        assert measured > 5e-4


def test_a_figure_counts_where_it_decides_the_budget() -> None:
    """Chance puts a few codes off by one, far below what their budget allows. Errors of rounded outputs set theirs."""
    found = definition("gdn_decode_pool_k_last_fp8_state")
    row = next(line for line in workloads(found) if line.name == "16x32_batch_1")
    frozen = known(found, row)
    assert list(drifts(found, row, frozen)) == []
    doubled = {
        output: {metric: {name: 2 * x for name, x in by_name.items()} for metric, by_name in metrics.items()}
        for output, metrics in frozen.items()
    }
    assert {said.split()[0] for said in drifts(found, row, doubled)} == {"output"}


def for_a_gpu(name: str) -> list[str]:
    """Lines that the tests above leave to a GPU, without those that are judged on a sample."""
    lines = workloads(definition(name))
    return [line.name for line in lines if (line.device == "cuda" and line.judged is None) or is_long(line)]


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in sorted(definitions()) if for_a_gpu(name)])
def test_what_is_too_large_for_a_cpu_is_measured_again_too(gdnspec: Run, name: str) -> None:
    chosen = [option for line in for_a_gpu(name) for option in ("--workload", line)]
    done = gdnspec("workloads", "freeze", name, "--check", "--device", "cuda", *chosen, timeout=880)
    moved = done.stderr.splitlines() if done.returncode == 1 else []
    assert done.returncode == (1 if moved else 0), done.stderr
    assert [said for said in moved if not is_rounding(said)] == []


def is_rounding(said: str) -> bool:
    """A figure that a GPU's order of sums explains. A budget is twice its figure: an honest kernel keeps a quarter."""
    moved = re.search(r": ([-+.e\d]+) frozen, ([-+.e\d]+) now$", said)
    return moved is not None and float(moved[2]) <= 1.5 * float(moved[1])


def test_only_a_small_rise_of_a_figure_is_rounding() -> None:
    assert is_rounding("gdn_x row: da relative_l2: 0.0141 frozen, 0.0186 now")
    assert is_rounding("gdn_x row: dout_weight max_over_rms: 0.0782 frozen, 0.0687 now")
    assert not is_rounding("gdn_x row: da relative_l2: 0.0141 frozen, 0.0286 now")
    assert not is_rounding("gdn_x row: da relative_l2: emulators float32 are new or gone")


@pytest.mark.parametrize("name", sorted(definitions()))
def test_every_shipped_line_has_a_budget_with_every_emulator_beside_it(name: str) -> None:
    found = definition(name)
    for line in (w for w in workloads(found) if w.judged is None):
        assert line.budget is not None, line.name
        by_name = known(found, line)
        members = [gdn.without_products(found.definition) or ""]
        if gdn.by_products(found.definition):
            chunked, shortest = products.takes_chunks(expected.in_chunks(found)), shortest_piece(found, line)
            members = [draw.name for draw in products.draws(line.suite == "strict", chunked, shortest)]
        elif found.definition.stage == "prefill":
            members = [e.name for e in emulators.family(line.suite == "strict")]
            assert len(members) == 12
            if found.family.name == "kda" and line.suite != "strict":
                members += [f"chunk_{size}_stored_{when}" for size in (16, 64, 128) for when in ("after", "before")]
        if found.definition.conventions.state_scale != "none":
            members = ["float32_recurrence", "float32_keys_reversed", "float32_larger_values"]
        for output in found.definition.judged:
            for metric in METRICS:
                figures = by_name[output.name][metric]
                assert sorted(figures) == sorted(members), (line.name, output.name)
                limit = line.budget[output.name][metric]
                assert limit == pytest.approx(max(2 * max(figures.values()), floors(output)[metric]), rel=1e-3)
                assert limit <= LIMITS[metric]


def shortest_piece(found: Found, line: Workload) -> int | None:
    """Of gradients the fewest tokens of a sequence, or behind its last state that is given."""
    if found.definition.stage != "backward":
        return None
    interval = int(line.scalars.get("checkpoint_interval") or 10**6)
    return min(((length - 1) % interval + 1 for length in line.sequence_lengths or () if length), default=None)


@pytest.mark.parametrize(
    ("name", "lengths"), [("gdn_prefill_backward_k_first", "3,2"), (BACKWARD, "40,33"), (BACKWARD_KDA, "3,2")]
)
def test_a_short_sequence_has_nine_different_errors_behind_its_budget(
    gdnspec: Run, tmp_path: Path, name: str, lengths: str
) -> None:
    """It had three, from chunks of 16, 64 and 128 tokens alike: an honest kernel took 148% of such a budget."""
    options = ["--preset", "synthetic-gva-1x2-d64", "--lengths", lengths, "--seed", "3"]
    (row,) = generated(gdnspec, tmp_path / "mine.jsonl", *options, name=name)
    for output in ("dg", "dbeta"):
        assert len(set(row["emulators"]["errors"][output]["relative_l2"])) >= 9, output


def generated(gdnspec: Run, file: Path, *options: str, name: str = PREFILL) -> list[dict[str, Any]]:
    done = gdnspec("workloads", "generate", name, *options, "-o", file)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_generated_lines_can_be_checked_at_once(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    (row,) = generated(gdnspec, file, *SHORT)
    assert set(row["budget"]) == {"output", "final_state"}
    done = gdnspec("check", PREFILL, "--workloads", file, "--solution", "torch_recurrent", "--device", "cpu")
    assert done.returncode == 0, done.stderr


def test_without_a_budget_nothing_is_judged_and_freezing_helps(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    (row,) = generated(gdnspec, file, *SHORT, "--no-freeze")
    assert "budget" not in row
    check = ["check", PREFILL, "--workloads", file, "--solution", "torch_recurrent", "--device", "cpu"]
    done = gdnspec(*check)
    assert done.returncode == 2
    assert "'typical_0' of gdn_prefill_k_last has no error budget for output, final_state" in done.stderr
    assert "PASSED" not in done.stdout
    assert gdnspec("workloads", "freeze", PREFILL, "--workloads", file).returncode == 0
    assert gdnspec(*check).returncode == 0


def test_a_strict_workload_is_held_to_two_terms(gdnspec: Run, tmp_path: Path) -> None:
    (row,) = generated(gdnspec, tmp_path / "mine.jsonl", *SHORT, "--regime", "strict_keys")
    assert row["suite"] == "strict"
    assert row["emulators"]["names"] == "prefill_two_terms"
    names = definition(PREFILL).family.about.emulators["prefill_two_terms"]
    assert names == [e.name for e in emulators.family(strict=True)]


def test_what_no_honest_kernel_gets_right_is_refused(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    options = ["--preset", "synthetic-gva-1x2-d128", "--regime", "repeated_keys", "--lengths", "1200"]
    done = gdnspec("workloads", "generate", PREFILL, *options, "-o", file)
    assert done.returncode == 2
    assert (
        "'repeated_keys_0' of gdn_prefill_k_last cannot be judged: twice the error of an honest emulator" in done.stderr
    )
    assert "above 0.1" in done.stderr
    assert not list(tmp_path.iterdir()), "half a file looks like a whole one"
    file.write_text("precious")
    assert gdnspec("workloads", "generate", PREFILL, *options, "-o", file, "--force").returncode == 2
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def edited(tmp_path: Path, change: Any) -> Path:
    row = json.loads((definition(PREFILL).workloads_file).read_text().splitlines()[0])
    change(row)
    file = tmp_path / "edited.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


def test_a_budget_that_does_not_follow_from_its_emulators_is_refused(gdnspec: Run, tmp_path: Path) -> None:
    def widen(row: dict[str, Any]) -> None:
        row["budget"]["final_state"]["relative_l2"] = 0.09

    for command in ("check", "validate"):
        file = edited(tmp_path, widen)
        arguments = (PREFILL, "--workloads", file) if command == "check" else (file, "--definition", PREFILL)
        done = gdnspec(command, *arguments)
        assert done.returncode == 2
        assert "line 1: /budget/final_state: the budget does not follow from its emulators" in done.stderr.replace(
            "\n", " "
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda emulators: emulators["errors"]["output"]["worst_vector"].pop(),
            "/emulators/errors/output/worst_vector: 11 errors instead of 12: 'prefill'",
        ),
        (
            lambda emulators: emulators["errors"]["final_state"]["relative_l2"].append(0.001),
            "/emulators/errors/final_state/relative_l2: 13 errors instead of 12: 'prefill'",
        ),
        (
            lambda emulators: emulators.update(names="prefil"),
            "/emulators/names: family.json has no list of emulators 'prefil' (did you mean 'prefill'?)",
        ),
        (
            lambda emulators: emulators["errors"].update(outptu={}),
            "/emulators/errors/outptu: 'outptu' is not an output (did you mean 'output'?)",
        ),
        (
            lambda emulators: emulators["errors"]["output"].update(worst_vector={"chunk_16_ahead_after": 0.1}),
            "/emulators/errors/output/worst_vector: should be a list in brackets",
        ),
    ],
)
def test_figures_that_are_not_one_of_each_emulator_are_refused(
    gdnspec: Run, tmp_path: Path, change: Any, said: str
) -> None:
    file = edited(tmp_path, lambda row: change(row["emulators"]))
    done = gdnspec("validate", file, "--definition", PREFILL)
    assert done.returncode == 2
    assert f"edited.jsonl: line 1: {said}" in " ".join(done.stderr.split())


def test_a_family_that_does_not_list_its_emulators_is_told_where_to(tmp_path: Path) -> None:
    found = definition(PREFILL)
    (line, *_) = workloads(found)
    folder = tmp_path / "definitions/gdn"
    folder.mkdir(parents=True)
    about = json.loads(found.family.file.read_text())
    del about["emulators"]["prefill"]
    (folder / "family.json").write_text(json.dumps(about))
    elsewhere = replace(found, family=replace(found.family, folder=folder))
    with pytest.raises(
        SpecError, match=r"family.json: /emulators: no list consists of the emulators chunk_16_ahead_after, "
    ):
        frozen_by(elsewhere, line)
    assert frozen_by(found, line).emulators == line.emulators


def frozen_by(found: Found, line: Workload) -> Workload:
    return recorded(found, line, known(definition(PREFILL), line))


def test_a_figure_that_has_moved_is_reported(gdnspec: Run, tmp_path: Path) -> None:
    def forge(row: dict[str, Any]) -> None:
        row["emulators"]["errors"]["output"]["relative_l2"] = [0.0045] * 12
        row["budget"]["output"]["relative_l2"] = 0.009

    file = edited(tmp_path, forge)
    before = file.read_text()
    done = gdnspec("workloads", "freeze", PREFILL, "--check", "--workloads", file, "--device", "cpu")
    assert done.returncode == 1
    assert "output relative_l2: 0.0045 frozen, 0.003" in done.stderr
    assert file.read_text() == before

"""What the suites must cover, over all definitions: pairs of conditions, values of scalars, sizes of axes, gates."""

import importlib
from types import ModuleType

import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.families import family
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.contract import Published
from gdnspec.inputs.fresh import published
from gdnspec.model.workload import Workload
from helpers_unit import reference

BY_HAND = reference("suites.covering.names").BY_HAND
NAMES = sorted(name for name, found in definitions().items() if found.family.name == "gdn" and name not in BY_HAND)
PREFILL, VERIFY = "gdn_prefill_k_last", "gdn_verify_k_last"


def module(name: str) -> ModuleType:
    return reference(f"suites.covering.{name}")


def known(name: str) -> Published:
    return published(definition(name), workloads(definition(name)))


@pytest.mark.parametrize("name", NAMES)
def test_every_pair_of_conditions_occurs(name: str) -> None:
    pairs = module("pairs")
    missing = [pairs.said(pair) for pair in pairs.missing(known(name), known(name).lines)]
    assert not missing, f"{len(missing)} pairs in no row: python tools/make_workloads.py {name} adds rows"


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_has_every_size(name: str) -> None:
    missing = module("sizes").missing(known(name), known(name).lines)
    assert not missing, f"in no row: python tools/make_workloads.py {name} adds rows"


@pytest.mark.parametrize("name", NAMES)
def test_every_scalar_has_values_of_every_kind(name: str) -> None:
    assert not module("scalars").missing(known(name), known(name).lines)


@pytest.mark.parametrize("name", NAMES)
def test_every_gate_is_1_among_decay_and_stands_in_every_region(name: str) -> None:
    gates, found = module("gates"), known(name)
    names = gates.inputs_of(found.definition)
    met = {row.regime for row in found.lines if row.suite == "conformance"}
    of_regions = {row.regime for row in found.lines if row.suite == "strict"} if gates.GRADIENTS in name else met
    if names & gates.GATED:
        assert {"sparse_gates", "interleaved_gates", "padded_tails", "in_turn"} <= met
    if names & gates.GATED - {gates.PROJECTED}:
        assert "forget_regions" in of_regions
    if names & gates.WRITING and gates.PROJECTED not in names:
        assert "write_regions" in of_regions


def test_the_readme_has_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("make_workloads")
    text = (ROOT / "definitions" / "gdn" / "README.md").read_text()
    held = text.split(tool.BEGIN)[1].split(tool.END)[0].strip()
    assert held == tool.table(family("gdn")).strip(), "python tools/make_workloads.py --table"


# --- the measures themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [PREFILL, VERIFY, "gdn_core_decode"])
def test_without_the_rows_of_pairs_some_are_missing_and_the_same_rows_come_back(name: str) -> None:
    """Else the count would find nothing."""
    pairs, found = module("pairs"), known(name)
    others = [row for row in found.lines if not row.name.startswith("pairs_")]
    assert len(pairs.missing(found, others)) > 50
    once, again = ([*pairs.rows_for(found, others, 1, dict)] for _ in range(2))
    assert once == again
    made = [Workload.model_validate(row | {"suite": "conformance", "seed": 0}) for row in once]
    assert not pairs.missing(found, [*others, *made])


def test_a_row_is_seen_only_where_it_has_something_to_do() -> None:
    pairs, found = module("pairs"), known(PREFILL)
    by_name = {row.name: row for row in found.lines}
    assert not pairs.covered(found, by_name["all_empty"])
    assert not pairs.covered(found, by_name["regime_beta_zero"])
    shown = pairs.covered(found, by_name["scale_zero"])
    assert shown
    assert all("scale" in (a[0], b[0]) for a, b in shown)


def test_known_rows_exhibit_what_they_were_made_for() -> None:
    factors, found = module("factors"), known(PREFILL)
    by_name = {row.name: row for row in found.lines}
    empty = factors.exhibits(found, by_name["empty_sequences"])
    assert {"first", "middle", "last"} == empty["empty"]
    assert empty["heads"] == {"gva 2"}
    assert empty["key heads"] == {"several"}
    alone = factors.exhibits(found, by_name["only_required"])
    assert (alone["g"], alone["beta"], alone["initial_state"]) == ({"absent"}, {"absent"}, {"absent"})
    assert factors.exhibits(found, by_name["gqa"])["heads"] == {"gqa 2"}
    assert factors.exhibits(found, by_name["scale_negative"])["scale"] == {"negative"}


@pytest.mark.parametrize("name", NAMES)
def test_what_no_call_can_exhibit_is_said(name: str) -> None:
    """Every pair is required, or there is a reason why not."""
    pairs, table = module("pairs"), module("factors").factors_of(known(name))
    wanted = set(pairs.pairs(known(name)))
    levels = [(factor, level) for factor, each in table.items() for level in each]
    left = [(a, b) for i, a in enumerate(levels) for b in levels[i + 1 :] if a[0] != b[0] and (a, b) not in wanted]
    assert all(pairs.impossible(a, b) for a, b in left)


def test_a_size_just_past_a_block_counts_and_the_block_itself_does_not() -> None:
    matches = module("sizes").matches
    assert matches(65, 65)
    assert matches(72, 65)
    assert not matches(64, 65)
    assert not matches(73, 65)
    assert matches(3, 3)
    assert not matches(4, 3)

"""The inputs that reference/gdn/scripts/search_adversarial.py found, and the search itself on a small problem."""

import importlib
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from types import ModuleType

import pytest
import torch
from conftest import ROOT
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import Inputs, materialise
from gdnspec.model.budget import LIMITS, MARGIN, METRICS, SPACING
from gdnspec.model.workload import Workload
from gdnspec.numerics.arguments import arguments
from gdnspec.numerics.expected import Expected
from gdnspec.numerics.freeze import Figures, figures
from gdnspec.numerics.metrics import Vectors
from gdnspec.numerics.metrics import errors as judged
from gdnspec.numerics.torch_arrays import to_torch
from helpers_unit import reference

emulators = reference("emulators")
K_LAST, K_FIRST = LAYOUTS = ("gdn_prefill_k_last", "gdn_prefill_k_first")
SIZE_LIMIT = 150_000  # bytes
# (output, metric) that a file is bad at; the largest error with T in bfloat16 over that with T as a sum of two, k_last
# and k_first. A row of k_last's state is a column of k_first's.
FOUND = {
    "adversarial_1": ("output", "relative_l2", 8.48, 8.48),
    "adversarial_2": ("final_state", "relative_l2", 20.98, 20.98),
    "adversarial_3": ("final_state", "worst_vector", 5.32, 4.70),
    "adversarial_4": ("output", "worst_vector", 5.17, 5.34),
}
ROWS = [(layout, name) for layout in LAYOUTS for name in FOUND]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "reference/gdn/scripts"))
    with torch.no_grad():
        yield importlib.import_module("search_adversarial")


def row(layout: str, name: str) -> Workload:
    return next(w for w in workloads(definition(layout)) if w.name == name)


def inputs(layout: str, name: str) -> Inputs:
    return materialise(definition(layout), row(layout, name))


@cache
def measured(layout: str, name: str, suite: str) -> Figures:
    """The figures of the family (conformance) or of the strict family (strict)."""
    workload = row(layout, name).model_copy(update={"suite": suite})
    return figures(definition(layout), workload, Expected("cpu", print))


@pytest.mark.parametrize(("layout", "name"), ROWS)
def test_they_are_bad_for_bfloat16_and_not_for_care(layout: str, name: str) -> None:
    output, metric, *ratios = FOUND[name]
    ordinary, strict = (max(measured(layout, name, s)[output][metric].values()) for s in ("conformance", "strict"))
    assert ordinary / strict >= 0.9 * ratios[LAYOUTS.index(layout)]


@pytest.mark.parametrize(("layout", "name"), ROWS)
def test_budgets_can_be_frozen_with_room_to_spare(layout: str, name: str) -> None:
    for by_metric in measured(layout, name, "conformance").values():
        for metric, by_name in by_metric.items():
            assert 2 * max(by_name.values()) <= 0.9 * LIMITS[metric], metric


@pytest.mark.parametrize(("layout", "name"), ROWS)
def test_honest_chunks_of_another_size_keep_their_margin(layout: str, name: str) -> None:
    """Chunks of 32 round elsewhere: the search must not have followed the luck of the family's roundings."""
    found, given = definition(layout), inputs(layout, name)
    wanted = Expected("cpu", print).values(found, given)
    budget = row(layout, name).budget
    ways = [(order, rounding) for order in ("ahead", "direct") for rounding in ("after", "before")]
    others = [emulators.Emulator(32, order, rounding, 1) for order, rounding in ways]
    for emulator, values in emulators.emulate(found.definition, arguments(found, given, "cpu"), others):
        for output, value in zip(found.definition.outputs, values, strict=True):
            # Rows of one sequence, as judged; [row, head, element].
            got, want = (x.double() for x in (value, wanted[output.name]))
            if got.dim() == 4:
                got, want = got[0].transpose(0, 1), want[0].transpose(0, 1)
            owner = torch.zeros(len(got), dtype=torch.int64)
            spacing = SPACING.get(output.dtype)
            maxima = judged(Vectors(got, owner, 1), Vectors(want, owner, 1), spacing).maxima
            for metric, allowed in budget[output.name].items():
                assert maxima[metric] * MARGIN <= allowed, (emulator, output.name, metric)


@pytest.mark.parametrize("name", FOUND)
def test_both_layouts_have_the_same_inputs(name: str) -> None:
    last, first = (inputs(layout, name).tensors for layout in LAYOUTS)
    assert last.keys() == first.keys() == {"q", "k", "v", "g", "beta", "cu_seqlens"}
    for tensor in last.keys() - {"g"}:
        assert torch.equal(to_torch(last[tensor]), to_torch(first[tensor])), tensor
    alpha, log_alpha = (to_torch(x["g"]).double() for x in (last, first))
    assert (alpha - log_alpha.exp()).abs().max() <= 2.0**-21


@pytest.mark.parametrize(("layout", "name"), ROWS)
def test_values_are_on_the_grid_and_bounded(layout: str, name: str) -> None:
    given = {n: to_torch(x).double() for n, x in inputs(layout, name).tensors.items()}
    for gate in ("g", "beta"):
        steps = given[gate] * 2.0**20
        assert torch.equal(steps, steps.round()), gate
    norms = given["k"].square().sum(-1)  # [tokens, 1]
    assert norms.max() <= 1.0
    assert (given["beta"] * norms).max() <= 2.0
    file = definition(layout).folder / str(row(layout, name).tensors)
    assert file.stat().st_size < SIZE_LIMIT


def test_the_rows_are_those_that_the_tool_aims_at(tool: ModuleType) -> None:
    assert {t.name: (t.output, t.metric) for t in tool.TARGETS} == {n: found[:2] for n, found in FOUND.items()}
    for target in tool.TARGETS:
        workload = row(K_LAST, target.name)
        assert (workload.suite, workload.preset) == ("conformance", tool.PRESET)
        assert workload.axes == {"total_seq_len": target.tokens, "num_seqs": 1}


@pytest.mark.thorough
def test_a_search_improves_on_its_start(tool: ModuleType) -> None:
    found = definition(K_LAST)
    target = replace(tool.TARGETS[1], name="small", tokens=20, chunk=64, generations=25, seed=1)
    genes, first, last = tool.search(found, target, lineages=4)
    assert last > first + math.log(1.2)
    again = tool.search(found, target, lineages=4)
    assert again[1:] == (first, last)
    assert all((genes[name] == again[0][name]).all() for name in genes)


def test_the_tool_measures_as_the_judge_does(tool: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    got, want = (torch.randn(7, 2, tool.SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    ours = tool.errors(got, want)[:, 0]  # [metric, head]
    owner = torch.zeros(7, dtype=torch.int64)
    for head in range(2):
        theirs = judged(*(Vectors(x[:, head : head + 1], owner, 1) for x in (got, want))).maxima
        for i, metric in enumerate(METRICS):
            assert math.isclose(float(ours[i, head]), theirs[metric], rel_tol=1e-12), metric

"""Pools of codes and their scales: one row of slots names both, in compact calls, in rings and under junk."""

import pytest
import torch
from gdnspec.bench.ring import Ring
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.call import Content
from gdnspec.check.junk import with_junk
from gdnspec.check.plan import plan
from gdnspec.check.symmetry import apply_all, draw, same_values, taken_back
from gdnspec.inputs.materialise import materialise
from gdnspec.model.workload import Workload
from gdnspec.numerics.pools import compact, named_slots
from gdnspec.paths import solutions_dir
from gdnspec.sandbox.parent.process import Child

POOLS = ("pool", "pool_scales")


def line_of(name: str, workload: str) -> Workload:
    return next(line for line in workloads(definition(name)) if line.name == workload)


def content_of(name: str, workload: str) -> Content:
    return Content.of(materialise(definition(name), line_of(name, workload)), "cpu")


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_slots_name_codes_and_scales(kind: str) -> None:
    name = f"gdn_decode_pool_k_last_{kind}_state"
    found, inputs = definition(name), materialise(definition(name), line_of(name, "moved"))
    named = named_slots(found.definition, inputs.scope)
    assert list(named) == [*POOLS]
    assert named["pool"] == named["pool_scales"] == sorted({*inputs.scope["read_slots"], *inputs.scope["write_slots"]})
    small = compact(found.definition, inputs)
    assert {len(small.tensors[pool].data) for pool in POOLS} == {len(named["pool"])}
    for pool in POOLS:
        tensor = found.definition.input(pool)
        assert found.definition.written(tensor, inputs.scope) == sorted(inputs.scope["write_slots"])


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_what_is_not_read_is_junk(kind: str) -> None:
    name = f"gdn_decode_pool_k_last_{kind}_state"
    content = content_of(name, "moved")
    junk = with_junk(definition(name).definition, content).tensors
    read = content.tensors["read_slots"].tolist()
    for pool in POOLS:
        changed = (junk[pool].flatten(1).view(torch.uint8) != content.tensors[pool].flatten(1).view(torch.uint8)).any(1)
        assert [n for n, yes in enumerate(changed.tolist()) if not yes] == sorted(read)
    assert junk["pool_scales"].isnan().any()


def test_symmetries_of_codes_are_undone_exactly() -> None:
    for kind in ("fp8", "int8"):
        name = f"gdn_decode_pool_k_last_{kind}_state"
        content = content_of(name, "in_place")
        drawn = draw(definition(name).definition, content.scope, torch.Generator().manual_seed(1), moved=True)
        there = apply_all(drawn, content.tensors)
        assert there["pool"].dtype == content.tensors["pool"].dtype
        assert not bool(same_values(there["pool"], content.tensors["pool"]).all())
        back = taken_back(drawn, there)
        assert all(bool(same_values(back[name], x).all()) for name, x in content.tensors.items())


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_every_call_of_a_ring_writes_its_slots_of_both(kind: str) -> None:
    name = f"gdn_decode_pool_k_last_{kind}_state"
    found, line, solution = (
        definition(name),
        line_of(name, "shared"),
        load_solution(solutions_dir() / "torch_quantised"),
    )
    device = machine.device("cpu")
    assert device is not None
    (job,) = plan([solution], [(found, [line])], device)
    content = content_of(name, "shared")
    given = content.tensors["pool_scales"]
    with Child(solution, "cpu", False) as child, Ring(job, content, {}, child, 3, 10.0) as ring:
        ring.fill(torch.Generator().manual_seed(3), 3)
        codes, scales = (ring._views[pool] for pool in POOLS)
        for i in range(3):
            (slot,) = set(ring._views["read_slots"][i].tolist())
            (base,) = set(content.tensors["read_slots"].tolist())
            for mine, theirs in ((codes[slot], content.tensors["pool"][base]), (scales[slot], given[base])):
                fractions = [torch.frexp(x.float())[0].abs() for x in (mine, theirs)]  # up to signs and powers of two
                assert torch.equal(*fractions)
        named = set(ring._rows["pool"].flatten().tolist())
        free = [slot for slot in range(len(scales)) if slot not in named]
        assert bool(scales[free].isnan().all()), "no call names them"
        assert ring.overrun() is None
        ring._views["pool_scales"][int(ring._views["read_slots"][0][0])] += 1.0
        _, verdict = ring._of_call(0)
        assert verdict is not None
        assert (verdict.status, "pool_scales" in verdict.message) == ("MUTATED_INPUT", True)

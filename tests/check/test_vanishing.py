"""Regimes whose decays vanish within a chunk: there a power of two on the inputs need not come out exactly.

A term below 2^-126 that is lost, or is not, can decide to which of two float32 numbers a sum is rounded that lies half
way between them. A kernel that is right to the last bit otherwise must not be called irreproducible for that.
"""

from itertools import pairwise

import pytest
import torch
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.check.second import further
from gdnspec.inputs.materialise import materialise
from gdnspec.numerics.arguments import arguments

CHUNK, VANISHED = 64, -100.0  # log2


def decays(name: str, regime: str) -> torch.Tensor:
    """log2 of the decays over each chunk's length of tokens, for a row of this regime. A reset, which is exact, counts
    as none."""
    found = definition(name)
    line = next(line for line in workloads(found) if line.regime == regime and line.name.startswith("regime_"))
    given = arguments(found, materialise(found, line), "cpu")
    g = given["g"].double()
    steps = (g.log() if found.definition.conventions.decay_gate == "linear" else g) / torch.log(torch.tensor(2.0))
    steps = torch.where(steps < -150.0, 0.0, steps)
    bounds, sums = given["cu_seqlens"].tolist(), []
    for start, stop in pairwise(bounds):
        if stop - start >= CHUNK:
            whole = torch.cat([torch.zeros_like(steps[:1]), steps[start:stop].cumsum(0)])
            sums.append((whole[CHUNK:] - whole[:-CHUNK]).flatten())
    return torch.cat(sums)


@pytest.mark.parametrize("name", ["gdn_prefill_k_last", "kda_prefill_k_last"])
def test_the_family_names_each_regime_in_which_most_decays_vanish(name: str) -> None:
    found = definition(name)
    regimes = {line.regime for line in workloads(found) if line.name.startswith("regime_") and "g" not in line.omit}
    assert "long_memory" in regimes
    steep = {r for r in regimes if r and (decays(name, r) < VANISHED).double().mean() >= 0.5}
    assert steep, "no regime forgets a whole chunk"
    assert steep <= set(found.family.about.vanishing)
    assert not {"typical", "long_memory"} & set(found.family.about.vanishing)


def test_there_a_scaled_answer_is_held_to_the_budget_and_not_to_the_bit() -> None:
    found = definition("gdn_prefill_backward_k_last")
    line = next(line for line in workloads(found) if line.name == "regime_fast_decay")
    scope = materialise(found, line).scope
    exact, all_of_them = further(found.definition, scope, torch.Generator().manual_seed(0), vanishing=True)
    assert "scale_cotangents" not in {one.symmetry.name for one in exact}
    assert "scale_cotangents" in {one.symmetry.name for one in all_of_them}

"""Times and ratios in the pages of decode kernels are those of the traces that they name, not of rounded figures."""

import math
import re
from functools import cache
from itertools import pairwise

import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import solutions
from gdnspec.report.sources import traces

PEERS = {"FlashInfer": "flashinfer", "FLA": "fla"}
# In the first column: a definition for each column of times.
STATES: dict[str, tuple[str, ...]] = {
    "float32": ("gdn_decode_k_last", "gdn_decode_k_first"),
    "bfloat16": ("gdn_decode_k_last_bf16_state", "gdn_decode_k_first_bf16_state"),
    "float32, pool": ("gdn_decode_pool_k_last",),
    "bfloat16, pool": ("gdn_decode_pool_k_last_bf16_state",),
    "float32, verify 4 tokens": ("gdn_verify_k_last",),
}
PAGES = {"triton_decode": "nvidia-h200"}
OF_TIMES = {"cuda_decode": "nvidia-h200"}


@cache
def ratios(name: str, device: str) -> dict[tuple[str, str, str], float]:
    """A library's time over the solution's, by definition, workload and library: measured from either side."""
    known, _ = solutions()
    found = {}
    for of in (name, *PEERS.values()):
        for item in traces([known[of]], known.values(), definitions(), lambda text: None):
            trace = item.trace
            for one in trace.against if trace.device == device else ():
                if of == name and one.baseline in PEERS.values():
                    found[trace.definition, trace.workload, one.baseline] = one.ratio
                elif one.baseline == name:
                    found[trace.definition, trace.workload, of] = 1 / one.ratio
    return found


def rows(name: str) -> list[list[str]]:
    """The table of results that has a column of batches, its head first; an empty first cell has what stands above."""
    text = (ROOT / "solutions" / name / "README.md").read_text().partition("## Results")[2]
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    lines = next(lines for lines in tables if "| batch |" in lines[0])
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]
    for above, row in pairwise(table):
        row[0] = row[0] or above[0]
    return table


def workload_of(states: str, batch: str) -> str:
    return ("16x32_4_tokens_batch_" if "verify" in states else "16x32_batch_") + batch


@pytest.mark.parametrize(("name", "device"), OF_TIMES.items())
def test_times_are_those_of_the_traces(name: str, device: str) -> None:
    known, _ = solutions()
    traced = [item.trace for item in traces([known[name]], known.values(), definitions(), lambda text: None)]
    measured = {(one.definition, one.workload): one.timing for one in traced if one.device == device and one.timing}
    _, *table = rows(name)
    cells = [
        (definition, workload_of(states, batch), cell)
        for states, batch, *times in table
        for definition, cell in zip(STATES[states], times, strict=False)
        if cell
    ]
    assert len(cells) > 15
    for definition, workload, cell in cells:
        timing = measured[definition, workload]
        assert timing is not None
        assert cell == f"{timing.median * 1e6:.3g}", (definition, workload)


@pytest.mark.parametrize(("name", "device"), PAGES.items())
def test_ratios_are_those_of_the_traces(name: str, device: str) -> None:
    found, (head, *table) = ratios(name, device), rows(name)
    count = 0
    for states, batch, *cells in (row for row in table if row[0] in STATES):
        layout = -1
        for title, cell in zip(head[2:], cells, strict=True):
            layout += title.startswith("k_")
            peer = PEERS.get(title.partition(" /")[0])
            if peer is None or not cell:
                continue
            served = STATES[states][layout if "ours" in title else 0]
            known = [value for (of, workload, library), value in found.items()
                     if (of, workload, library) == (served, workload_of(states, batch), peer)]  # fmt: skip
            assert cell in [f"{value:.2f}" for value in known], (states, batch, title, cell, known)
            count += 1
    assert count > 20


def test_the_means_of_all_traces_are_those_of_the_traces() -> None:
    found = ratios("triton_decode", PAGES["triton_decode"])
    last = next(row for row in rows("triton_decode") if row[0].startswith("geometric mean of all traces"))
    counts = [int(count) for count in re.findall(r"\d+", last[0])]
    for peer, count, cell in zip(PEERS.values(), counts, last[-2:], strict=True):
        each = [value for (_, _, library), value in found.items() if library == peer]
        assert len(each) == count
        for said, value in zip(
            re.findall(r"[\d.]+", cell),
            (math.exp(sum(map(math.log, each)) / count), min(each), max(each)),
            strict=True,
        ):
            assert said == f"{value:.{len(said.partition('.')[2])}f}"

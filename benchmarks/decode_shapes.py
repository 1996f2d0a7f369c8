"""The rows of decode_rows.py, and how much longer than a copy each may take. Needs no GPU."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

HEADS = ((4, 16), (16, 32), (16, 48), (16, 64))
SMALL, MOST, STEP = 40, 300, 7


class Row(NamedTuple):
    heads: tuple[int, int]  # query and key heads; value heads
    batch: int
    pool: bool
    bf16: bool

    @property
    def name(self) -> str:
        (hk, h), kind = self.heads, "pool" if self.pool else "dense"
        return f"{hk}/{h} {kind} {'bfloat16' if self.bf16 else 'float32'} {self.batch}"

    @property
    def definition(self) -> str:
        return f"gdn_decode_{'pool_' if self.pool else ''}k_last{'_bf16_state' if self.bf16 else ''}"


def batches(heads: int, multiprocessors: int) -> list[int]:
    """Batches 1 to 40, every seventh up to 300, and those on either side of each number of (row, head) pairs that is a
    multiple of the multiprocessors, where a wave begins."""
    found = {*range(1, SMALL + 1), *range(STEP, MOST + 1, STEP)}
    for waves in range(1, heads * MOST // multiprocessors + 1):
        pairs = waves * multiprocessors
        found |= {max(1, math.ceil(pairs / heads) - 1), pairs // heads, math.ceil(pairs / heads), pairs // heads + 1}
    return sorted(batch for batch in found if 0 < batch <= MOST)


def rows(multiprocessors: int) -> list[Row]:
    return [
        Row(heads, batch, pool, bf16)
        for heads in HEADS
        for pool in (False, True)
        for bf16 in (False, True)
        for batch in batches(heads[1], multiprocessors)
    ]


def allowed(row: Row, copy: float, multiprocessors: int) -> float:
    """Microseconds: 8% more than a copy of the states, or 0.7 more where that is later; 1 more below one wave."""
    least = 1.0 if row.batch * row.heads[1] < multiprocessors else 0.7
    return max(1.08 * copy, copy + least)


def summary(records: Iterable[dict[str, Any]], multiprocessors: int) -> list[str]:
    """A line for each count of heads and kind of states: which rows take longer than is allowed, or than a peer."""
    groups: dict[str, list[tuple[Row, dict[str, Any]]]] = {}
    for found in records:
        row = Row(tuple(found["heads"]), found["batch"], found["pool"], found["bf16"])
        groups.setdefault(row.name.rpartition(" ")[0], []).append((row, found))
    said = []
    for group, own in groups.items():
        late = [row.batch for row, x in own if x["us"] > allowed(row, x["copy"], multiprocessors)]
        worst = max(own, key=lambda one: one[1]["us"] / one[1]["copy"])
        text = f"{group}: {len(late)} of {len(own)} rows take longer than allowed {late}; "
        text += f"most beside the copy {worst[1]['us'] / worst[1]['copy']:.3f} (batch {worst[0].batch})"
        slower = [row.batch for row, x in own if x["us"] > 1.01 * min(x["peers"].values(), default=math.inf)]
        said.append(f"{text}; {len(slower)} rows more than 1% slower than a peer {slower}")
    return said

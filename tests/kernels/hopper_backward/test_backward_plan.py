"""What hopper_backward allocates beside inputs and outputs, and which kernels a call gets: its host code alone."""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import ROOT
from test_backward_emulation import GXX, HERE, OF_PREFILL, device_code

sys.path.append(str(ROOT / "benchmarks"))

from prefill_shapes import rows

pytestmark = [
    pytest.mark.skipif(GXX is None, reason="no g++ here"),
    pytest.mark.xdist_group("hopper_backward's plan"),  # one program for all
]


class Asked(NamedTuple):
    """Heads of queries, of keys, of values."""

    heads: tuple[int, int, int]
    tokens: int
    sequences: int
    states: bool = True
    output: bool = True
    bfloat16: bool = True
    quick: bool = True  # memory, as an H200's


class Planned(NamedTuple):
    """Bytes; chunks of a segment; blocks that walk beside others; slices; tiles without memory; tokens (brief.cuh);
    both walks side by side; blocks that walk back, at most; so many where all lengths are alike, or 0."""

    inputs: int
    workspace: int
    segment: int
    beside: int
    slices: int
    little: int
    brief: int
    paired: int
    walkers: int
    even: int

    @property
    def ratio(self) -> float:
        return self.workspace / self.inputs


def built(folder: Path, *options: str) -> Path:
    device_code(folder, None)
    includes = [f"-I{x}" for x in (folder, HERE, OF_PREFILL, OF_PREFILL / "hopper_emulation")]
    main = HERE.parent / "backward_plan/main.cpp"
    subprocess.run([str(GXX), "-std=c++20", "-w", *options, *includes, "-o", folder / "plan", main], check=True)
    return folder / "plan"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("plan"))


def plans(program: Path, asked: list[Asked]) -> dict[Asked, Planned]:
    text = "\n".join(
        " ".join(map(str, map(int, (x.tokens, x.sequences, *x.heads, x.states, x.output, x.bfloat16, x.quick))))
        for x in asked
    )
    done = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    found = [Planned(*map(int, line.split())) for line in done.stdout.splitlines()]
    return dict(zip(asked, found, strict=True))


def plan(program: Path, asked: Asked) -> Planned:
    return plans(program, [asked])[asked]


def gva(hk: int, h: int, tokens: int, sequences: int) -> Asked:
    return Asked((hk, hk, h), tokens, sequences)


ROWS = [gva(*row.heads, sum(row.lengths), len(row.lengths)) for row in rows() if row.head_size == 128]


def test_rows_take_at_most_twice_their_inputs(program: Path) -> None:
    for asked, found in plans(program, ROWS).items():
        assert found.ratio <= 2.0, asked


def test_so_does_what_has_up_to_four_heads_per_key_head(program: Path) -> None:
    """Sequences of 64 tokens and more."""
    asked = [
        gva(hk, hk * group, each * sequences, sequences)
        for hk, group, sequences, each in product(
            (1, 2, 4, 8, 16, 32),
            (1, 2, 3, 4),
            (1, 2, 3, 7, 16, 64, 300),
            (64, 65, 100, 512, 1000, 4096, 8192, 32768, 131072),
        )
        if each * sequences < 2**31 - 64
    ]
    for x, found in plans(program, asked).items():
        assert found.ratio <= 2.0, x


def test_so_do_two_query_heads_per_key_head(program: Path) -> None:
    asked = [
        Asked((2 * hk, hk, hk), each * sequences, sequences)
        for hk, sequences, each in product((1, 4, 16), (1, 4, 64), (64, 1000, 8192, 32768))
    ]
    for x, found in plans(program, asked).items():
        assert found.ratio <= 2.0, x


def test_the_page_has_what_the_code_counts(program: Path) -> None:
    text = (ROOT / "solutions/hopper_backward/README.md").read_text()
    row = r"^\| (\d+)/(\d+), (\d+)x(\d+) \| ([\d,]+) MB \| ([\d,]+) MB \| ([\d.]+) \|$"
    lines = re.findall(row, text, re.M)
    assert len(lines) >= 6
    for hk, h, count, tokens, *said in lines:
        found = plan(program, gva(int(hk), int(h), int(count) * int(tokens), int(count)))
        megabytes = [f"{x / 1e6:,.0f}" for x in (found.inputs, found.workspace)]
        assert [*megabytes, f"{found.ratio:.2f}"] == said


def test_short_sequences_take_less(program: Path) -> None:
    """One chunk: nothing but tiles passes through memory; where that is sure, nothing else is allocated."""
    assert plan(program, gva(16, 32, 64, 64)).ratio < 0.2
    assert plan(program, gva(16, 32, 512 * 40, 512)).ratio < 1.3
    assert plan(program, gva(16, 32, 64, 64)).brief == 64


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        pytest.param(Asked((16, 16, 64), 32768, 1, states=False), 2.0, id="without states"),
        pytest.param(Asked((16, 16, 64), 8 * 1024, 8, states=False), 2.12, id="without states, short sequences"),
        pytest.param(Asked((16, 16, 32), 8192, 1, output=False), 2.9, id="without do, which is zeros then"),
        pytest.param(Asked((2, 2, 8), 8192, 1, bfloat16=False), 2.0, id="float16, few heads, cut"),
        pytest.param(Asked((4, 4, 32), 8192, 1), 2.2, id="eight heads per key head"),
        pytest.param(Asked((32, 8, 8), 8192, 1), 2.4, id="four query heads per key head"),
    ],
)
def test_what_takes_more_does_not_grow(program: Path, asked: Asked, most: float) -> None:
    """README.md says so."""
    assert plan(program, asked).ratio <= most


def test_long_sequences_of_few_heads_are_cut(program: Path) -> None:
    lengths = (8192, 32768, 131072)
    assert all(plan(program, gva(2, 8, x, 1)).segment > 0 for x in lengths)
    assert all(plan(program, Asked((2, 2, 8), x, 1, bfloat16=False)).segment > 0 for x in lengths)


def test_memory_that_is_quick_lets_more_blocks_walk(program: Path) -> None:
    """On an H200; on an H100 those lost."""
    walkers = {(2, 64): 43, (4, 32): 43, (2, 48): 48, (1, 64): 64}  # sequences and heads: blocks
    for (sequences, heads), most in walkers.items():
        asked = gva(16, heads, 8192, sequences)
        assert plan(program, asked).walkers == most
    assert plan(program, gva(16, 32, 4 * 8192, 4)).walkers == 32
    for sequences, heads in ((2, 64), (4, 32), (2, 48)):
        assert plan(program, gva(16, heads, 8192, sequences)._replace(quick=False)).walkers == 32


def test_fewer_blocks_walk_back_over_many_sequences_of_one_length(program: Path) -> None:
    """Lengths are known on the device alone: the host says how many blocks for either case."""
    even = {(8, 1024): 43, (48, 512): 67, (64, 128): 0, (65, 512): 0, (4, 8192): 0}  # sequences and tokens: blocks
    for (sequences, tokens), blocks in even.items():
        found = plan(program, gva(16, 32, sequences * tokens, sequences))
        assert found.even == blocks
        assert found.walkers == (132 if sequences >= 8 else 32)
    assert plan(program, gva(16, 32, 8 * 1024, 8)._replace(quick=False)).even == 0


def test_both_walks_are_side_by_side_for_few_heads_where_memory_is_quick(program: Path) -> None:
    rows = [gva(16, 32, 8192, 1), gva(8, 32, 8192, 1), gva(16, 32, 2048, 1), gva(4, 16, 8192, 2), gva(2, 8, 8192, 4)]
    for row in rows:
        assert plan(program, row).paired
        assert not plan(program, row._replace(quick=False)).paired
        assert not plan(program, row._replace(bfloat16=False)).paired
    others = [gva(16, 48, 8192, 1), gva(16, 32, 8192, 2), gva(2, 8, 8192, 1), gva(16, 32, 512, 1), gva(4, 8, 8192, 3)]
    others.append(gva(16, 32, 32768, 1))  # a little over the limit of memory
    for row in others:
        assert not plan(program, row).paired


def test_without_a_limit_tiles_have_memory_of_their_own(program: Path, tmp_path: Path) -> None:
    roomy = built(tmp_path, "-DGDN_ROOMY")
    asked = gva(4, 16, 32768, 1)
    assert plan(program, asked).little and not plan(roomy, asked).little
    for row, found in plans(roomy, ROWS).items():
        assert found.ratio <= 2.7, row  # solution.json says so

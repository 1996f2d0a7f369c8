"""Which kernels of hopper_prefill a batch gets, by figures of a GPU: its host code, asked about GPUs."""

import subprocess
from pathlib import Path

import pytest
from test_hopper_emulation import EMULATOR, GXX, device_code

pytestmark = [
    pytest.mark.skipif(GXX is None, reason="no g++ here"),
    pytest.mark.xdist_group("hopper choice"),  # one program for all
]

# Multiprocessors, kHz of them and of memory, bits of its bus: as the driver says.
GPUS = {
    "H100": (132, 1980000, 2619000, 5120),
    "H200": (132, 1980000, 3201000, 6144),
    "H100 PCIe": (114, 1755000, 1593000, 5120),
}
FIELDS = ("groups", "first", "length", "alone", "whole", "most", "stays", "prepares", "ahead", "one_up_to")
FIGURES = ("bytes", "one", "both")
Choice = dict[str, int]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice")
    device_code(folder, None)
    main = EMULATOR.parent / "hopper_choice/main.cpp"
    command = [str(GXX), "-std=c++20", "-w", "-I", folder, "-I", EMULATOR, "-o", folder / "choose", main]
    subprocess.run(command, check=True)
    return folder / "choose"


def choose(
    program: Path, gpu: str, lengths: tuple[int, int], heads: tuple[int, int], checkpoints: bool = False
) -> Choice:
    """`lengths`: so many sequences of so many tokens; `heads`: of queries and keys, of values."""
    sequences, tokens = lengths
    asked = (*GPUS[gpu], sequences * tokens, sequences, *heads, 128, int(checkpoints))
    done = subprocess.run([program], input=" ".join(map(str, asked)), capture_output=True, text=True, check=True)
    return dict(zip((*FIELDS, *FIGURES), map(int, done.stdout.split()), strict=True))


def kernel(choice: Choice) -> str:
    if choice["stays"]:
        return (
            "prepares long ones"
            if choice["ahead"]
            else ("stays", "prepares", "few tokens, then prepares")[choice["prepares"]]
        )
    if choice["one_up_to"]:
        return f"{choice['groups']} slices, or prepares long ones of up to {choice['one_up_to']} chunks"
    return f"{choice['groups']} slices" + (f", cut {choice['first']} {choice['length']}" if choice["length"] else "")


# Measured on an H100 beside what an H200 has: 1.05 to 1.13 times as fast (LOG.md, version 18); one kernel for long
# sequences 1.05 to 1.20 times as fast as two (version 19).
@pytest.mark.parametrize(
    ("lengths", "heads", "h100", "h200"),
    [
        ((4, 8192), (16, 32), "prepares long ones", "2 slices"),
        ((4, 8192), (8, 32), "2 slices", "2 slices"),
        # As far as the host knows one of them may be long: lengths decide.
        ((8, 1024), (16, 32), "2 slices, or prepares long ones of up to 38 chunks", "2 slices"),
        ((8, 1024), (16, 48), "2 slices, or prepares long ones of up to 52 chunks", "2 slices"),
        ((8, 1024), (8, 32), "2 slices", "2 slices"),
        ((1, 8192), (16, 32), "1 slices, cut 49 40", "1 slices, cut 49 40"),
        ((1, 32768), (16, 32), "2 slices, cut 125 97", "1 slices, cut 177 168"),
        ((1, 32768), (16, 48), "1 slices", "1 slices, cut 357 39"),
        ((2, 4096), (16, 32), "2 slices, cut 29 18", "1 slices"),
        ((512, 40), (16, 32), "prepares", "prepares"),
        ((64, 1), (16, 32), "few tokens, then prepares", "few tokens, then prepares"),
        ((64, 1), (4, 12), "few tokens, then prepares", "few tokens, then prepares"),
        ((64, 4), (16, 32), "prepares", "prepares"),
        ((1, 1), (16, 32), "few tokens, then prepares", "few tokens, then prepares"),
        ((1, 8), (16, 32), "few tokens, then prepares", "few tokens, then prepares"),
        ((4, 4), (16, 64), "few tokens, then prepares", "few tokens, then prepares"),
        ((300, 9), (16, 32), "prepares", "prepares"),
        ((100, 300), (16, 32), "prepares long ones", "prepares long ones"),
        ((48, 512), (16, 32), "prepares long ones", "prepares long ones"),
        ((48, 512), (16, 64), "prepares long ones", "prepares long ones"),
        ((48, 512), (4, 12), "prepares long ones", "2 slices"),
        ((24, 1000), (16, 32), "prepares long ones", "2 slices"),
        ((256, 128), (16, 32), "prepares", "prepares"),
    ],
)
def test_the_choice_follows_the_bandwidth(
    program: Path, lengths: tuple[int, int], heads: tuple[int, int], h100: str, h200: str
) -> None:
    assert kernel(choose(program, "H100", lengths, heads)) == h100
    assert kernel(choose(program, "H200", lengths, heads)) == h200


def test_it_follows_the_multiprocessors(program: Path) -> None:
    """128 (sequence, head): a block each on 132 multiprocessors; on 114 some come second."""
    assert choose(program, "H100", (4, 2048), (16, 32))["whole"] == 0
    assert choose(program, "H100 PCIe", (4, 2048), (16, 32))["whole"] == 114


def test_a_chunk_takes_as_long_as_memory(program: Path) -> None:
    """Of heads 16/32 a chunk and head moves 54 KiB: 3,200 cycles on an H200 are those of multiprocessors."""
    h100, h200 = (choose(program, gpu, (4, 8192), (16, 32)) for gpu in ("H100", "H200"))
    assert (h100["bytes"], h200["bytes"]) == (1713, 2512)
    assert (h200["both"], h200["one"]) == (3200, 2050)
    assert 4000 < h100["both"] < 4800
    assert h100["one"] * 3200 == pytest.approx(2050 * h100["both"], rel=1e-3)


# Log-normal ones are a row of prefill_rows.py. 29% slower in one kernel than in two, on an H200.
@pytest.mark.parametrize(
    ("lengths", "one"),
    [((1024,) * 8, True), ((955, 441, 143, 2091, 225, 393, 201, 4034), False), ((1000,) * 12, True)],
)
def test_lengths_decide_between_one_kernel_and_two(program: Path, lengths: tuple[int, ...], one: bool) -> None:
    """By the same comparison as in choose.cuh."""
    choice = choose(program, "H100", (len(lengths), -(-sum(lengths) // len(lengths))), (16, 32))
    assert choice["one_up_to"] > 0
    assert (-(-max(lengths) // 64) <= choice["one_up_to"]) == one


# What launches both costs 2 to 4 us: too much for a few sequences, and with more than a warp's lanes nobody decides.
@pytest.mark.parametrize("sequences", [4, 7, 32, 64])
def test_where_lengths_decide_nothing(program: Path, sequences: int) -> None:
    assert choose(program, "H100", (sequences, 2048), (16, 32))["one_up_to"] == 0


def test_checkpoints_keep_two_kernels(program: Path) -> None:
    assert choose(program, "H100", (8, 1024), (16, 32), checkpoints=True)["one_up_to"] == 0


def test_no_tokens(program: Path) -> None:
    assert kernel(choose(program, "H100", (4, 0), (16, 32))) == "few tokens, then prepares"

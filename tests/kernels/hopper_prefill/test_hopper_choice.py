"""Which kernels of hopper_prefill a batch gets, by figures of the GPU: its host code, compiled here, asked about GPUs that are not."""

import subprocess
from pathlib import Path

import pytest
from test_hopper_emulation import EMULATOR, GXX, device_code

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++ here")

# Multiprocessors, kHz of them and of memory, bits of its bus: as the driver says.
GPUS = {"H100": (132, 1980000, 2619000, 5120), "H200": (132, 1980000, 3201000, 6144), "H100 PCIe": (114, 1755000, 1593000, 5120)}
FIELDS = ("groups", "first", "length", "alone", "whole", "most", "stays", "prepares", "ahead", "bytes", "one", "both")
Choice = dict[str, int]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choice")
    device_code(folder, None)
    main = EMULATOR.parent / "hopper_choice/main.cpp"
    command = [str(GXX), "-std=c++20", "-w", "-O1", "-I", folder, "-I", EMULATOR, "-o", folder / "choose", main]
    subprocess.run(command, check=True)
    return folder / "choose"


def choose(program: Path, gpu: str, lengths: tuple[int, int], heads: tuple[int, int], head_size: int = 128) -> Choice:
    """`lengths`: so many sequences of so many tokens; `heads`: of queries and keys, of values."""
    sequences, tokens = lengths
    asked = (*GPUS[gpu], sequences * tokens, sequences, *heads, head_size, 0)
    done = subprocess.run([program], input=" ".join(map(str, asked)), capture_output=True, text=True, check=True)
    return dict(zip(FIELDS, map(int, done.stdout.split()), strict=True))


def kernel(choice: Choice) -> str:
    if choice["stays"]:
        return "ahead" if choice["ahead"] else "short" if choice["prepares"] else "stay"
    return f"{choice['groups']} slices" + (", cut" if choice["length"] else "")

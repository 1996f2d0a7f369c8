"""Kernels of one-token decode on a CPU: the device's part of a solution as a library, with all threads of a block
emulated, and the script that calls it in a process of its own."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import forked_command
from conftest import ROOT

GXX = shutil.which("g++")
HERE = ROOT / "tests/kernels"
DEVICE = ("problem", "words", "rule", "slots", "rows", "launch_rows")
SHARED = "(shared_of(block_of(running))"  # the emulator's shared memory
EMULATORS = (
    "cuda_kda_decode/block_emulation",
    "fused_decode_step/cluster_emulation",
    "hopper_prefill/hopper_emulation",
)


def once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old} is not once there: this test is out of date"
    return text.replace(old, new)


def built(folder: Path, solution: str, source: str, in_rows: dict[str, str]) -> Path:
    """A solution's files with `source` as a library. `in_rows`: texts of rows.cuh, and what stands in their place."""
    files = {name: (ROOT / "solutions" / solution / f"{name}.cuh").read_text() for name in DEVICE}
    for old, new in in_rows.items():
        files["rows"] = once(files["rows"], old, new)
    assert not any("__shared__" in text for text in files.values())
    end = files["launch_rows"].index("template <class E, int D, Slots slots>\nvoid launch_k_last")
    files["launch_rows"] = files["launch_rows"][:end].replace('#include "start.cuh"\n', "") + "}  // namespace\n"
    for name, text in files.items():
        (folder / f"{name}.cuh").write_text(re.sub(r"#include <cuda.*\n", "", text))
    includes = [f"-I{path}" for path in (folder, *(HERE / name for name in EMULATORS))]
    command = [str(GXX), "-std=c++20", "-O1", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", *includes]
    subprocess.run([*command, "-o", folder / "kernel.so", HERE / source], check=True)
    return folder / "kernel.so"


def emulated(library: Path, script: str) -> list[dict[str, object]]:
    """What `script` says of each of its calls."""
    done = forked_command.run([str(library)], dict(os.environ), script=HERE / script)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def right(found: dict[str, object], state_error: float) -> bool:
    output, state = found["errors"]  # type: ignore[misc]
    return output < 3e-3 and state < (3e-3 if found["halves"] else state_error) and bool(found["kept"])

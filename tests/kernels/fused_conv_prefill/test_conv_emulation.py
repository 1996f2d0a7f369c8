"""fused_conv_prefill on a CPU: its device code, threads and blocks in random order, against the reference.

The emulator in conv_emulation/ takes the place of the kernel's instructions.cuh: what is copied in the background
is NaN until it is waited for. Calls are drawn: lengths around the edges of strips, many short sequences, skipped
ones, slots that are none, bounds that lie.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT

GXX = shutil.which("g++")
KERNEL = ROOT / "solutions/fused_conv_prefill"
DEVICE = [f"{name}.cuh" for name in ("pass", "ahead", "convolution", "gates", "walk", "words", "problem")]
EMULATORS = [
    ROOT / "tests/kernels/fused_conv_prefill/conv_emulation",
    ROOT / "tests/kernels/hopper_prefill/hopper_emulation",
]

pytestmark = pytest.mark.skipif(GXX is None, reason="no g++ here")

Edit = tuple[str, str]


def emulated(folder: Path, calls: int, edit: Edit | None = None) -> dict[str, str]:
    """Of each call, what is wrong with it."""
    files = {name: (KERNEL / name).read_text() for name in DEVICE}
    if edit:
        (name,) = (name for name, text in files.items() if edit[0] in text)
        assert files[name].count(edit[0]) == 1, f"{edit[0]} is not once there: this test is out of date"
        files[name] = files[name].replace(*edit)
    for name, text in files.items():
        (folder / name).write_text(text)
    command = [str(GXX), "-std=c++20", "-Og", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", f"-I{folder}"]
    library = folder / "emulate.so"
    source = EMULATORS[0] / "emulate.cpp"
    subprocess.run([*command, *(f"-I{x}" for x in EMULATORS), "-o", library, source], check=True)
    path = os.pathsep.join(filter(None, [str(ROOT / "tools"), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    script = ROOT / "tests/kernels/fused_conv_prefill/conv_emulated.py"
    done = forked_command.run([str(library), str(calls)], os.environ | {"PYTHONPATH": path}, script=script)
    if done.returncode:
        return {"all": done.stderr}
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.slow
def test_the_kernel_is_right(tmp_path: Path) -> None:
    found = emulated(tmp_path, 25)
    assert len(found) == 50
    assert {call: what for call, what in found.items() if what} == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("to = min(start + W - 1, stop);", ";", id="first tokens done twice"),
        pytest.param("max(last, start + W - 1)", "last", id="first tokens done by nobody"),
        pytest.param("wait_for_groups<kStages - 1>();\n    return", "return", id="rows not waited for"),
        pytest.param("if (valid) state.store(at);", ";", id="states not written"),
        pytest.param("static_cast<unsigned>(asked) < limit", "asked < int(limit)", id="rows before the first"),
    ],
)
def test_errors_are_found(tmp_path: Path, old: str, new: str) -> None:
    assert any(emulated(tmp_path, 40, (old, new)).values())

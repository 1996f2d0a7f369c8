"""Triton's interpreter is wrong in ways that would fail right kernels, and `correct_interpreter` mends them.

Every trap runs twice, in a process of its own with TRITON_INTERPRET=1: uncorrected it must show (else the installed
Triton has mended it and that half is skipped), corrected it must not.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT
from patience import PATIENCE

pytest.importorskip("triton")
pytest.importorskip("torch")

TOOLS = ROOT / "tools"

PREAMBLE = """
import json, math, sys
assert "triton" not in sys.modules  # it reads TRITON_INTERPRET when it is imported
import numpy as np
import torch, triton
import triton.language as tl

if {corrected}:
    from gdnspec.build.interpreter import correct_interpreter
    correct_interpreter()
    correct_interpreter()  # idempotent

def answer(ok, detail=""):
    print(json.dumps([bool(ok), str(detail)]))

"""

DOT = """
@triton.jit
def kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

torch.manual_seed(0)
a, b = (torch.randn(16, 16).to({dtype}) for _ in range(2))
c = torch.empty(16, 16)
kernel[(1,)](a, b, c, N=16)
error = (c - a.float() @ b.float()).abs().max().item()
answer(error < 1e-4, error)
"""

# Where a row or column of a product stands must not change a bit of it.
PLACE = """
@triton.jit
def kernel(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

def product(a, b):
    c = torch.empty(64, 64)
    kernel[(1,)](a.contiguous(), b.contiguous(), c, N=64)
    return c

torch.manual_seed(0)
a, b = torch.randn(2, 64, 64)
p = torch.randperm(64)
columns = (product(a, b[:, p]) != product(a, b)[:, p]).sum().item()
rows = (product(a[p], b) != product(a, b)[p]).sum().item()
answer(rows == columns == 0, (rows, columns))
"""

# Ties to even, both ways; a carry into the exponent; overflow; subnormals; infinities; a NaN with a low payload.
CONVERSION = """
@triton.jit
def kernel(x, y, N: tl.constexpr, MODE: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty, fp_downcast_rounding=MODE))

bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3FFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x00000001, 0x00018000, 0x807FFFFF,
        0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x00000000, 0x80000000, 0x42F6E979]
x = torch.from_numpy(np.array(bits, dtype=np.uint32).view(np.float32).copy())
x = torch.cat([x, torch.randn(1008, generator=torch.Generator().manual_seed(1)) * 100]).to({source})
y = torch.full((1024,), 7.0, dtype={target})
kernel[(1,)](x, y, N=1024, MODE={mode})
wanted = {wanted}
same = (y == wanted) | (y.isnan() & wanted.isnan())
answer(same.all(), [x[~same][:4].tolist(), y[~same][:4].tolist(), wanted[~same][:4].tolist()])
"""

INTEGER = """
@triton.jit
def kernel(y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, (i - 5).to(tl.bfloat16))

y = torch.empty(16, dtype=torch.bfloat16)
kernel[(1,)](y, N=16)
answer((y == torch.arange(-5, 11)).all(), y.tolist())
"""

ARITHMETIC = """
@triton.jit
def kernel(x, y, z, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(z + i, tl.where(a < b, a * b, -a))

torch.manual_seed(0)
x, y = (torch.randn(64).bfloat16() for _ in range(2))
z = torch.empty(64, dtype=torch.bfloat16)
kernel[(1,)](x, y, z, N=64)
answer((z == torch.where(x < y, x * y, -x)).all(), z.tolist())
"""

LOOP = """
@triton.jit
def kernel(n, y):
    total = 0
    for t in range(tl.load(n)):
        total += t
    for t in range(tl.program_id(0), 3):
        total += t
    tl.store(y, total)

n, y = torch.tensor([5]), torch.zeros(1, dtype=torch.int64)
kernel[(1,)](n, y)
answer(y.item() == 13, y.item())
"""


def conversion(source: str, target: str, mode: str = "None", wanted: str | None = None) -> str:
    names = {"source": f"torch.{source}", "target": f"torch.{target}", "mode": mode}
    return CONVERSION.format(**names, wanted=wanted or f"x.to(torch.{target})")


TOWARD_ZERO = "(x.view(torch.int32) & -65536).view(torch.float32).bfloat16()"

SATURATED = "torch.where(x.isnan(), x, x.clamp(-448, 448)).to(torch.float8_e4m3fn)"  # as a GPU converts

TRAPS = {  # uncorrected Triton 3.6 is wrong on these
    "dot of bfloat16": DOT.format(dtype="torch.bfloat16"),
    "place in a dot": PLACE,
    "float32 to bfloat16": conversion("float32", "bfloat16"),
    "float64 to bfloat16": conversion("float64", "bfloat16", wanted="x.float().bfloat16()"),
    "float16 to bfloat16": conversion("float16", "bfloat16"),
    "float32 to e4m3": conversion("float32", "float8_e4m3fn", wanted=SATURATED),
    "integer to bfloat16": INTEGER,
    "arithmetic of bfloat16": ARITHMETIC,
}
RIGHT_ALREADY = {  # and must stay right on these
    "dot of float16": DOT.format(dtype="torch.float16"),
    "dot of float32": DOT.format(dtype="torch.float32"),
    "dot of float8": DOT.format(dtype="torch.float8_e5m2"),
    "bfloat16 to float32": conversion("bfloat16", "float32"),
    "bfloat16 to float16": conversion("bfloat16", "float16"),
    "bfloat16 to float64": conversion("bfloat16", "float64"),
    "float32 to float16": conversion("float32", "float16"),
    "e4m3 to float32": conversion("float8_e4m3fn", "float32"),
    "float32 toward zero": conversion("float32", "bfloat16", "'rtz'", f"torch.where(x.isnan(), x, {TOWARD_ZERO})"),
    "range over a tensor": LOOP,
}


def interpreted(program: str, tmp_path: Path, corrected: bool, paths: tuple[str, ...] = ()) -> tuple[bool, str]:
    """Run a program that ends in answer(ok, detail). A kernel that raises is not ok."""
    file = tmp_path / f"program_{corrected}.py"  # the interpreter reads the source of its kernels
    file.write_text(PREAMBLE.format(corrected=corrected) + program)
    environment = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=os.pathsep.join([*paths, str(TOOLS)]))
    if paths:  # what is to be imported differs from the start
        done = subprocess.run(
            [sys.executable, str(file)], env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    else:
        done = forked_command.run([], environment, script=file)
    if done.returncode:
        return False, done.stderr[-600:]
    ok, detail = json.loads(done.stdout.splitlines()[-1])
    return ok, detail


@pytest.mark.parametrize("trap", TRAPS)
def test_uncorrected_is_wrong(trap: str, tmp_path: Path) -> None:
    ok, _ = interpreted(TRAPS[trap], tmp_path, corrected=False)
    if ok:
        pytest.skip("the installed Triton is right here: this correction may go")


@pytest.mark.parametrize("name", [*TRAPS, *RIGHT_ALREADY])
def test_corrected_is_right(name: str, tmp_path: Path) -> None:
    ok, detail = interpreted((TRAPS | RIGHT_ALREADY)[name], tmp_path, corrected=True)
    assert ok, detail


def test_index_of_one_element_on_new_numpy(tmp_path: Path) -> None:
    """NumPy 2.4 refuses int() of a one-element array; an older one is made to, so that the trap shows with any."""
    strict = """
class Strict(np.ndarray):
    def __int__(self):
        if self.ndim:
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        return int(self.item())

from triton.runtime import interpreter
handle = interpreter.TensorHandle(np.array([3], dtype=np.int32).view(Strict), tl.int32)
interpreter._patch_lang_tensor(tl.tensor, interpreter._LangPatchScope())
value = tl.tensor(handle, tl.int32)
answer(list(range(value)) == [0, 1, 2])
"""
    ok, _ = interpreted(strict, tmp_path, corrected=False)
    ok_corrected, detail = interpreted(strict, tmp_path, corrected=True)
    assert ok_corrected, detail
    if ok:
        pytest.skip("the installed Triton no longer calls int() on arrays")


def test_an_unknown_triton_is_named(tmp_path: Path) -> None:
    program = """
from triton.runtime import interpreter
from gdnspec.build.interpreter import correct_interpreter
before = interpreter.InterpreterBuilder.cast_impl
del interpreter.InterpreterBuilder.create_dot
try:
    correct_interpreter()
    answer(False, "no error")
except RuntimeError as error:
    untouched = interpreter.InterpreterBuilder.cast_impl is before
    answer(triton.__version__ in str(error) and "create_dot" in str(error) and untouched, error)
"""
    ok, detail = interpreted(program, tmp_path, corrected=False)
    assert ok, detail

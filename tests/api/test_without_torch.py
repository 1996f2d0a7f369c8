"""The Python interface where torch is missing: definitions can be read, everything else says what to install."""

import subprocess
import sys

CODE = """
import sys
for name in ("torch", "triton"):
    sys.modules[name] = None
import gdnspec
spec = gdnspec.definition("gdn_decode_k_last")
case = spec.workload("batch_8")
assert "q" in spec.inputs and case.suite == "smoke"
for attempt in (
    lambda: gdnspec.check(lambda **inputs: None, spec), lambda: gdnspec.kernel, lambda: gdnspec.ops.gated_rms_norm,
    lambda: spec.reference, case.inputs, case.expected, lambda: case.check(print),
):
    try:
        attempt()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_one_line_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert len(said) == 7, done.stdout
    assert all("needs torch, which is not installed: pip install 'gdnspec[run]'" in line for line in said), done.stdout

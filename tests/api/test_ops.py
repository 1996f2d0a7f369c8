"""gdnspec.ops: a namespace that families fill."""

import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
from conftest import Run
from gdnspec import SpecError, ops
from gdnspec.catalog.families import Family, at
from helpers_toy import DEFINITIONS, copied, edit

OUTSIDE = """
import gdnspec, torch
verdict = gdnspec.check(lambda **inputs: gdnspec.ops.toy_running_sum(**inputs), "toy_running_sum", device="cpu")
verdict.raise_for_status()
assert {"toy_running_sum", "gated_delta_rule"} <= {*dir(gdnspec.ops)}
assert torch.equal(torch.ops.toy.running_sum(torch.ones(1, 2), 0.25), torch.tensor([[1.0, 1.25]]))
"""


def renamed(folder: Path, name: str, namespace: str | None = None) -> Family:
    """A copy of the toy family under another name; its operator in a namespace of PyTorch of its own."""
    copied(folder)
    for part in ("definitions", "reference"):
        (folder / part / "toy").rename(folder / part / name)
    module = folder / "reference" / name / "ops.py"
    module.write_text(module.read_text().replace("torch.ops.toy.", f"torch.ops.{namespace or name}."))
    edit(module, 'Library("toy"', f'Library("{namespace or name}"')
    return at(folder / "definitions" / name)


def test_a_family_from_outside_brings_operators(tmp_path: Path) -> None:
    environment = os.environ | {"GDNSPEC_DEFINITIONS": str(DEFINITIONS)}
    (tmp_path / "program.py").write_text(OUTSIDE)
    done = forked_command.run([], environment, script=tmp_path / "program.py")
    assert done.returncode == 0, done.stderr


def test_two_families_with_one_operator_are_both_named(tmp_path: Path) -> None:
    first, second = renamed(tmp_path / "a", "of_a"), renamed(tmp_path / "b", "of_b")
    assert list(ops._operators((first,))) == list(ops._operators((second,))) == ["toy_running_sum"]
    with pytest.raises(SpecError) as raised:
        ops._operators((first, second))
    places = [f"{family.reference / 'ops.py'}: line 13" for family in (second, first)]
    assert str(raised.value) == f"{places[0]}: {places[1]} already has an operator 'toy_running_sum'"


def test_two_families_with_one_operator_of_pytorch_are_told(tmp_path: Path) -> None:
    first, second = renamed(tmp_path / "a", "of_c"), renamed(tmp_path / "b", "of_d", "of_c")
    ops._operators((first,))
    with pytest.raises(SpecError, match=r"of_d/ops.py: line 9: RuntimeError: .*of_c::running_sum.*multiple times"):
        ops._operators((second,))


def test_an_operator_that_cannot_be_loaded_has_a_place(tmp_path: Path) -> None:
    family = renamed(tmp_path / "a", "of_e")
    edit(family.reference / "ops.py", "from . import by_matrix", "from . import by_nothing")
    with pytest.raises(SpecError, match=r"of_e/ops.py: line 6: ImportError: .*\(while loading its operators\)"):
        ops._operators((family,))


def test_a_name_that_nobody_has_is_told_the_nearest() -> None:
    with pytest.raises(AttributeError, match=r"no operator 'gated_delta_rul' \(did you mean 'gated_delta_rule'\?\)"):
        ops.gated_delta_rul  # noqa: B018


def test_no_operator_is_loaded_by_what_only_reads(gdnspec: Run) -> None:
    assert gdnspec("list").returncode == 0
    code = "import sys, gdnspec.ops; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"

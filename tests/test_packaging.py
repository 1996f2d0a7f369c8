"""A wheel carries definitions, reference, solutions and adapters; an editable install reads the checkout."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import gdnspec.integrations
import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    code = (
        "import sys; from hatchling.build import build_wheel, build_editable; "
        "print((build_editable if sys.argv[2] == 'editable' else build_wheel)(sys.argv[1]))"
    )
    for kind in ("standard", "editable"):
        target = folder / kind
        target.mkdir()
        subprocess.run([sys.executable, "-c", code, str(target), kind], cwd=ROOT, check=True, capture_output=True)
    return folder


def names(folder: Path) -> list[str]:
    (file,) = folder.glob("*.whl")
    return zipfile.ZipFile(file).namelist()


@pytest.mark.slow
def test_the_wheel_holds_all_that_the_command_reads(wheel: Path, tmp_path: Path) -> None:
    held = names(wheel / "standard")
    for name in (
        "gdnspec/data/definitions/gdn/presets.json",
        "gdnspec/data/definitions/gdn/gdn_prefill_k_last/workloads.jsonl",
        "gdnspec/data/reference/gdn/gated_delta_net.py",
        "gdnspec/data/solutions/torch_recurrent/kernel.py",
        "gdnspec/data/tests/known_bad/gdn/faults.json",
        "gdnspec/data/tests/known_bad/gdn/bases/core/kernel.py",
        "gdnspec/data/tests/known_bad/gdn/late_process/known_bad.json",
        "gdnspec/report/templates/page.html.j2",
        "gdnspec/report/static/page.css",
        "gdnspec/integrations/transformers.py",
        "gdnspec/py.typed",
    ):
        assert name in held
    assert not [name for name in held if "__pycache__" in name or name.startswith("tests")]

    (file,) = (wheel / "standard").glob("*.whl")
    zipfile.ZipFile(file).extractall(tmp_path / "site-packages")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site-packages")}
    run = [sys.executable, "-P", "-m", "gdnspec"]
    doctor = subprocess.run([*run, "doctor", "--json"], env=environment, capture_output=True, text=True, check=True)
    assert json.loads(doctor.stdout)["machine"]["data"] == str(tmp_path / "site-packages/gdnspec/data")
    find = "from importlib.util import find_spec; print(find_spec('gdnspec.integrations.transformers').origin)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", find], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "site-packages/gdnspec/integrations/transformers.py")
    check = [*run, "check", "gdn_decode_k_last", "--workload", "one_row", "--solution", "torch_recurrent"]
    done = subprocess.run([*check, "--device", "cpu"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    new = subprocess.run(
        [*run, "new", "mine", "--definition", "gdn_decode_k_last"], env=environment, capture_output=True, text=True
    )
    assert new.returncode == 2
    assert "--solutions-dir" in new.stderr
    (line,) = re.findall(r"^gdnspec (new .*)$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    made = subprocess.run([*run, *line.split()], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert made.returncode == 0, made.stderr


def test_an_editable_install_carries_no_copy(wheel: Path) -> None:
    assert not [name for name in names(wheel / "editable") if "/data/" in name or "/integrations/" in name]


def test_a_checkout_has_the_adapters_in_their_folder() -> None:
    assert str(ROOT / "integrations") in gdnspec.integrations.__path__

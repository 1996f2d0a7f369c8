"""flash-linear-attention on `gdnspec.ops`. FLA is in a folder of its own and used in a process of its own, because
transformers would take its kernels wherever it finds them, and those need a GPU."""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import forked_command
import pytest

APART = Path(sys.prefix) / "fla"  # where `make` installs it


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "gdnspec.integrations.fla", raising=False)
    for name in ("fla", "fla.backends"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"gdnspec needs fla-core 0.6, pip install 'gdnspec\[fla\]'$") as error:
        importlib.import_module("gdnspec.integrations.fla")
    assert "\n" not in str(error.value)


def test_a_switched_off_dispatch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = SimpleNamespace(BaseBackend=object, register=lambda name: lambda backend: backend)
    monkeypatch.setitem(sys.modules, "fla", SimpleNamespace(backends=backends))
    monkeypatch.setitem(sys.modules, "fla.backends", backends)
    monkeypatch.setenv("FLA_DISABLE_BACKEND_DISPATCH", "1")
    monkeypatch.delitem(sys.modules, "gdnspec.integrations.fla", raising=False)
    with pytest.warns(UserWarning, match="FLA_DISABLE_BACKEND_DISPATCH=1: FLA asks no backend"):
        importlib.import_module("gdnspec.integrations.fla")
    del sys.modules["gdnspec.integrations.fla"]  # it knows the backend of this test


@pytest.mark.slow
@pytest.mark.parametrize(
    "marked",
    [
        "not thorough and not gpu",
        pytest.param("thorough", marks=pytest.mark.thorough),
        pytest.param("gpu", marks=pytest.mark.gpu),
    ],
)
def test_with_the_package(marked: str) -> None:
    if not APART.is_dir() and find_spec("fla") is None:
        pytest.skip("no fla-core here")
    env = {name: x for name, x in os.environ.items() if not name.startswith(("FLA_", "PYTEST_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(APART), os.environ.get("PYTHONPATH", "")])
    cases = [str(Path(__file__).with_name(name)) for name in ("fla_cases.py", "fla_kda_cases.py")]
    command = ["pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", marked, *cases]
    done = forked_command.run(command, env, script=forked_command.MODULE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout

"""What this machine can run: the versions of packages."""

from pathlib import Path

import pytest
from gdnspec.build.machine import version


@pytest.fixture(autouse=True)
def forgotten() -> None:
    version.cache_clear()


@pytest.mark.parametrize("package", ["madeup", "madeup-core"])
def test_a_package_without_metadata_says_its_version_itself(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an unpacked archive on the path. It is not imported: that would take its own packages."""
    (tmp_path / "madeup").mkdir()
    (tmp_path / "madeup" / "__init__.py").write_text('import no_such_thing\n\n__version__ = "0.6.0"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version(package) == "0.6.0"


def test_a_module_of_another_package_says_nothing() -> None:
    assert version("torch") is not None
    assert version("torch-core") is None
    assert version("no-such-thing") is None


def test_metadata_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "madeup.py").write_text('__version__ = "0.6.0"\n')
    info = tmp_path / "madeup_core-0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: madeup-core\nVersion: 0.7\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert version("madeup-core") == "0.7"

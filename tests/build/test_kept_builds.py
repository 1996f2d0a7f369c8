"""Libraries that are built once: by one of several processes, again for other versions, elsewhere if need be."""

import ctypes
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gdnspec.build import kept_builds
from gdnspec.build.kept_builds import NoCompiler, library
from gdnspec.build.loader import load_function


@pytest.fixture(autouse=True)
def fresh() -> None:
    """As a process that has no temporary folder yet."""
    kept_builds._scratch.cache_clear()


def maker(calls: list[Path], text: str = "built") -> Callable[[Path], Path]:
    def make(scratch: Path) -> Path:
        calls.append(scratch)
        file = scratch / "out.so"
        file.write_text(text)
        return file

    return make


def test_a_library_is_built_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    first, again = (library(tmp_path / "of_hash", "kernel", "9.0a", maker(calls)) for _ in range(2))
    assert first == again
    assert first.read_text() == "built"
    assert len(calls) == 1
    assert not calls[0].exists()


def test_real_code_is_built_and_runs(tmp_path: Path) -> None:
    source = tmp_path / "toy.cpp"
    source.write_text('extern "C" int answer() { return 42; }\n')

    def make(scratch: Path) -> Path:
        subprocess.run(["g++", "-shared", "-fPIC", "-o", scratch / "toy.so", source], check=True)
        return scratch / "toy.so"

    assert ctypes.CDLL(str(library(tmp_path / "kept", "toy", (), make))).answer() == 42


def test_two_processes_build_it_once(tmp_path: Path) -> None:
    """The builder waits until the other process has started: both ask while nothing is there."""
    code = f"""
import time
from pathlib import Path
from gdnspec.build.kept_builds import library
root = Path({str(tmp_path)!r})
def make(scratch):
    with (root / "log").open("a") as log:
        log.write("built\\n")
    while len(list(root.glob("started*"))) < 2:
        time.sleep(0.01)
    (scratch / "x").write_text("whole")
    return scratch / "x"
import os
(root / f"started{{os.getpid()}}").touch()
print(library(root / "kept", "kernel", "9.0a", make).read_text())
"""
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [one.communicate(timeout=60)[0] for one in both] == ["whole\n"] * 2
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_build_of_other_versions_is_not_used(tmp_path: Path) -> None:
    calls: list[Path] = []
    old = library(tmp_path, "kernel", ("9.0a", "0.1.11"), maker(calls, "old"))
    new = library(tmp_path, "kernel", ("9.0a", "0.1.12"), maker(calls, "new"))
    assert (old.read_text(), new.read_text(), len(calls)) == ("old", "new", 2)


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fails(scratch: Path) -> Path:
        (scratch / "half.so").touch()
        raise RuntimeError("nvcc: no such flag")

    with pytest.raises(RuntimeError, match="no such flag"):
        library(tmp_path, "kernel", (), fails)
    assert not list(tmp_path.rglob("*.so"))
    assert library(tmp_path, "kernel", (), maker([])).read_text() == "built"


def test_a_folder_that_cannot_be_written_is_replaced_and_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    calls: list[Path] = []
    with pytest.warns(UserWarning, match=r"builds cannot be kept in .*file/build .*GDNSPEC_CACHE") as told:
        for name in ("one", "two", "one"):
            assert library(tmp_path / "file" / "build" / name, "kernel", (), maker(calls)).read_text() == "built"
    assert len(told) == 1
    assert len(calls) == 2


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that seems to have a GPU and a compiler, whose builds are files of text."""
    import torch
    import tvm_ffi.cpp

    builds: list[str] = []

    def build(**asked: Any) -> str:
        builds.append(asked["name"])
        file = Path(asked["build_directory"], "x.so")
        file.write_text("right")
        return str(file)

    def load_module(file: Path) -> SimpleNamespace:
        if file.read_text() != "right":
            raise RuntimeError("invalid ELF header")
        return SimpleNamespace(run=lambda: len(builds))

    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "")
    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: "nvcc")
    monkeypatch.setattr("gdnspec.build.loader._cudart_folders", list)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(tvm_ffi.cpp, "build", build)
    monkeypatch.setattr(tvm_ffi, "load_module", load_module)
    return builds


def test_a_broken_file_is_built_again(tmp_path: Path, cuda: list[str]) -> None:
    assert load_function(tmp_path / "a", "kernel.cu::run", tmp_path / "build")() == 1
    (file,) = (tmp_path / "build" / "kernel").glob("*.so")
    file.write_text("broken")
    assert load_function(tmp_path / "b" / ".." / "a", "kernel.cu::run", tmp_path / "build")() == 2
    assert file.read_text() == "right"


def test_a_broken_file_that_cannot_be_removed_is_built_elsewhere(
    tmp_path: Path, cuda: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_function(tmp_path / "f", "kernel.cu::run", tmp_path / "build")
    (file,) = (tmp_path / "build" / "kernel").glob("*.so")
    file.write_text("broken")

    def refused(*args: Any, **more: Any) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.warns(UserWarning, match=r"builds cannot be kept in .* \(Read-only file system\)"):
        assert load_function(tmp_path / "g" / ".." / "f", "kernel.cu::run", tmp_path / "build")() == 2
    assert file.read_text() == "broken"


def test_without_a_compiler_a_kept_build_still_serves(
    tmp_path: Path, cuda: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load_function(tmp_path / "c", "kernel.cu::run", tmp_path / "build")
    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: None)
    with warnings.catch_warnings(action="error"):
        assert load_function(tmp_path / "d" / ".." / "c", "kernel.cu::run", tmp_path / "build")() == 1
    with pytest.raises(NoCompiler, match="needs nvcc to build"):
        load_function(tmp_path / "e", "kernel.cu::run", tmp_path / "elsewhere")

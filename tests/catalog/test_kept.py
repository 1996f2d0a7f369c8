"""The cache: an entry is what was written, or it is dropped; nothing of a killed process stays; two may share it."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.bench import ceilings
from gdnspec.build.machine import Device
from gdnspec.catalog import kept
from gdnspec.check import seal
from gdnspec.model.trace import Ceilings

Make = Callable[..., Path]
RIGHT = "def run(**inputs):\n    return decode_k_last(**inputs)\n"
DECODE = "gdn_decode_k_last"


def one_row(root: Path) -> tuple[str | Path, ...]:
    return ("check", DECODE, "--solution", "under_test", "--workload", "one_row", "--device", "cpu", "--solutions-dir",
            root)  # fmt: skip


def flip(file: Path, at: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def test_a_flipped_bit_in_an_expected_value_fails_nobody(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    command, env = one_row(make_solution(RIGHT).parent), {"GDNSPEC_CACHE": str(tmp_path / "cache")}
    assert gdnspec(*command, env=env).returncode == 0
    (file,) = (tmp_path / "cache" / "expected").glob("*.values")
    whole = file.read_bytes()
    for at, bit in ((-3, 6), (20, 1)):  # any other: test_any_change_of_an_entry_is_found
        flip(file, at, bit)
        again = gdnspec(*command, env=env)
        assert again.returncode == 0, again.stdout + again.stderr
        assert (
            "this entry of the cache is broken and was removed: its expected values are computed again" in again.stderr
        )
        assert str(file) in again.stderr
        assert file.read_bytes() == whole
    quiet = gdnspec(*command, env=env)
    assert "broken" not in quiet.stderr


def test_any_change_of_an_entry_is_found(tmp_path: Path) -> None:
    said: list[str] = []
    file, other = tmp_path / "a", tmp_path / "b"
    content = bytes(range(16))
    kept.keep(file, content)
    whole = file.read_bytes()
    assert kept.kept(file, said.append, "again") == content
    assert kept.kept(other, said.append, "again") is None
    assert said == [], "an entry that is not there is not broken"
    changed = [whole[:i] + bytes([whole[i] ^ 1 << bit]) + whole[i + 1 :] for i in range(len(whole)) for bit in (0, 7)]
    changed += [whole[:i] for i in range(len(whole))] + [whole + b"\0"]
    for data in changed:
        file.write_bytes(data)
        assert kept.kept(file, said.append, "again") is None
        assert not file.exists()
    assert len(said) == len(changed)
    other.write_bytes(whole)
    assert kept.kept(other, said.append, "again") is None, "the entry of another key"


def test_ceilings_that_have_changed_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr(ceilings, "memory_bandwidth", lambda: None)
    monkeypatch.setattr(ceilings, "nominal_rate", lambda where: None)
    monkeypatch.setattr(ceilings, "copy_bandwidth", lambda: 3e12)
    monkeypatch.setattr(ceilings, "matrix_rate", lambda: 8e14)
    where, said = Device("cuda", "A GPU"), list[str]()
    first = ceilings.ceilings(where, warn=said.append)
    monkeypatch.setattr(ceilings, "copy_bandwidth", lambda: pytest.fail("it was kept"))
    assert ceilings.ceilings(where, warn=said.append) == first == Ceilings(copy_bandwidth=3e12, matrix_rate=8e14)
    monkeypatch.setattr(ceilings, "copy_bandwidth", lambda: 3e12)
    (file,) = (tmp_path / "ceilings").iterdir()
    at = file.read_bytes().index(b"3000000000000")
    flip(file, at)  # 3e12 becomes 2e12: still good JSON
    assert b"2000000000000" in file.read_bytes()
    assert ceilings.ceilings(where, warn=said.append) == first
    assert [line for line in said if "measured again" in line]


def test_a_key_that_was_cut_short_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path))
    file = tmp_path / "expected" / seal.KEY_FILE
    file.parent.mkdir()
    file.write_bytes(b"cut")
    key = seal._key.__wrapped__()
    assert key == file.read_bytes()
    assert len(key) == 32
    assert seal._key.__wrapped__() == key
    assert [path.name for path in file.parent.iterdir()] == [seal.KEY_FILE]


# --- what a killed process leaves -------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from pathlib import Path
from gdnspec.catalog import kept
write = os.write
def killed(handle, data):
    write(handle, bytes(data)[:10])
    os.kill(os.getpid(), signal.SIGKILL)
os.write = killed
kept.keep(Path(sys.argv[1]), bytes(1000))
"""


def test_what_a_killed_check_was_writing_is_swept(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "expected"
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder / "x.values")])
    assert done.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.name.endswith(kept.PARTIAL)
    older, new = folder / "tmpabcd_123", folder / "tmpabcd_124"  # as earlier versions named them
    older.touch()
    new.touch()
    os.utime(older, (0, 0))
    env = {"GDNSPEC_CACHE": str(tmp_path / "cache")}
    assert gdnspec(*one_row(make_solution(RIGHT).parent), env=env).returncode == 0
    assert not left.exists()
    assert not older.exists()
    assert new.exists(), "another version may be writing it"


def test_the_scratch_folder_of_a_killed_check_is_swept(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    killed, lock = kept.new_folder(scratch, "gdnspec-child-")
    os.close(lock)
    (killed / "core").write_text("x")
    alive, lock = kept.new_folder(scratch, "gdnspec-child-")
    foreign = scratch / "gdnspec-something"
    foreign.mkdir()
    command, env = one_row(make_solution(RIGHT).parent), {"TMPDIR": str(scratch)}
    assert gdnspec(*command, env=env).returncode == 0
    os.close(lock)
    assert sorted(scratch.glob("gdnspec-*")) == sorted([alive, foreign])


def test_a_folder_that_is_swept_before_it_is_locked_is_not_handed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, sweepers = tempfile.mkdtemp, []
    found = threading.Event()

    def slowly(folder: Path) -> None:
        found.set()
        time.sleep(0.1)
        folder.rmdir()

    def made(**options: Any) -> str:
        folder = make(**options)
        if not sweepers:
            sweepers.append(threading.Thread(target=kept.remove_abandoned, args=(Path(folder), slowly)))
            sweepers[0].start()
            assert found.wait(60)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", made)
    folder, lock = kept.new_folder(tmp_path, "run-")
    sweepers[0].join()
    os.close(lock)
    assert list(tmp_path.iterdir()) == [folder]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    file = tmp_path / "x"
    with kept.partial(file) as handle:
        os.write(handle, b"half")
        sweeper = multiprocessing.get_context("spawn").Process(target=kept.sweep, args=(tmp_path,))
        sweeper.start()
        sweeper.join()
        assert len(list(tmp_path.iterdir())) == 1
    assert file.read_bytes() == b"half"


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.keep(tmp_path / "x", b"before")

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            kept.keep(tmp_path / "x", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert kept.kept(tmp_path / "x", pytest.fail, "") == b"before"


# --- two at once ------------------------------------------------------------------------------------------------


def test_two_checks_on_one_cold_cache(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    """Both right, and both sealed by one key: each takes up what the other has recorded."""
    root = make_solution(RIGHT).parent
    environment = {"GDNSPEC_CACHE": str(tmp_path / "cache")}
    names = ("one_row", "batch_8", "resets")
    words = ["check", DECODE, "--solution", "under_test", "--device", "cpu", "--solutions-dir", str(root)]
    words += [word for name in names for word in ("--workload", name)]
    files = [tmp_path / f"{i}.jsonl" for i in range(2)]
    with ThreadPoolExecutor(len(files)) as both:
        for done in both.map(lambda file: gdnspec(*words, "--json", file, env=environment), files):
            assert done.returncode == 0, done.stdout + done.stderr
            assert "broken" not in done.stdout + done.stderr
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert sorted(row["workload"] for row in rows) == sorted(names)
        assert {row["status"] for row in rows} == {"PASSED"}
        assert all(row["seal"] for row in rows)
    inside = list((tmp_path / "cache" / "expected").iterdir())
    assert len([path for path in inside if path.suffix == ".values"]) == len(names)
    assert not [path for path in inside if path.name.endswith(kept.PARTIAL)]
    again = gdnspec(*words, "--json", files[0], env=environment)
    assert "3 of 3 results were taken from" in again.stdout

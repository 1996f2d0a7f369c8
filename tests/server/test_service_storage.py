"""A disk that is full or cannot be written: nothing is half done, and it is said what to do."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Run
from gdnspec.model.errors import SpecError
from gdnspec.server.data_folder import opened
from gdnspec.server.database import Database, StorageError
from gdnspec.server.jobs import Jobs
from gdnspec.server.room import for_want_of_room
from gdnspec.server.settings import Settings
from gdnspec.server.tokens import Tokens
from helpers_service import accept
from patience import PATIENCE

MOUNT = ["unshare", "--user", "--map-root-user", "--mount"]
mounts = pytest.mark.skipif(
    shutil.which("unshare") is None or subprocess.run([*MOUNT, "true"], capture_output=True).returncode != 0,
    reason="no mount namespace here",
)


def in_a_small_disk(tmp_path: Path, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python script in a folder that is a file system of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "script.py").write_text(script)
    words = f"mount -t tmpfs -o size=1m tmpfs {disk} && cd {disk} && {options} {sys.executable} ../script.py bob"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'tools'}:{ROOT / 'tests/support'}"}
    return subprocess.run(
        [*MOUNT, "sh", "-c", words], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )  # fmt: skip


@mounts
def test_a_full_disk_takes_no_job_and_loses_none(tmp_path: Path) -> None:
    script = """
import contextlib, pathlib
from helpers_service import BoxFromNothing
from patience import until
with BoxFromNothing(pathlib.Path("data").absolute(), pathlib.Path("../log").absolute(), lease=8000.0) as box:
    ann = box.user("ann")
    slow = box.job(ann, until=str(pathlib.Path("../goes on").absolute()), total=100)
    until(lambda: box.client(ann).job(slow).done == 1)
    # What SQLite has written ahead is room that it still has; so is the folder of a job, once that is over.
    with box.database.read() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with contextlib.suppress(OSError), open("filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    answer = box.send(ann, padding="x" * 30000)
    print(answer.status, answer.code, answer.headers["retry-after"], answer.json["error"]["message"])
    print(box.ask("GET", "jobs", ann).status, len(box.ask("GET", "jobs", ann).json["jobs"]))
    pathlib.Path("../goes on").touch()
    until(lambda: "a result is not stored yet" in box.said)
    print(box.client(ann).job(slow).state)
    pathlib.Path("filler").unlink()
    print(box.ended(ann, slow).state, box.client(ann).job(slow).attempt, len(box.client(ann).result(slow).verdicts))
    print(box.send(ann, padding="x" * 30000).status)
"""
    done = in_a_small_disk(tmp_path, "", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "507 storage_full 10 the disk of the server is full; nothing was changed", "200 1", "running", "accepted 1 100",
        "201",
    ]  # fmt: skip


@mounts
def test_a_full_work_folder_is_told_as_a_full_disk_and_costs_no_job(tmp_path: Path) -> None:
    """Where the database has room, and what is on its way, judged or drawn has none."""
    script = """
import contextlib, pathlib, subprocess
from helpers_service import BoxFromNothing, until
box = BoxFromNothing(pathlib.Path("../data").absolute(), pathlib.Path("../log").absolute(), lease=60.0)
work = box.data / "work"
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", work], check=True)
work.chmod(0o700)
with box:
    ann = box.user("ann")
    first = box.ended(ann, box.job(ann, name="first")).id
    until(lambda: not list(work.iterdir()))
    with contextlib.suppress(OSError), (work / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    for answer in (
        box.send(ann, padding="x" * (3 << 20)), box.ask("GET", f"jobs/{first}/report", ann), box.ask("GET", "/", ann),
    ):
        print(answer.status, answer.code, answer.headers["retry-after"], answer.json["error"]["message"])
    waits = box.job(ann, name="waits")
    until(lambda: "waits for space on the server's disk" in box.said)
    print(box.client(ann).job(waits).state)
    (work / "filler").unlink()
    print(box.ended(ann, waits).state, box.client(ann).job(waits).attempt)
    print([event.kind for event in box.client(ann).events(waits) if event.kind in ("warning", "again")])
    print(box.send(ann, padding="x" * (3 << 20)).status)
"""
    done = in_a_small_disk(tmp_path, "", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *["507 storage_full 10 the disk of the server is full; nothing was changed"] * 3, "running", "accepted 1",
        "['warning']", "201",
    ]  # fmt: skip
    assert "Traceback" not in (tmp_path / "log").read_text()


@mounts
def test_a_server_goes_on_where_its_log_is_on_the_full_disk(tmp_path: Path) -> None:
    script = """
import contextlib, pathlib
from helpers_service import BoxFromNothing, until
with BoxFromNothing(pathlib.Path("data").absolute(), pathlib.Path("log").absolute(), lease=60.0) as box:
    ann = box.user("ann")
    gate = pathlib.Path("../gate").absolute()
    job = box.job(ann, gate=str(gate), total=200)
    until(lambda: box.client(ann).job(job).total == 200)
    with box.database.read() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    with contextlib.suppress(OSError), open("filler", "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    answers = {box.send(ann, padding="x" * 30000).status for _ in range(3)}
    gate.touch()
    until(lambda: not box.processes())  # it has ended, and its result has nowhere to go
    pathlib.Path("filler").unlink()
    print(answers, box.ended(ann, job).state, box.client(ann).job(job).attempt)
    print(box.ended(ann, box.job(ann)).state)
"""
    done = in_a_small_disk(tmp_path, "", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["{507} accepted 1", "accepted"]


@mounts
def test_a_copy_that_has_no_room_is_not_left_half(tmp_path: Path) -> None:
    script = """
import pathlib
from gdnspec.server.database import Database, StorageError
from gdnspec.server.jobs import Jobs
from gdnspec.server.tokens import Tokens
from helpers_service import accept
database = Database(pathlib.Path("../service.db"))
Tokens(database).add("ann", 1.0)
accept(Jobs(database, 8), "ann", padding="x" * (2 << 20))
for target in ("copy.db", "../copy.db", "../copy.db"):
    try:
        print(database.backup(pathlib.Path(target)))
    except StorageError as error:
        print(error, error.full)
    print(sorted(path.name for path in pathlib.Path().iterdir()))
"""
    done = in_a_small_disk(tmp_path, "", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "copy.db: the disk is full; nothing was changed True", "[]", "None", "[]", "../copy.db: exists already False",
        "[]",
    ]  # fmt: skip


def test_a_bundle_that_a_full_disk_kept_from_being_judged_is_not_called_invalid() -> None:
    caught: list[BaseException] = []
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES):
        try:
            try:
                raise OSError(number, os.strerror(number))
            except OSError as error:
                raise SpecError(f"cannot be written: {error.strerror}") from None
        except SpecError as error:
            caught.append(error)
    assert [for_want_of_room(error) for error in caught] == [True, True, False]
    assert not for_want_of_room(SpecError("it is no bundle"))


@mounts
def test_a_disk_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    script = """
import sys
sys.argv[1:] = ["serve", "--data", "data", "--port", "0"]
from gdnspec.cli.main import main
main()
"""
    prepare = "mount -o remount,ro . &&"
    done = in_a_small_disk(tmp_path, prepare, script)
    assert done.returncode == 2
    assert done.stderr == "gdnspec: data: cannot be written: Read-only file system (--data DIR)\n"


@mounts
def test_a_database_that_cannot_be_written_any_more_says_so(tmp_path: Path) -> None:
    script = """
import pathlib, sys
from gdnspec.server.database import Database, StorageError
from gdnspec.server.tokens import Tokens
try:
    Tokens(Database(pathlib.Path("service.db"))).add(sys.argv[1], 1.0)
except StorageError as error:
    print(error, error.full)
"""
    done = in_a_small_disk(tmp_path, f"{sys.executable} ../script.py ann && mount -o remount,ro . &&", script)
    assert done.stdout.startswith("service.db: "), done.stderr
    assert done.stdout.endswith(" False\n")


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path / "service.db")
    Tokens(database).add("ann", 1.0)
    jobs = Jobs(database, 8)
    accept(jobs, "ann")
    with database.read() as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StorageError, match="the disk is full; nothing was changed") as full:
        accept(jobs, "ann", padding="x" * 100_000)
    assert full.value.full
    with database.read() as connection:
        counts = [connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("jobs", "bundles", "events")]
    assert counts == [1, 1, 1]


def test_a_folder_that_others_can_look_into_is_not_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(SpecError, match="other users of this machine can read it"):
        opened(Settings(tmp_path))
    opened(Settings(tmp_path / "new"))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "service.db").stat().st_mode & 0o077 == 0


def test_what_is_no_database_or_another_ones_is_left_alone(tmp_path: Path, gdnspec: Run) -> None:
    data = tmp_path / "data"
    opened(Settings(data))
    with Database(data / "service.db").write() as connection:
        connection.execute("PRAGMA user_version = 7")
    done = gdnspec("serve", "--data", data, "--users")
    assert done.returncode == 2
    assert "has version 7, and this gdnspec uses version 1 (--data DIR)" in done.stderr
    for file in data.glob("service.db-*"):
        file.unlink()
    (data / "service.db").write_bytes(b"a text, and a long one\n" * 100)
    done = gdnspec("serve", "--data", data, "--users")
    assert (done.returncode, "file is not a database" in done.stderr) == (2, True)


def test_users_and_copies_from_the_command_line(tmp_path: Path, gdnspec: Run) -> None:
    data, copy = ("--data", tmp_path / "data"), tmp_path / "copy" / "service.db"
    made = gdnspec("serve", *data, "--add-user", "ann", "--days", "2")
    token = made.stdout.strip()
    assert made.returncode == 0
    assert token.startswith("gdnspec_")
    assert token not in made.stderr
    assert Tokens(opened(Settings(tmp_path / "data"))).user(token) == "ann"
    again = gdnspec("serve", *data, "--add-user", "ann")
    assert (again.returncode, again.stdout) == (2, "")
    assert gdnspec("serve", *data, "--add-user", "../x").returncode == 2
    assert gdnspec("serve", *data, "--revoke", "bob").returncode == 2
    copy.parent.mkdir(mode=0o700)
    assert gdnspec("serve", *data, "--backup", copy).returncode == 0
    assert gdnspec("serve", *data, "--backup", copy).returncode == 2  # it is not written over
    assert gdnspec("serve", *data, "--revoke", "ann").returncode == 0
    assert "revoked" in gdnspec("serve", *data, "--users").stdout
    assert Tokens(opened(Settings(tmp_path / "data"))).user(token) is None
    assert Tokens(opened(Settings(copy.parent))).user(token) == "ann"  # a copy is as things were

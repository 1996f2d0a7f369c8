"""A place that cannot be written to is found before the work; a disk that fills up leaves nothing half done."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec.catalog import writing
from gdnspec.catalog.solutions import load_solution
from gdnspec.cli import files, matrix
from gdnspec.cli.commands.new import new
from gdnspec.model.errors import SpecError
from gdnspec.report import kills
from gdnspec.submission.evidence import folder_of
from helpers_bundles import DECODE, bundle_of

Make = Callable[..., Path]
RIGHT = "def run(**inputs):\n    return decode_k_last(**inputs)\n"
CLOSED = Path("/proc")  # to root as well


def test_intake_finds_a_closed_folder_before_anything_runs(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    bundle = bundle_of(make_solution(RIGHT), tmp_path / "a.tar")
    done = gdnspec("intake", bundle, "--into", CLOSED)
    assert done.returncode == 2
    assert "/proc: cannot be written: " in done.stderr
    assert "--into DIR" in done.stderr
    assert "audit" not in done.stdout + done.stderr
    assert "checking it on" not in done.stderr


def test_submit_finds_it_before_anything_is_recorded(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(RIGHT, name="nowhere_to_go")
    for target in (CLOSED / "a.tar", folder):
        done = gdnspec("submit", folder.name, "--solutions-dir", folder.parent, "-o", target)
        assert done.returncode == 2
        assert "-o BUNDLE" in done.stderr
        assert not folder_of(load_solution(folder)).exists()


def test_report_finds_it_before_it_reads(gdnspec: Run, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    for target in (CLOSED / "page.html", tmp_path / "no" / "page.html", tmp_path / "folder.html"):
        # A file of verdicts that is not there would be warned of as soon as any is read.
        done = gdnspec("report", "-o", target, "--verdicts", tmp_path / "none.jsonl")
        assert done.returncode == 2
        assert "-o FILE" in done.stderr
        assert "none.jsonl" not in done.stderr
    done = gdnspec("report", "--markdown", "torch_recurrent", "-o", CLOSED / "README.md")
    assert (done.returncode, "cannot be written: " in done.stderr) == (2, True)


def test_bench_save_finds_it_before_it_measures(gdnspec: Run, make_solution: Make) -> None:
    folder = make_solution(RIGHT)
    (folder / "traces").symlink_to(CLOSED)
    words = ("bench", DECODE, "--device", "cpu", "--workload", "one_row", "--solution", folder.name)
    done = gdnspec(*words, "--solutions-dir", folder.parent, "--save")
    assert done.returncode == 2
    assert "--json FILE writes them elsewhere" in done.stderr
    assert "one_row" not in done.stdout


def test_selftest_finds_a_file_without_a_place_before_it_runs(gdnspec: Run, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Nothing to put a matrix into\n")
    done = gdnspec("selftest", "--markdown", tmp_path / "README.md")
    assert (done.returncode, "has no place for the matrix" in done.stderr) == (2, True)
    assert "1 of " not in done.stderr
    with pytest.raises(SpecError, match="its folder does not exist"):
        matrix.require_place(tmp_path / "gone" / "matrix.md")


def test_a_new_file_gets_the_matrix_and_an_old_one_keeps_its_own_words(tmp_path: Path) -> None:
    file = tmp_path / "matrix.md"
    matrix.write(file, [], [], {})
    text = file.read_text()
    assert text.startswith("# Kill matrix\n")
    assert [table.columns[0] for table in kills.written(file)] == ["workload"], "tables without a row are left out"
    file.write_text(f"Mine.\n{text}\nMine too.\n")
    matrix.write(file, [], [], {})
    assert file.read_text() == f"Mine.\n{text}\nMine too.\n"
    file.write_text("# No matrix\n")
    with pytest.raises(SpecError, match="holds no kill matrix"):
        kills.written(file)


@pytest.mark.parametrize(
    "words",
    [
        (
            "workloads",
            "generate",
            DECODE,
            "--preset",
            "qwen3-next-80b-a3b-tp4",
            "--batch",
            "1",
            "-o",
            CLOSED / "x.jsonl",
        ),
        ("workloads", "stats", ROOT / "definitions" / "gdn" / DECODE / "workloads.jsonl", "-o", CLOSED / "x.html"),
        ("workloads", "materialize", DECODE, "-o", CLOSED / "x"),
        ("vectors", "export", DECODE, "--out", CLOSED / "x"),
        ("check", DECODE, "--workload", "one_row", "--json", CLOSED / "x.jsonl"),
        ("new", "mine", "--definition", DECODE, "--solutions-dir", CLOSED / "x"),
    ],
)
def test_others_say_what_cannot_be_written(gdnspec: Run, words: tuple[str | Path, ...]) -> None:
    done = gdnspec(*words)
    assert done.returncode == 2, done.stdout
    assert "/proc/" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_asked_is_tried(tmp_path: Path) -> None:
    writing.require_file(tmp_path / "x", "")
    writing.require_folder(tmp_path / "a" / "b", "")
    writing.require_file(Path("/dev/null"), "")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="is a file"):
        writing.require_folder(tmp_path / "file" / "x", "")


# --- full disks -------------------------------------------------------------------------------------------------


def test_new_on_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, text: str, *more: Any, **options: Any) -> int:
        if path.name == "kernel.py":
            write(path, text[:100], *more, **options)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, text, *more, **options)

    def make() -> None:
        new("mine", [DECODE], "python", tmp_path / "solutions")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(SpecError, match="cannot be written: No space left on device; nothing was created"):
            make()
    assert not list((tmp_path / "solutions").iterdir())
    before = os.umask(0o022)  # whatever the tests before this one have left
    try:
        make()
    finally:
        os.umask(before)
    assert [path.name for path in (tmp_path / "solutions").iterdir()] == ["mine"]
    assert (tmp_path / "solutions" / "mine").stat().st_mode & 0o055 == 0o055, "readable as a checkout is"


def test_a_bundle_on_a_full_disk_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar").write_bytes(b"before")
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        write(path, data[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        files.replaced(tmp_path / "a.tar", b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert (tmp_path / "a.tar").read_bytes() == b"before"


# --- long and odd paths -----------------------------------------------------------------------------------------

ODD = 'it\'s a "folder" \N{ROCKET} '


def test_paths_of_264_characters(gdnspec: Run, tmp_path: Path) -> None:
    """new, check, submit and intake, in folders with spaces, quotes and emoji."""
    root = tmp_path / (ODD + "x" * 60) / (ODD + "y" * 60)
    root = root / ("z" * max(1, 263 - len(str(root / "mine" / "kernel.py"))))
    mine = root / "mine"
    root.mkdir(parents=True)
    where = ("--solutions-dir", root)
    env = {"GDNSPEC_CACHE": str(root / "cache"), "TMPDIR": str(root)}
    assert gdnspec("new", "mine", "--definition", DECODE, *where, env=env).returncode == 0
    assert len(str(mine / "kernel.py")) >= 264
    manifest = mine / "solution.json"
    text = manifest.read_text().replace('"you"', '"A. Author"').replace("say here what sets it apart.", "a loop.")
    assert '"deterministic": false' in text  # a correct kernel with sigmoid and softplus would fail otherwise
    manifest.write_text(text.replace('"supports": []', '"supports": ["batch_size == 1 and num_v_heads <= 4"]'))
    code = (ROOT / "solutions" / "torch_recurrent" / "kernel.py").read_text()
    (mine / "kernel.py").write_text(code)
    entry = load_solution(ROOT / "solutions" / "torch_recurrent").manifest.entries[DECODE]
    manifest.write_text(manifest.read_text().replace(f"kernel.py::{DECODE}", entry.entry))
    checked = gdnspec(
        "check", DECODE, "--solution", "mine", "--workload", "one_row", "--json", root / "r.jsonl", *where, env=env
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    bundle = root / "a bundle's.tar"
    done = gdnspec("submit", "mine", *where, "--device", "cpu", "-o", bundle, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    into = root / "into \N{ROCKET}"
    into.mkdir()
    taken = gdnspec("intake", bundle, "--into", into, "--device", "cpu", env=env)
    assert taken.returncode == 0, taken.stdout + taken.stderr

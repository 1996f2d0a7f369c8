"""From `gdnspec new` to an accepted submission; the same bytes from the same evidence; what is refused, and why."""

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import RIGHT_DECODE, ROOT, Run
from gdnspec.catalog.solutions import load_solution
from gdnspec.model.errors import SpecError
from gdnspec.submission.admission import admit
from gdnspec.submission.bundle import read
from gdnspec.submission.evidence import folder_of
from helpers_bundles import DECODE, bundle_of, claimed
from helpers_traces import make_timing, trace_of

Make = Callable[..., Path]
ARGUMENTS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
FEW = ["batch_size <= 2 and num_v_heads <= 8"]  # of the workloads, so that the tests are quick
ENTRIES = {DECODE: {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": FEW}}
RIGHT = f"def run{ARGUMENTS}:\n    return decode_k_last{ARGUMENTS}\n"


@pytest.mark.slow
def test_from_new_to_an_accepted_submission(gdnspec: Run, tmp_path: Path) -> None:
    mine, solutions = tmp_path / "mine", tmp_path / "solutions"
    solutions.mkdir()
    where = ("--solutions-dir", mine)
    assert gdnspec("new", "my_decode", "--definition", DECODE, *where).returncode == 0

    # Not yet: nobody has said who made it, and why.
    early = gdnspec("submit", "my_decode", *where, cwd=tmp_path)
    assert early.returncode == 2
    assert "my_decode/solution.json: /authors/0: the author is still the text" in early.stderr
    assert "my_decode/solution.json: /description: the description is still the text" in early.stderr
    assert not (tmp_path / "my_decode.bundle.tar").exists()

    manifest = mine / "my_decode" / "solution.json"
    text = manifest.read_text().replace('"you"', '"A. Author"').replace("say here what sets it apart.", "a loop.")
    text = text.replace('"deterministic": true', '"deterministic": false')
    manifest.write_text(text.replace('"supports": []', f'"supports": {json.dumps(FEW)}'))
    kernel = mine / "my_decode" / "kernel.py"
    check = ("check", DECODE, "--solution", "my_decode", *where, "--workload", "one_row")
    assert gdnspec(*check).returncode == 1
    body = f'raise NotImplementedError("{DECODE} is not written yet")'
    kernel.write_text(RIGHT_DECODE + kernel.read_text().replace(body, f"return decode_k_last{ARGUMENTS}"))
    assert gdnspec(*check).returncode == 0

    done = gdnspec("submit", "my_decode", *where, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "packed my_decode.bundle.tar" in done.stdout
    assert "next, for the reviewer: gdnspec intake my_decode.bundle.tar" in done.stdout
    bundle = tmp_path / "my_decode.bundle.tar"
    suites = {verdict.suite for verdict in read(bundle).verdicts}
    assert suites == {"smoke", "fresh", "conformance"}
    assert str(tmp_path) not in bundle.read_bytes().decode()  # a path of the author's machine is nobody's business

    # Packed again from the same evidence: the same bytes; and not from evidence for anything else.
    again = gdnspec("submit", "my_decode", *where, "--reuse-evidence", "-o", tmp_path / "again.tar")
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.tar").read_bytes() == bundle.read_bytes()
    before = kernel.read_text()
    kernel.write_text(before + "# later\n")
    stale = gdnspec("submit", "my_decode", *where, "--reuse-evidence", "-o", tmp_path / "stale.tar")
    assert stale.returncode == 2
    assert "is for other sources (gdnspec submit my_decode records it again)" in stale.stderr
    assert not (tmp_path / "stale.tar").exists()

    taken = gdnspec("intake", bundle, "--into", solutions)
    assert taken.returncode == 0, taken.stderr
    assert "accepted: " in taken.stdout
    assert "checking it on" in taken.stderr
    assert sorted(path.name for path in solutions.iterdir()) == ["my_decode"]
    assert sorted(path.name for path in (solutions / "my_decode").iterdir()) == ["kernel.py", "solution.json"]
    assert (solutions / "my_decode" / "kernel.py").read_text() == before
    assert gdnspec("validate", solutions / "my_decode").returncode == 0


def test_what_fails_is_not_packed(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    make_solution(RIGHT.replace("return", "S = state; return v,"), entries=ENTRIES)
    done = gdnspec("submit", "under_test", "--solutions-dir", tmp_path / "solutions", cwd=tmp_path)
    assert done.returncode == 1
    assert "nothing is packed" in done.stderr
    assert f"INCORRECT_SHAPE on {DECODE}/" in done.stderr
    assert not (tmp_path / "under_test.bundle.tar").exists()


def test_what_cannot_run_here_is_not_submitted(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    requires = {"device": "any", "compute_capability": None, "packages": ["no_such_package>=1"]}
    make_solution(RIGHT, requires=requires)
    done = gdnspec("submit", "under_test", "--solutions-dir", tmp_path / "solutions", cwd=tmp_path)
    assert done.returncode == 3
    assert f"nothing ran on {DECODE}: needs no_such_package>=1" in done.stderr
    assert not (tmp_path / "under_test.bundle.tar").exists()


def test_what_needs_a_gpu_is_submitted_where_there_is_one(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    requires = {"device": "cuda", "compute_capability": "8.0", "packages": []}
    make_solution(RIGHT, requires=requires)
    submit = ("submit", "under_test", "--solutions-dir", tmp_path / "solutions", "--device", "cpu")
    done = gdnspec(*submit, cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 3
    assert f"nothing ran on {DECODE}: needs a CUDA GPU: this machine has none" in done.stderr
    assert "gdnspec submit under_test on a machine with a CUDA GPU" in done.stderr
    assert not (tmp_path / "under_test.bundle.tar").exists()
    # One of two definitions, of which the other ran: nothing has failed, and nothing is packed.
    elsewhere = {**ENTRIES[DECODE], "supports": ["device == 'cuda'"]}
    make_solution(RIGHT, entries={**ENTRIES, "gdn_decode_k_first": elsewhere})
    done = gdnspec(*submit, cwd=tmp_path)
    assert done.returncode == 3
    assert "nothing ran on gdn_decode_k_first: the solution supports device == 'cuda'" in done.stderr
    assert "on a machine that can run it" in done.stderr
    assert not (tmp_path / "under_test.bundle.tar").exists()


def test_what_cannot_be_packed_is_named(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    submit = ("submit", "under_test", "--solutions-dir", tmp_path / "solutions", "-o", tmp_path / "a.tar")
    for change, says in (
        ({"license": ""}, "/license"),
        ({"sources": ["kernel.py", "größe.py"]}, "'größe.py' cannot be packed: names are made of"),
        ({"sources": ["kernel.py", "link.py"]}, "'link.py' is a symbolic link"),
        ({"sources": ["kernel.py", "large.py"]}, "the sources have more than 10 MiB together"),
        ({"entries": {"gdn_decode_k_lost": {"entry": "kernel.py::run", "call": "return"}}}, "did you mean"),
    ):
        folder = make_solution(RIGHT, **change)
        (folder / "größe.py").write_text("")
        (folder / "large.py").write_bytes(b"#" * (11 << 20))
        (folder / "link.py").unlink(missing_ok=True)
        (folder / "link.py").symlink_to("kernel.py")
        done = gdnspec(*submit)
        assert done.returncode == 2, done.stderr
        assert says in done.stderr
        assert not (tmp_path / "a.tar").exists()
    assert "no solution 'under_tset'" in gdnspec("submit", "under_tset", *submit[2:4]).stderr


def test_a_bundle_is_not_written_over_anything_else(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    folder = make_solution(RIGHT)
    kernel = (folder / "kernel.py").read_bytes()
    done = gdnspec("submit", "under_test", "--solutions-dir", folder, "-o", folder / "kernel.py")
    assert done.returncode == 2
    assert "exists, and is not a bundle" in done.stderr
    assert (folder / "kernel.py").read_bytes() == kernel
    done = gdnspec("submit", "under_test", "--solutions-dir", folder, "-o", tmp_path / "gone" / "a.tar")
    assert (done.returncode, "no such folder" in done.stderr) == (2, True)
    done = gdnspec("intake", tmp_path, "--into", tmp_path)
    assert (done.returncode, "is a folder (gdnspec submit packs a solution as one file)" in done.stderr) == (2, True)


def test_evidence_that_was_not_finished_or_was_changed_is_not_reused(
    gdnspec: Run, make_solution: Make, tmp_path: Path
) -> None:
    solution = load_solution(make_solution(RIGHT, name="half_done"))
    folder = folder_of(solution)
    recorded = claimed(solution)
    submit = ("submit", "half_done", "--solutions-dir", solution.folder, "-o", tmp_path / "a.tar", "--reuse-evidence")
    folder.mkdir(parents=True)
    for name, data in recorded.files.items():
        (folder / name).write_bytes(data)
    done = gdnspec(*submit)
    assert (done.returncode, "no evidence was recorded, or the run did not finish" in done.stderr) == (2, True)
    (folder / "evidence.json").write_text(recorded.evidence.model_dump_json())
    assert gdnspec(*submit).returncode == 0
    (tmp_path / "a.tar").unlink()
    with (folder / "verdicts.jsonl").open("a") as file:
        file.write(json.dumps({"status": "PASSED"}) + "\n")
    done = gdnspec(*submit)
    assert (done.returncode, "verdicts.jsonl: has changed since" in done.stderr) == (2, True)
    assert not (tmp_path / "a.tar").exists()


def test_findings_refuse_a_bundle_before_it_runs(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    bundle = bundle_of(make_solution(f"import socket\nopen({str(ran)!r}, 'w')\n{RIGHT}"), tmp_path / "a.tar")
    (tmp_path / "into").mkdir()
    done = gdnspec("intake", bundle, "--into", tmp_path / "into")
    assert done.returncode == 1
    assert "network: import socket" in done.stderr
    assert "files: open" in done.stderr
    assert "checking it on" not in done.stderr
    assert not ran.exists()
    assert not list((tmp_path / "into").iterdir())


def test_admission_is_one_step_and_leaves_nothing_behind(make_solution: Make, tmp_path: Path) -> None:
    folder = make_solution(RIGHT)
    (folder / "README.md").write_text("# What it is\n")
    bundle = read(bundle_of(folder, tmp_path / "a.tar"))
    trace = trace_of(folder, workload="16x32_batch_1", timing=make_timing(30e-6))
    into = tmp_path / "into"
    into.mkdir()
    # A trace that is no trace of it: refused when everything else is already staged.
    with pytest.raises(SpecError, match="no workload 'nowhere'"):
        admit(bundle, [trace.model_copy(update={"workload": "nowhere"})], into)
    assert not list(into.iterdir())
    target = admit(bundle, [trace], into)
    assert sorted(str(p.relative_to(into)) for p in into.rglob("*") if p.is_file()) == [
        "under_test/README.md", "under_test/kernel.py", "under_test/solution.json",
        "under_test/traces/nvidia-h200.jsonl",
    ]  # fmt: skip
    assert (target / "kernel.py").stat().st_mode & 0o777 == 0o644
    with pytest.raises(SpecError, match="the name is taken"):
        admit(bundle, [], into)
    assert [path.name for path in into.iterdir()] == ["under_test"]


def test_what_only_reads_needs_no_torch(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    """A broken bundle is told of at once, and evidence is packed where nothing can run."""
    blocked = tmp_path / "blocked" / "torch"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('torch is not to be imported')")
    env = {"PYTHONPATH": f"{blocked.parent}:{ROOT / 'tools'}"}
    bundle = bundle_of(make_solution(RIGHT, name="torch_recurrent"), tmp_path / "a.tar")
    done = gdnspec("intake", bundle, "--into", tmp_path, env=env)
    assert (done.returncode, "this solution already has the name" in done.stderr) == (2, True)


def test_the_archive_is_an_ordinary_tar(make_solution: Make, tmp_path: Path) -> None:
    bundle = bundle_of(make_solution(RIGHT), tmp_path / "a.tar")
    with tarfile.open(bundle) as archive:
        assert archive.getnames() == [
            "bundle.json", "evidence/traces.jsonl", "evidence/verdicts.jsonl", "solution/kernel.py",
            "solution/solution.json",
        ]  # fmt: skip
        assert {(m.mtime, m.uid, m.gid, m.mode) for m in archive.getmembers()} == {(0, 0, 0, 0o644)}


LINKS = ("/etc/passwd", "../../tools/review_pull_request.py", "../sibling/kernel.py")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
@pytest.mark.parametrize("targets", [LINKS[2:], pytest.param(LINKS, marks=pytest.mark.thorough)], ids=["one", "each"])
def test_a_pull_request_is_judged_by_its_base(tmp_path: Path, make_solution: Make, targets: tuple[str, ...]) -> None:
    """The branch makes its own judge praise it: the base's does not look there."""

    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tree, check=True)

    tree = tmp_path / "tree"
    tree.mkdir()
    shutil.copytree(ROOT / "tools", tree / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("definitions", "reference", "peers"):
        (tree / name).symlink_to(ROOT / name)
    (tree / "solutions").mkdir()
    for name in ("friendly", "sibling"):
        shutil.copytree(make_solution(RIGHT, name=name, entries=ENTRIES), tree / "solutions" / name)
    kernel = tree / "solutions" / "friendly" / "kernel.py"
    git("init", "--quiet", "--initial-branch=main")
    git("add", "-A")
    git("commit", "--quiet", "-m", "base")
    git("checkout", "--quiet", "-b", "branch")
    review = [sys.executable, tree / "tools" / "review_pull_request.py", "main"]
    assert "no solution is changed" in subprocess.run(review, capture_output=True, text=True).stdout
    kernel.write_text(f"import socket\n{kernel.read_text()}")
    (tree / "tools" / "gdnspec" / "__main__.py").write_text("print('accepted')\n")
    git("add", "-A")
    git("commit", "--quiet", "-m", "change")
    done = subprocess.run(review, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "import socket" in done.stderr
    assert "friendly: not accepted" in done.stdout
    assert "sibling" not in done.stdout, "nothing in it has changed"
    for target in targets:
        kernel.unlink()
        kernel.symlink_to(target)
        git("commit", "--quiet", "-am", "a link")
        done = subprocess.run(review, capture_output=True, text=True)
        assert (done.returncode, "friendly/kernel.py: a symbolic link" in done.stderr) == (1, True)

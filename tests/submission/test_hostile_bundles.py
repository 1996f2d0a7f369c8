"""Bundles that lie, or that mean harm to who reads them: each is refused by name before anything of it runs."""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.catalog.solutions import load_solution
from gdnspec.model.errors import SpecError
from gdnspec.submission.archive import MOST_ARCHIVE, MOST_FILES, pack, unpack
from gdnspec.submission.bundle import BUNDLE, read
from helpers_bundles import bundle_of, member, passed, resealed, written
from helpers_traces import trace_of

KERNEL, MANIFEST = "solution/kernel.py", "solution/solution.json"
VERDICTS, TRACES = "evidence/verdicts.jsonl", "evidence/traces.jsonl"
RIGHT = "def run{args}:\n    return decode_k_last{args}\n".format(
    args="(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
)
Make = Callable[..., Path]


@pytest.fixture
def bundle(make_solution: Make, tmp_path: Path) -> Path:
    return bundle_of(make_solution(RIGHT), tmp_path / "a.tar")


def compressed_zeros() -> bytes:
    """Ten gigabytes of zeros in ten megabytes: a gzip file may have many parts."""
    return gzip.compress(bytes(10 << 20)) * 1000


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../evil", bytes(1 << 20))
    return out.getvalue()


LINK = {"linkname": "/etc/passwd", "size": 0}
ARCHIVES: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "out of the folder": ([member("../evil.py")], "leads out"),
    "out of the folder further in": ([member("solution/../../evil.py")], "leads out"),
    "an absolute path": ([member("/tmp/evil.py")], "an absolute path"),
    "a symbolic link": ([member("solution/kernel.py", b"", type=tarfile.SYMTYPE, **LINK)], "a symbolic link"),
    "a file through a link": (
        [member("solution", b"", type=tarfile.SYMTYPE, linkname="/tmp"), member("solution/x.py")], "a symbolic link"),
    "a hard link": ([member("solution/kernel.py", b"", type=tarfile.LNKTYPE, **LINK)], "a hard link"),
    "a character device": ([member("solution/null", b"", type=tarfile.CHRTYPE, devmajor=1, devminor=3)], "a device"),
    "a block device": ([member("solution/disk", b"", type=tarfile.BLKTYPE, devmajor=8)], "a device"),
    "a pipe": ([member("solution/pipe", b"", type=tarfile.FIFOTYPE)], "a pipe"),
    "a folder": ([member("solution", b"", type=tarfile.DIRTYPE)], "a folder"),
    "an unknown kind": ([member("solution/x", b"", type=b"Z")], "not a regular file"),
    "the same name twice": ([member("solution/kernel.py", b"1"), member("solution/kernel.py", b"2")], "twice"),
    "one name but for case": ([member("solution/kernel.py"), member("solution/Kernel.py")], "upper and lower case"),
    "a file and a folder": ([member("solution"), member("solution/kernel.py")], "a file and a folder"),
    "a letter of two kinds": ([member("solution/é.py"), member("solution/é.py")], "names are made of"),
    "a mark of direction": ([member("solution/\u202eyp.lenrek")], "names are made of"),
    "no width": ([member("solution/ker\u200bnel.py")], "names are made of"),
    "a line's end": ([member("solution/kernel.py\nnext")], "names are made of"),
    "a control character": ([member("solution/\x1b[2Jkernel.py")], "names are made of"),
    "a hidden folder": ([member("solution/.git/hooks/post-checkout")], "names are made of"),
    "an option": ([member("solution/-rf")], "names are made of"),
    "a backslash": ([member("solution\\..\\evil.py")], "names are made of"),
    "no name": ([member("")], "names are made of"),
    "another's file": ([member(BUNDLE, uid=0, uname="root", mode=0o4755)], "byte for byte"),
    "another time": ([member(BUNDLE, mtime=1)], "byte for byte"),
    "not in order": ([member("solution/b"), member("solution/a")], "byte for byte"),
}  # fmt: skip


@pytest.mark.parametrize("what", ARCHIVES)
def test_an_archive_of_anything_but_plain_files_is_refused(tmp_path: Path, what: str) -> None:
    entries, says = ARCHIVES[what]
    format = tarfile.PAX_FORMAT if any(ord(c) > 127 for m, _ in entries for c in m.name) else tarfile.USTAR_FORMAT
    with pytest.raises(SpecError, match=says) as refused:
        unpack(written(tmp_path / "a.tar", entries, format))
    assert str(refused.value).isprintable() or "\n" in str(refused.value)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "a.tar"]


def size_of_ten_gigabytes() -> bytes:
    info, _ = member("solution/kernel.py")
    info.size = 10 << 30
    return info.tobuf(tarfile.GNU_FORMAT)


def sparse() -> bytes:
    """A file of one byte that says it has ten gigabytes of holes."""
    info, data = member("solution/kernel.py", b"x")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[156:157] = tarfile.GNUTYPE_SPARSE
    block[483:495] = b"%011o\0" % (8 << 30)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data.ljust(512, b"\0") + bytes(1024)


def headers_without_end() -> bytes:
    """Extended headers, each of the next: a reader that follows them by calling itself runs out of stack."""
    info, data = member("h", b"13 path=other\n", type=tarfile.XHDTYPE)
    return (info.tobuf() + data.ljust(512, b"\0")) * 5000 + member("x")[0].tobuf() + bytes(2048)


def another_name() -> bytes:
    """Readers of extended headers see one name, others another."""
    info, data = member("h", b"30 path=solution/../../evil.py\n"[:30] + b"\n", type=tarfile.XHDTYPE)
    return (
        info.tobuf() + data.ljust(512, b"\0") + member("solution/kernel.py")[0].tobuf() + b"x".ljust(512) + bytes(1024)
    )


def many_files() -> bytes:
    info, _ = member("x")
    blocks = io.BytesIO()
    for i in range(100_000):
        info.name, info.size = f"solution/{i}.py", 0
        blocks.write(info.tobuf(tarfile.USTAR_FORMAT))
    return blocks.getvalue()[: MOST_ARCHIVE // 512 * 512]


BYTES: dict[str, tuple[Callable[[], bytes], str]] = {
    "ten gigabytes of zeros, gzip": (compressed_zeros, "is compressed"),
    "bzip2": (lambda: bz2.compress(bytes(1 << 20)), "is compressed"),
    "xz": (lambda: lzma.compress(bytes(1 << 20)), "is compressed"),
    "zip": (zipped, "is compressed"),
    "a size of ten gigabytes": (size_of_ten_gigabytes, "larger than"),
    "holes of ten gigabytes": (sparse, "a sparse file"),
    "headers without end": (headers_without_end, "recursion"),
    "another name in an extended header": (another_name, "leads out"),
    "100,000 files": (many_files, f"more than {MOST_FILES} files"),
    "nothing": (lambda: b"", "empty file"),
    "an empty archive": (lambda: bytes(10240), "holds no file"),
    "noise": (lambda: os.urandom(4096), "not a whole tar archive"),
    "text": (lambda: b"gdnspec\n" * 400, "not a whole tar archive"),
    "too large": (lambda: bytes(MOST_ARCHIVE + 1), "larger than"),
}


@pytest.mark.parametrize("what", BYTES)
def test_bytes_that_are_no_bundle_are_refused(tmp_path: Path, what: str) -> None:
    make, says = BYTES[what]
    (tmp_path / "a.tar").write_bytes(make())
    with pytest.raises(SpecError, match=says):
        unpack(tmp_path / "a.tar")


def test_what_is_cut_off_or_goes_on_is_refused(bundle: Path) -> None:
    data = bundle.read_bytes()
    for cut in (1, 511, 512, 513, len(data) // 2, len(data) - 1):
        bundle.write_bytes(data[:cut])
        with pytest.raises(SpecError):
            unpack(bundle)
    for more in (data, b"x", bytes(512)):
        bundle.write_bytes(data + more)
        with pytest.raises(SpecError, match="byte for byte"):
            unpack(bundle)


def test_a_bundle_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "gone.tar"):
        with pytest.raises(SpecError, match=r"regular file|no such file|is a folder"):
            unpack(path)


def test_packing_refuses_what_reading_would() -> None:
    for name in ("../x", "/x", ".x", "é"):
        with pytest.raises(SpecError, match="cannot be packed"):
            pack({name: b""})
    with pytest.raises(SpecError, match=f"more than {MOST_FILES} files"):
        pack({f"f{i}": b"" for i in range(MOST_FILES + 1)})


def test_a_bundle_is_a_plain_tar_of_known_bytes(tmp_path: Path) -> None:
    """Another Python that writes another header would make every bundle of today unreadable: this would tell."""
    from gdnspec.submission.evidence import sha256

    data = pack({"solution/kernel.py": b"x = 1\n", "bundle.json": b"{}\n"})
    assert sha256(data) == "a920b077ceb92e7db10156624815ece5c3183303c3975cf61d084849b865c40d"
    (tmp_path / "a.tar").write_bytes(data)
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["bundle.json", "solution/kernel.py"]


# --- manifests that say otherwise -------------------------------------------------------------------------------


def setting(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = to

    return change


def same(_: dict[str, Any]) -> None:
    pass


LIES: dict[str, tuple[Callable[[dict[str, Any]], None], dict[str, bytes | None], str]] = {
    "another hash": (setting("files", KERNEL, to="0" * 64), {}, "another sha256 than its manifest says"),
    "no hash": (lambda m: m["files"].pop(KERNEL), {}, "is not in its manifest"),
    "a file that is nowhere": (setting("files", "solution/x.py", to="0" * 64), {}, "is in its manifest, but missing"),
    "a file beside": (same, {"x.py": b""}, "does not belong in a bundle"),
    "a source that is not listed": (same, {"solution/x.py": b""}, "not among the sources"),
    "a source that is left out": (same, {KERNEL: None}, "'kernel.py' is not in it"),
    "no manifest of the solution": (same, {MANIFEST: None}, "has no solution/solution.json"),
    "no verdicts": (same, {VERDICTS: None}, "has no evidence/verdicts.jsonl"),
    "other sources": (same, {KERNEL: b"import os\n"}, "evidence is for other sources"),
    "other verdicts": (setting("evidence", "files", "verdicts.jsonl", to="0" * 64), {}, "for another verdicts.jsonl"),
    "another name": (setting("name", to="torch_recurrent"), {}, "name is 'torch_recurrent' here"),
    "a name that is a path": (setting("name", to="../../evil"), {}, "/name"),
    "another licence": (setting("license", to="MIT"), {}, "license is 'MIT' here"),
    "no licence": (lambda m: m.pop("license"), {}, "missing key 'license'"),
    "no authors": (setting("authors", to=[]), {}, "/authors"),
    "other authors": (setting("authors", to=["somebody"]), {}, "authors is"),
    "another version": (setting("schema_version", to=2), {}, "this gdnspec reads version 1"),
    "a key nobody knows": (setting("trusted", to=True), {}, "unknown key 'trusted'"),
    "another's evidence": (setting("evidence", "solution", to="torch_recurrent"), {}, "evidence for 'torch_recurrent'"),
    "other definitions": (setting("evidence", "definitions", to={}), {}, "other definitions than it serves"),
    "a verdict that is none": (same, {VERDICTS: b'{"status": "PASSED"}\n'}, "missing key"),
    "verdicts without end": (same, {VERDICTS: b'{"a":' * 100_000}, "nested too deeply|not JSON"),
    "verdicts that are no text": (same, {VERDICTS: b"\xff\xfe"}, "not UTF-8"),
    "a manifest that is no text": (same, {MANIFEST: b"\xff"}, "not UTF-8"),
    "a manifest without end": (same, {MANIFEST: b"[" * 200_000}, "nested too deeply"),
    "a manifest of two minds": (same, {MANIFEST: b'{"name": "a", "name": "b"}'}, "occurs twice in one object"),
    "11 MB of sources": (same, {KERNEL: b"#" * (11 << 20)}, "sources of over 10 MiB"),
}


@pytest.mark.parametrize("what", LIES)
def test_a_manifest_that_does_not_hold_is_refused(bundle: Path, what: str) -> None:
    change, files, says = LIES[what]
    with pytest.raises(SpecError, match=says):
        read(resealed(bundle, change, files))


def test_a_bundle_without_a_manifest_says_who_makes_them(bundle: Path) -> None:
    bundle.write_bytes(pack({name: data for name, data in unpack(bundle).items() if name != BUNDLE}))
    with pytest.raises(SpecError, match=r"has no bundle\.json: gdnspec submit packs one"):
        read(bundle)


# --- through the command ----------------------------------------------------------------------------------------


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def test_a_definition_that_is_unknown_or_another_is_named(gdnspec: Run, bundle: Path, into: Path) -> None:
    now = json.loads(unpack(bundle)[BUNDLE])["evidence"]["definitions"]["gdn_decode_k_last"]
    older = {"gdn_decode_k_last": {**now, "definition": "0" * 64}}
    done = gdnspec("intake", resealed(bundle, setting("evidence", "definitions", to=older)), "--into", into)
    assert done.returncode == 2
    assert "was checked on another version of gdn_decode_k_last" in done.stderr

    content = json.loads(unpack(bundle)[MANIFEST])
    content["entries"] = {"gdn_decode_k_lost": content["entries"]["gdn_decode_k_last"]}
    unknown = setting("evidence", "definitions", to={"gdn_decode_k_lost": now})
    source_hash = load_solution(bundle.parent / "solutions" / "under_test").source_hash
    (bundle.parent / "solutions" / "under_test" / "solution.json").write_text(json.dumps(content))

    def change(manifest: dict[str, Any]) -> None:
        unknown(manifest)
        manifest["evidence"]["source_hash"] = hash_of(content, unpack(bundle)[KERNEL])

    assert source_hash
    done = gdnspec("intake", resealed(bundle, change, {MANIFEST: json.dumps(content).encode()}), "--into", into)
    assert done.returncode == 2
    assert "no definition 'gdn_decode_k_lost' (did you mean 'gdn_decode_k_last'?)" in done.stderr
    assert not list(into.iterdir())


def hash_of(content: dict[str, Any], kernel: bytes) -> str:
    from gdnspec.catalog.solutions import source_hash
    from gdnspec.model.solution import Manifest

    files = {"solution.json": json.dumps(content).encode(), "kernel.py": kernel}
    return source_hash(Manifest.model_validate_json(files["solution.json"]), files.__getitem__)


def test_a_name_that_is_taken_is_refused_before_anything_runs(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path
) -> None:
    (into / "under_test").mkdir()
    mine = bundle_of(make_solution(RIGHT), tmp_path / "mine.tar")
    done = gdnspec("intake", mine, "--into", into)
    assert (done.returncode, "the name is taken" in done.stderr) == (2, True)
    theirs = bundle_of(make_solution(RIGHT, name="torch_recurrent"), tmp_path / "theirs.tar")
    done = gdnspec("intake", theirs, "--into", into)
    assert (done.returncode, "this solution already has the name 'torch_recurrent'" in done.stderr) == (2, True)
    assert [path.name for path in into.iterdir()] == ["under_test"]
    assert not list((into / "under_test").iterdir())


def test_evidence_that_is_short_of_anything_is_refused(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path
) -> None:
    folder = make_solution(RIGHT)
    solution = load_solution(folder)
    trace = trace_of(folder, workload="16x32_batch_1")
    other = trace.model_copy(update={"source_hash": "0" * 64})
    for more, says in (
        ({"verdicts": []}, "nothing ran on gdn_decode_k_last"),
        ({"verdicts": [passed(solution, status="TIMEOUT")]}, "TIMEOUT on gdn_decode_k_last/one_row"),
        (
            {"verdicts": [passed(solution), passed(solution, solution="other")]},
            "a verdict of another solution, 'other'",
        ),
        ({"traces": [other]}, "is for other sources"),
        ({"traces": [trace, trace]}, "occurs twice"),
    ):
        done = gdnspec("intake", bundle_of(folder, tmp_path / "a.tar", **more), "--into", into)
        assert done.returncode == 1, done.stderr
        assert says in done.stderr
        assert "accepted" not in done.stdout
    assert not list(into.iterdir())


def test_claims_of_speed_are_not_admitted_on_a_machine_without_a_gpu(
    gdnspec: Run, make_solution: Make, tmp_path: Path, into: Path
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    folder = make_solution(RIGHT)
    bundle = bundle_of(folder, tmp_path / "a.tar", traces=[trace_of(folder, workload="16x32_batch_1")])
    done = gdnspec("intake", bundle, "--into", into)
    assert done.returncode == 3
    assert "1 times are claimed on nvidia-h200, but this machine has no GPU" in done.stderr
    assert "--no-bench" in done.stderr
    assert not list(into.iterdir())

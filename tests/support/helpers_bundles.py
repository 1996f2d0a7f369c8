"""Bundles that nobody submitted: with evidence that says what it likes, and archives written by hand."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import MANIFEST, Solution, load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.fresh import names
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Trace
from gdnspec.submission.archive import pack, unpack
from gdnspec.submission.bundle import BUNDLE, EVIDENCE, packed, read
from gdnspec.submission.evidence import SUITES, TRACES, VERDICTS, Evidence, Question, Recorded, line, sha256

DECODE = "gdn_decode_k_last"
Change = Callable[[dict[str, Any]], None]


def passed(by: Solution, **changes: Any) -> CheckResult:
    """The author's word that all is well."""
    content = {"definition": DECODE, "workload": "one_row", "suite": "smoke", "solution": by.name, "device": "cpu",
               "status": "PASSED"}  # fmt: skip
    return CheckResult.model_validate({**content, **changes})


def all_passed(by: Solution) -> list[CheckResult]:
    """The author's word on every workload that a run on a CPU has a verdict on."""
    found = []
    for name in by.manifest.entries:
        lines = [(w.name, w.suite) for w in workloads(definition(name)) if w.suite in SUITES]
        lines += [(fresh, "fresh") for fresh in names(definition(name), "cpu")]
        found += [passed(by, definition=name, workload=workload, suite=suite) for workload, suite in lines]
    return found


def claimed(
    solution: Solution, verdicts: list[CheckResult] | None = None, traces: list[Trace] | None = None
) -> Recorded:
    """Evidence that was never gathered."""
    files = {
        VERDICTS: "".join(map(line, all_passed(solution) if verdicts is None else verdicts)).encode(),
        TRACES: "".join(map(line, traces or [])).encode(),
    }
    evidence = Evidence(
        schema_version=1, gdnspec="0.1.0", solution=solution.name, source_hash=solution.source_hash, seed=1,
        recorded="2026-01-01T00:00:00+00:00", environment={"torch": "2.13.0"},
        definitions={name: Question.of(definition(name)) for name in solution.manifest.entries},
        files={name: sha256(data) for name, data in files.items()},
    )  # fmt: skip
    return Recorded(evidence, files)


def bundle_of(folder: Path, target: Path, **more: Any) -> Path:
    """A bundle of the solution in a folder, with evidence made up."""
    solution = load_solution(folder)
    target.write_bytes(packed(solution, claimed(solution, **more)))
    return target


def members(bundle: Path) -> dict[str, bytes]:
    return unpack(bundle)


def resealed(bundle: Path, change: Change, files: Mapping[str, bytes | None] | None = None) -> Path:
    """The bundle with its manifest changed, and with files replaced, or left out, whose hashes the manifest names."""
    content = {**unpack(bundle), **(files or {})}
    kept = {name: data for name, data in content.items() if data is not None}
    manifest = json.loads(kept[BUNDLE])
    manifest["files"] = {name: sha256(data) for name, data in kept.items() if name != BUNDLE}
    for name in (VERDICTS, TRACES):
        manifest["evidence"]["files"][name] = manifest["files"].get(f"evidence/{name}", "0" * 64)
    change(manifest)
    kept[BUNDLE] = json.dumps(manifest).encode()
    bundle.write_bytes(pack(kept))
    return bundle


def written(target: Path, entries: list[tuple[tarfile.TarInfo, bytes]], format: int = tarfile.USTAR_FORMAT) -> Path:
    """An archive of whatever members, in the order given."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for member, data in entries:
            archive.addfile(member, io.BytesIO(data))
    target.write_bytes(out.getvalue())
    return target


def member(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    return target


def renamed(source: Path, target: Path, supports: list[str], definition: str = DECODE) -> Path:
    """A shipped solution as somebody else's, of one definition and of the workloads alone that `supports` leaves."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("traces", "README.md"))
    manifest = target / MANIFEST
    content = json.loads(manifest.read_text())
    entry = content["entries"][definition]
    entries = {definition: {**entry, "supports": [*entry["supports"], *supports]}}
    manifest.write_text(json.dumps({**content, "name": target.name, "authors": ["a test"], "entries": entries}))
    return target


def boasting(bundle: Path, target: Path, factor: float) -> Path:
    """The bundle with every time that it claims multiplied."""
    lines = []
    for trace in read(bundle).traces:
        assert trace.timing is not None
        times = {name: getattr(trace.timing, name) * factor for name in ("median", "p10", "p90")}
        lines.append(line(trace.model_copy(update={"timing": trace.timing.model_copy(update=times)})))
    shutil.copyfile(bundle, target)
    return resealed(target, lambda _: None, {EVIDENCE + TRACES: "".join(lines).encode()})

"""What a submission consists of: a manifest over everything else, a solution's folder, and the evidence for it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gdnspec import __version__
from gdnspec.catalog.solutions import MANIFEST, MAX_SOURCE_BYTES, Solution
from gdnspec.model.base import Model, Version1
from gdnspec.model.definition import Text
from gdnspec.model.errors import Problem, SpecError
from gdnspec.model.loading import build, parse_json
from gdnspec.model.result import CheckResult
from gdnspec.model.solution import Manifest
from gdnspec.model.trace import Trace
from gdnspec.submission.archive import pack, unpack

BUNDLE, SOLUTION, VERDICTS, TRACES = "bundle.json", "solution", "evidence/verdicts.jsonl", "evidence/traces.jsonl"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BundleManifest(Model):
    """bundle.json. `files` are all others, by hash; `source_hash` is the solution's, as verdicts and traces name it."""

    schema_version: Version1
    name: Text
    license: Text
    authors: list[Text]
    source_hash: Sha256
    gdnspec: Text  # version that packed it
    environment: dict[str, Any]
    files: dict[str, Sha256]


class Bundle(Model):
    """A bundle that has been read: everything in it is what its manifest says."""

    manifest: BundleManifest
    solution: Manifest
    sources: dict[str, bytes]  # solution.json among them, by their path in the solution's folder
    verdicts: list[CheckResult]
    traces: list[Trace]


def packed(
    solution: Solution, verdicts: list[CheckResult], traces: list[Trace], environment: Mapping[str, Any]
) -> bytes:
    """The archive. The same sources and the same evidence give the same bytes."""
    names = (MANIFEST, *solution.manifest.sources)
    files = {f"{SOLUTION}/{name}": (solution.folder / name).read_bytes() for name in names}
    files[VERDICTS] = _lines(verdicts)
    if traces:
        files[TRACES] = _lines(traces)
    manifest = BundleManifest(
        schema_version=1, name=solution.name, license=solution.manifest.license,
        authors=list(solution.manifest.authors), source_hash=solution.source_hash, gdnspec=__version__,
        environment=dict(environment), files={name: _sha256(data) for name, data in sorted(files.items())},
    )  # fmt: skip
    files[BUNDLE] = (json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True) + "\n").encode()
    return pack(files)


def read(path: Path) -> Bundle:
    """Raises `SpecError` where anything in it is not what its manifest says."""
    files = unpack(path)
    if BUNDLE not in files:
        raise SpecError([Problem(path, f"has no {BUNDLE}: gdnspec submit packs one")])
    manifest = build(BundleManifest, parse_json(_text(files[BUNDLE], path, BUNDLE), path), path)
    others = {name: data for name, data in files.items() if name != BUNDLE}
    problems = [Problem(path, f"{name!r} is not in its manifest") for name in others if name not in manifest.files]
    for name, sha256 in manifest.files.items():
        if name not in others:
            problems.append(Problem(path, f"{name!r} is in its manifest and nowhere else"))
        elif _sha256(others[name]) != sha256:
            problems.append(Problem(path, f"{name!r} has another hash than its manifest says"))
    sources = {
        name.removeprefix(f"{SOLUTION}/"): data for name, data in others.items() if name.startswith(f"{SOLUTION}/")
    }
    if MANIFEST not in sources:
        problems.append(Problem(path, f"has no {SOLUTION}/{MANIFEST}"))
    known = {VERDICTS, TRACES}
    problems += [
        Problem(path, f"{name!r} belongs to no bundle")
        for name in others if name not in known and not name.startswith(f"{SOLUTION}/")
    ]  # fmt: skip
    if problems:
        raise SpecError(problems)
    solution = build(Manifest, parse_json(_text(sources[MANIFEST], path, MANIFEST), path), path)
    _hold_solution(path, manifest, solution, sources)
    return Bundle.model_construct(
        manifest=manifest, solution=solution, sources=sources,
        verdicts=_results(CheckResult, others.get(VERDICTS, b""), path),
        traces=_results(Trace, others.get(TRACES, b""), path),
    )  # fmt: skip


def _hold_solution(path: Path, manifest: BundleManifest, solution: Manifest, sources: dict[str, bytes]) -> None:
    problems = []
    if solution.name != manifest.name:
        problems.append(Problem(path, f"a bundle of {manifest.name!r} with a solution {solution.name!r}"))
    listed = {MANIFEST, *solution.sources}
    problems += [Problem(path, f"source {name!r} is listed and not there") for name in sorted(listed - set(sources))]
    problems += [
        Problem(path, f"{name!r} is there and not among the sources") for name in sorted(set(sources) - listed)
    ]
    total = sum(len(data) for data in sources.values())
    if total > MAX_SOURCE_BYTES:
        problems.append(Problem(path, f"{total / 2**20:.1f} MiB of sources; at most {MAX_SOURCE_BYTES >> 20}"))
    if problems:
        raise SpecError(problems)


def _results(kind: type[Any], data: bytes, path: Path) -> list[Any]:
    text = _text(data, path, "evidence")
    return [
        build(kind, parse_json(line, path, number), path, number)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]


def _lines(models: list[Any]) -> bytes:
    return "".join(json.dumps(model.model_dump(mode="json"), sort_keys=True) + "\n" for model in models).encode()


def _text(data: bytes, path: Path, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecError([Problem(path, f"{name} is not UTF-8 text")]) from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""Write a solution of FlashInfer-Bench, or the reference that a definition embeds, as a solution's folder. Judging such
a reference shows where the two specifications differ."""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gdnspec.catalog.solutions import MANIFEST, UNKNOWN_LICENCE
from gdnspec.inputs.contract import NotExpressed
from gdnspec.interop.foreign import Solution
from gdnspec.interop.meaning import Meaning
from gdnspec.interop.shim import SHIM, entry_of

LANGUAGES = {"python": "python", "triton": "triton", "cuda": "cuda", "tilelang": "python"}
Json = dict[str, Any]


def slug(name: str) -> str:
    """The name as a valid name of a solution."""
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:64].rstrip("_")
    return text if text[:1].isalpha() else f"s_{text}"[:64]


def write_solution(meaning: Meaning, theirs: Solution, out: Path) -> Path:
    """Writes a solution's folder into `out`, and returns it. Raises `NotExpressed` with the reason."""
    assert meaning.ours is not None
    definition = meaning.ours.definition
    if theirs.spec.language not in LANGUAGES:
        raise NotExpressed(f"its language {theirs.spec.language} is not one of {', '.join(LANGUAGES)}")
    sources = {source.path: source.content for source in theirs.sources}
    for path in sources:
        if path.startswith("/") or ".." in Path(path).parts or "\\" in path:
            raise NotExpressed(f"source {path!r} leads out of its folder")
    own = entry_of(sources[SHIM]) if SHIM in sources and meaning.same else None
    manifest: Json = {
        "schema_version": 1, "name": slug(theirs.name), "language": LANGUAGES[theirs.spec.language],
        "authors": [theirs.author], "license": UNKNOWN_LICENCE, "deterministic": False,
        "description": (theirs.description or f"imported from FlashInfer-Bench: {theirs.name}")[:4000],
        "requires": {
            "device": "cuda" if theirs.spec.target_hardware == ["cuda"] or theirs.spec.language == "cuda" else "any",
            "compute_capability": None, "packages": ["torch>=2.11", *_packages(theirs.spec.dependencies)],
        },
    }  # fmt: skip
    if own is not None:
        del sources[SHIM]
        entry: Json = own.model_dump(mode="json")
    else:
        entry = _entry(meaning, theirs, sources)
    manifest |= {"sources": sorted(sources), "entries": {definition.name: entry}}
    folder = out / str(manifest["name"])
    if folder.exists():
        raise NotExpressed(f"{folder} exists already, perhaps from a solution with a similar name")
    for path, content in sources.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content, encoding="utf-8")
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def _entry(meaning: Meaning, theirs: Solution, sources: dict[str, str]) -> Json:
    """The manifest's entry. Adds a module to the sources that passes arguments on by position."""
    assert meaning.ours is not None
    file, function = theirs.spec.entry_point.split("::")
    supports = meaning.format.supports(meaning)
    if meaning.lost:
        raise NotExpressed("; ".join(meaning.lost))
    if file.endswith(".cu"):
        if not meaning.same:
            raise NotExpressed("a CUDA entry needs the arguments of this definition, and its own takes others")
        return {"entry": f"{file}::{function}", "call": "out", "prepare": None, "supports": []}
    if not file.endswith(".py"):
        raise NotExpressed(f"its entry {file} is neither Python nor CUDA")
    returns = not theirs.spec.destination_passing_style
    sources[SHIM] = meaning.format.adapter(meaning, f"{file}::{function}", returns)
    return {"entry": f"{SHIM}::run", "call": "return" if returns else "out", "prepare": None, "supports": supports}


def reference_solution(meaning: Meaning, out: Path, aside: Collection[str]) -> Path:
    """Writes the embedded reference as a solution, with the differences in `aside` put aside. Raises `NotExpressed`."""
    assert meaning.ours is not None
    if meaning.lost:
        raise NotExpressed("; ".join(meaning.lost))
    name = slug(f"reference_of_{meaning.theirs.name}")
    text = meaning.format.adapter(meaning, f"reference.py::{meaning.entry}", True, aside)
    sources = {"reference.py": meaning.theirs.reference, SHIM: text}
    entry: Json = {"entry": f"{SHIM}::run", "call": "return", "prepare": None, "supports": []}
    manifest = {
        "schema_version": 1, "name": name, "language": "python", "authors": ["FlashInfer-Bench"],
        "license": UNKNOWN_LICENCE, "description": f"the reference of {meaning.theirs.name}", "deterministic": False,
        "sources": sorted(sources),
        "requires": {"device": "any", "compute_capability": None, "packages": ["torch>=2.11"]},
        "entries": {meaning.ours.definition.name: entry},
    }  # fmt: skip
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in sources.items():
        (folder / path).write_text(content, encoding="utf-8")
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def _packages(dependencies: list[str]) -> list[str]:
    """The Python requirements among the dependencies, without torch and CUDA libraries."""
    from packaging.requirements import InvalidRequirement, Requirement

    kept = []
    for text in dependencies:
        try:
            if Requirement(text).name not in ("torch", "cublas", "cudnn", "cutlass"):
                kept.append(text)
        except InvalidRequirement:
            continue
    return kept

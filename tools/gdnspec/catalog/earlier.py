"""The source hashes under which a solution was measured with the code that it has now.

A hash covers the manifest and every source. If a change of the manifest affects only words or conditions, the manifest
from before the change is kept byte for byte, as traces/manifests/<any name>.json. If it gives, with the sources of
today, the hash of the older traces, then no source has changed since. The older traces stay valid if nothing in that
manifest that affects a measurement differs.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

from gdnspec.catalog.solutions import MANIFEST, TRACES, Solution, settings, source_hash
from gdnspec.model.errors import SpecError
from gdnspec.model.loading import build, parse_json
from gdnspec.model.solution import KEPT_MANIFESTS, Manifest

EARLIER = Path(TRACES) / KEPT_MANIFESTS


def measured_as(solution: Solution, definition: str) -> frozenset[str]:
    """The source hashes of traces on this definition that are valid for the solution as it is now."""
    now = _decides(solution.manifest, solution.variant, definition)
    earlier = _earlier(solution.folder, solution.variant, solution.source_hash)
    same = (before for before, manifest in earlier if _decides(manifest, solution.variant, definition) == now)
    return frozenset({solution.source_hash, *same})


@cache
def _earlier(folder: Path, variant: str | None, today: str) -> list[tuple[str, Manifest]]:
    """(hash, manifest) of each kept manifest that has the variant, with the sources of today. `today`, their current
    hash, is only a key of the cache."""
    found = []
    for file in sorted((folder / EARLIER).glob("*.json")):
        try:
            content = file.read_bytes()
            manifest = build(Manifest, parse_json(content.decode(), file), file)
            read = partial(_read, folder, content)
            if variant is None or variant in manifest.variants:
                found.append((source_hash(manifest, read, variant), manifest))
        except (OSError, UnicodeDecodeError, SpecError):
            continue  # an unreadable manifest proves nothing
    return found


def _read(folder: Path, manifest: bytes, name: str) -> bytes:
    return manifest if name == MANIFEST else (folder / name).read_bytes()


def _decides(manifest: Manifest, variant: str | None, definition: str) -> dict[str, Any] | None:
    """The parts of a manifest that affect a measurement; None if it does not serve the definition."""
    entry = (manifest if variant is None else manifest.as_variant(variant)).entries.get(definition)
    if entry is None:
        return None
    called = {"entry": entry.entry, "call": entry.call, "prepare": entry.prepare}
    return {"language": manifest.language, "sources": sorted(manifest.sources), **called, **settings(manifest, variant)}

"""One page per solution: its README, and what its manifest says."""

from gdnspec import paths
from gdnspec.catalog import badges
from gdnspec.catalog.solutions import Solution, solutions

from docs.page import Page, code, table


def pages() -> list[Page]:
    own = [one for one in solutions()[0].values() if one.folder.parent == paths.solutions_dir() and not one.variant]
    return [_index(own), *map(_page, own)]


def _index(own: list[Solution]) -> Page:
    rows = [
        (f"[{one.name}]({one.name}/README.md)", one.manifest.language, one.manifest.requires.device,
         len(one.manifest.entries), badges.summary(badges.found(one)), one.manifest.description)
        for one in own
    ]  # fmt: skip
    head = ["kernel", "language", "device", "definitions", "in other batches", "what sets it apart"]
    words = "Each kernel is one folder. How fast they are stands in the [scoreboard](../docs/scoreboard/index.md).\n\n"
    return Page("kernels/index.md", f"# Kernels\n\n{words}{table(head, rows)}", base="solutions/README.md")


def _page(one: Solution) -> Page:
    readme = one.folder / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else f"# {one.name}\n\n{one.manifest.description}\n"
    return Page(f"kernels/{one.name}.md", f"{text.rstrip()}\n\n{_manifest(one)}", f"solutions/{one.name}/README.md")


def _manifest(one: Solution) -> str:
    m = one.manifest
    needs = [f"device: {m.requires.device}", *map(code, m.requires.packages)]
    if m.requires.compute_capability:
        needs.append(f"compute capability {m.requires.compute_capability} or newer")
    facts = [
        ("language", m.language), ("licence", m.license), ("needs", ", ".join(needs)),
        ("sources", ", ".join(map(code, m.sources))),
        ("same bits for the same content", "yes" if m.deterministic else "not promised"),
        ("same bits in every batch", "yes" if m.batch_invariant else "not promised"),
    ]  # fmt: skip
    entries = [
        (f"[{name}](../../docs/reference/definitions/{name}.md)", code(entry.entry), entry.call,
         "; ".join(map(code, entry.supports)))
        for name, entry in m.entries.items()
    ]  # fmt: skip
    text = "## Manifest\n\n" + table(["", ""], facts)
    text += "Definitions that it serves:\n\n" + table(["definition", "entry", "call", "only where"], entries)
    if one.variants:
        variants = [(code(variant.name), variant.manifest.description) for variant in one.variants]
        text += "Variants:\n\n" + table(["variant", "what sets it apart"], variants)
    return text

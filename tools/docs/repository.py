"""Files of the repository that are pages as they stand: the READMEs."""

from gdnspec import paths
from gdnspec.catalog.families import families

from docs import definition_pages
from docs.page import Page

FIXED = {
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "RELEASING.md": "project/releasing.md",
    "CHANGELOG.md": "project/changelog.md",
    "definitions/README.md": "reference/definitions/index.md",
    "samples/README.md": "reference/request-logs.md",
    "tests/known_bad/README.md": "explanation/wrong-kernels.md",
    "peers/README.md": "scoreboard/peers/index.md",
    "benchmarks/README.md": "scoreboard/benchmarks.md",
}


def included() -> list[Page]:
    """The pages that are one file each; those of solutions have more in them."""
    found = FIXED | {f"definitions/{name}/README.md": f"reference/conventions/{name}.md" for name in families()}
    found |= {f"solutions/{name}/LOG.md": f"kernels/logs/{name}.md" for name in _below("solutions", "LOG.md")}
    found |= {f"peers/{name}/README.md": f"scoreboard/peers/{name}.md" for name in _below("peers")}
    root = paths.data_root()
    more = {"definitions/README.md": "\n" + definition_pages.overview()}
    return [
        Page(place, (root / file).read_text(encoding="utf-8") + more.get(file, ""), file)
        for file, place in found.items()
    ]


def _below(folder: str, name: str = "README.md") -> list[str]:
    return sorted(file.parent.name for file in (paths.data_root() / folder).glob(f"*/{name}"))

"""The pages in words that go with test vectors: that of the family, and those beside it that it refers to."""

import re
from pathlib import Path

CONVENTIONS = "CONVENTIONS.md"
LINK = re.compile(r"(?<=\]\()\.\./(?:([\w.-]+)/)?README\.md")  # to the page of another family, or of all definitions


def pages(folder: Path) -> dict[str, str]:
    """Name of a file -> its text. `folder` is that of the family. Links between the pages lead to the copies."""
    texts = {CONVENTIONS: (folder / "README.md").read_text(encoding="utf-8")}
    for family in dict.fromkeys(LINK.findall(texts[CONVENTIONS])):
        page = folder.parent / family / "README.md"
        if page.is_file():
            texts[_name(family)] = page.read_text(encoding="utf-8")

    def local(link: re.Match[str]) -> str:
        name = _name(link[1] or "")
        return name if name in texts else link[0]

    return {name: LINK.sub(local, text) for name, text in texts.items()}


def _name(family: str) -> str:
    return f"CONVENTIONS_{family or 'of_all'}.md"

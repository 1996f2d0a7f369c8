"""Relative links of a repository file, as links of the site.

A link to a file that is a page leads to that page. The site holds no sources: a link to any other file of the
repository leads there if the address of the repository is known, and else becomes the path of the file. A link to
nothing stays, and MkDocs reports it.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping

from gdnspec import paths

FENCES = re.compile(r"(^```.*?^```[ \t]*$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
DOCS, FILES = "docs/", "files/"


def rewritten(markdown: str, place: str, source: str, pages: Mapping[str, str], repository: str = "") -> str:
    """`place` is where the page is on the site, `source` which file it comes from; `pages`: file -> place."""

    def replaced(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        file, _, anchor = target.partition("#")
        if not file or ":" in file:
            return link[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        there = _page(wanted, pages) or (wanted.removeprefix(DOCS) if wanted.startswith(DOCS) else "")
        if image and not there:
            there = FILES + wanted
        if there:
            to = posixpath.relpath(there, posixpath.dirname(place) or ".")
            return f"{image}[{text}]({to}{'#' + anchor if anchor else ''})"
        if not (paths.data_root() / wanted).exists():
            return link[0]
        if repository:
            return f"[{text}]({repository.rstrip('/')}/blob/HEAD/{wanted}{'#' + anchor if anchor else ''})"
        line = f", line {anchor[1:]}" if re.fullmatch(r"L\d+", anchor) else ""
        name = text.strip("`").rstrip("/")
        return f"`{wanted}`" if wanted.endswith(name) else f"{text} (`{wanted}`{line})"

    parts = FENCES.split(markdown)
    parts[::2] = [LINK.sub(replaced, part) for part in parts[::2]]
    return "".join(parts)


def _page(file: str, pages: Mapping[str, str]) -> str | None:
    """The page of a file, or of a folder's README."""
    return pages.get(file) or pages.get(f"{file}/README.md")


def images(markdown: str, source: str) -> Iterator[str]:
    """The images outside of docs/ that a file shows, by their path in the repository."""
    for image, _, target in LINK.findall(markdown):
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if image and ":" not in target and not file.startswith(DOCS):
            yield file

"""What MkDocs calls: it adds the pages that are made from the repository, mends links, and draws formulas."""

import html
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as SitePage

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from docs import command_line, definition_pages, faults, formats, kernels, links, repository, scoreboard  # noqa: E402
from docs.page import Page  # noqa: E402

MAKERS = (repository.included, definition_pages.pages, kernels.pages, scoreboard.pages, command_line.pages,
          formats.pages, faults.pages)  # fmt: skip
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


@cache
def made() -> dict[str, Page]:
    """By place."""
    return {page.place: page for maker in MAKERS for page in maker()}


def on_config(config: MkDocsConfig) -> None:
    """Fills in the pages that `folder/*` stands for in the navigation."""
    config.nav = _filled(config.nav)


def _filled(items: Any) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            found += [{name: _filled(value) if isinstance(value, list) else value} for name, value in item.items()]
        elif item.endswith("/*"):
            there = [place for place in made() if place.rpartition("/")[0] == item[:-2]]
            found += [place for place in there if not place.endswith("/index.md")]
        else:
            found.append(item)
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page in made().values():
        files.append(File.generated(config, page.place, content=page.text))
    images = {image for page in made().values() if page.source for image in links.images(page.text, page.source)}
    for image in sorted(images):
        files.append(File.generated(config, links.FILES + image, abs_src_path=str(ROOT / image)))
    return files


def on_page_markdown(markdown: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    mine = made().get(place, Page(place, markdown, links.DOCS + place))
    shown = {item.source: item.place for item in made().values() if item.source}
    return links.rewritten(markdown, place, mine.base or mine.source or links.DOCS + place, shown)


def on_page_content(content: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which a browser draws without a script."""

    def drawn(formula: re.Match[str]) -> str:
        block = formula[1] == "div"
        return str(convert(html.unescape(formula[2]).strip(), display="block" if block else "inline"))

    return MATH.sub(drawn, content)

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

from docs import (  # noqa: E402
    command_line,
    definition_pages,
    faults,
    formats,
    invariance,
    kernels,
    links,
    onnx_operators,
    repository,
    scoreboard,
)  # fmt: skip
from docs.page import Page  # noqa: E402

MAKERS = (repository.included, definition_pages.pages, kernels.pages, scoreboard.pages, invariance.pages,
          command_line.pages, formats.pages, faults.pages, onnx_operators.pages)  # fmt: skip
CELL = re.compile(r"(<t[dh][^>]*>)(.*?)(</t[dh]>)", re.DOTALL)
BREAKABLE = re.compile(r"(?<=\w)_(?=\w)(?![^<]*>)")  # in text, not in a tag
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


@cache
def made() -> dict[str, Page]:
    """By place."""
    return {page.place: page for maker in MAKERS for page in maker()}


def on_config(config: MkDocsConfig) -> None:
    """Fills in the pages that `folder/*` stands for in the navigation, and the address of the repository if known."""
    config.nav = _filled(config.nav)
    if config.extra["repository"]:
        config.nav.append({"Repository": config.extra["repository"]})


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
    source = mine.base or mine.source or links.DOCS + place
    return links.rewritten(markdown, place, source, shown, config.extra["repository"])


def on_page_content(content: str, page: SitePage, config: MkDocsConfig, files: Files) -> str:
    """Formulas as MathML, which a browser draws without a script. Long names in tables may break behind underscores."""

    def drawn(formula: re.Match[str]) -> str:
        block = formula[1] == "div"
        return str(convert(html.unescape(formula[2]).strip(), display="block" if block else "inline"))

    def narrower(cell: re.Match[str]) -> str:
        return f"{cell[1]}{BREAKABLE.sub('_<wbr>', cell[2])}{cell[3]}"

    return CELL.sub(narrower, MATH.sub(drawn, content))


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Without the address of the site, the page for a missing one finds its style from the top folder, as on a disk."""
    absolute = template_name == "404.html" and not config.site_url
    return re.sub(r'(href|src)="/(?!/)', r'\1="', output) if absolute else output

"""The site builds, every link leads somewhere, and its pages say what the repository says."""

import json
import os
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import forked_command
import pytest
from conftest import ROOT
from gdnspec.catalog.definitions import definitions

pytest.importorskip("mkdocs")
pytest.importorskip("material")


class Links(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(found.get("src") or "")
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(found.get("href") or "")


def no_page_asks_another_server_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        links = Links()
        links.feed(page.read_text())
        assert not [link for link in links.loaded if re.match(r"(https?:)?//", link)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def shown(file: Path) -> str:
    """The text of a page, without the marks that say where a long name may break."""
    return file.read_text().replace("<wbr>", "")


def every_link_leads_to_a_page_and_an_anchor(site: Path) -> None:
    """MkDocs does not look at the anchors of pages that are made."""
    pages = {page.relative_to(site).as_posix(): page.read_text() for page in site.rglob("*.html")}
    anchors = {name: set(re.findall(r'\bid="([^"]+)"', text)) for name, text in pages.items()}
    for name, text in pages.items():
        for link in set(re.findall(r'href="([^":]+\.html)?#([^"]+)"', text)):
            file = posixpath.normpath(posixpath.join(posixpath.dirname(name), link[0])) if link[0] else name
            assert link[1] in anchors[file] or link[1].startswith("__"), (name, link)


def the_page_for_a_missing_one_works_from_a_disk(site: Path) -> None:
    text = (site / "404.html").read_text()
    assert "assets/stylesheets" in text
    assert not re.search(r'(href|src)="/', text)


def long_names_in_tables_may_break(site: Path) -> None:
    times = (site / "scoreboard/times/nvidia-h200.html").read_text()
    assert re.search(r"<th>cuda_<wbr>decode</th>", times)
    assert not re.search(r'(href|id)="[^"]*<wbr>', times)


def each_column_of_times_names_its_command_and_day(site: Path) -> None:
    times = shown(site / "scoreboard/times/nvidia-h200.html")
    for section in times.split("<h2 ")[1:]:
        heads = re.findall(r"<th>(?!workload|heads)(\w+)</th>", section)
        assert heads
        for name in heads:
            assert re.search(rf"<strong>{name}</strong>, .* 2\d\d\d-\d\d-\d\d: <code>gdnspec bench", section), name


def every_definition_has_a_page_with_its_equations(site: Path) -> None:
    assert len(definitions()) > 25
    for name, found in definitions().items():
        text = shown(site / f"reference/definitions/{name}.html")
        equations = text.split('id="equations"')[1].split('id="conventions"')[0]
        assert len(re.sub(r"<.*?>", "", equations)) > 100, name
        for tensor in (*found.definition.inputs, *found.definition.outputs):
            assert f"<code>{tensor.name}</code>" in text, (name, tensor.name)


def the_table_of_definitions_leads_to_each(site: Path) -> None:
    text = (site / "reference/definitions/index.html").read_text()
    table = text.partition('id="all-definitions"')[2]
    for name in definitions():
        assert f'<a href="{name}.html">' in table, name


def every_solution_has_a_page_with_its_readme(site: Path) -> None:
    for file in ROOT.glob("solutions/*/solution.json"):
        text = (site / f"kernels/{file.parent.name}.html").read_text()
        title = (file.parent / "README.md").read_text().splitlines()[0].lstrip("# ")
        assert re.sub(r"[`*]", "", title)[:20] in text, file


def every_command_and_option_is_there(site: Path) -> None:
    text = (site / "reference/command-line.html").read_text()
    for words in (
        "gdnspec check",
        "gdnspec workloads from-requests",
        "gdnspec traces carry",
        "--symmetries",
        "--reduce",
    ):
        assert words in text


def formulas_are_drawn_and_none_is_left_as_text(site: Path) -> None:
    text = (site / "explanation/mathematics.html").read_text()
    assert text.count("<math") > 40
    assert "\\(" not in text
    assert "arithmatex" not in text


def the_scoreboard_shows_the_verdicts_and_the_times(site: Path) -> None:
    board = shown(site / "scoreboard/index.html")
    board = board.replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(r"<code>hard_reset</code></td>\s*<td><strong>fails \d+ of \d+", board), "fla: NaN at alpha = 0"
    times = shown(site / "scoreboard/times/nvidia-h200.html")
    assert "16x32_1x8192" in times


def the_table_of_faults_is_whole(site: Path) -> None:
    text = shown(site / "explanation/faults.html")
    faults = json.loads((ROOT / "tests/known_bad/gdn/faults.json").read_text())["faults"]
    assert len(faults) > 300
    faults += json.loads((ROOT / "tests/known_bad/gdn/session_faults.json").read_text())["faults"]
    assert not [fault["name"] for fault in faults if f"<code>{fault['name']}</code>" not in text]
    assert not [report for fault in faults for report in fault.get("reports", ()) if f'href="{report}"' not in text]
    sections = re.findall(r'href="(\.\./reference/conventions/gdn\.html#12-[^"]*)"', text)
    assert len(sections) == sum(fault["source"].startswith("public:") for fault in faults)


@pytest.mark.slow
def test_the_site_builds_and_is_whole(tmp_path: Path) -> None:
    """In one test, as it takes seconds to build."""
    words = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "SITE_SEARCH": "false"}
    done = forked_command.run(words, environment, ROOT, script=forked_command.MODULE)
    assert done.returncode == 0, done.stderr[-3000:]
    no_page_asks_another_server_for_anything(tmp_path)
    every_link_leads_to_a_page_and_an_anchor(tmp_path)
    the_page_for_a_missing_one_works_from_a_disk(tmp_path)
    long_names_in_tables_may_break(tmp_path)
    each_column_of_times_names_its_command_and_day(tmp_path)
    every_definition_has_a_page_with_its_equations(tmp_path)
    the_table_of_definitions_leads_to_each(tmp_path)
    every_solution_has_a_page_with_its_readme(tmp_path)
    every_command_and_option_is_there(tmp_path)
    formulas_are_drawn_and_none_is_left_as_text(tmp_path)
    the_scoreboard_shows_the_verdicts_and_the_times(tmp_path)
    the_table_of_faults_is_whole(tmp_path)


@pytest.mark.parametrize(
    ("repository", "wanted"),
    [
        ("", "`solutions/triton_recurrent/kernel.py`"),
        ("https://git.example/x/", "[kernel.py](https://git.example/x/blob/HEAD/solutions/triton_recurrent/kernel.py)"),
    ],
)
def test_a_link_to_a_source_leads_to_the_repository_if_it_is_known(repository: str, wanted: str) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    from docs import links

    text = "[kernel.py](../../solutions/triton_recurrent/kernel.py)"
    assert links.rewritten(text, "tutorials/a.md", "docs/tutorials/a.md", {}, repository) == wanted


def test_a_broken_link_or_anchor_fails(tmp_path: Path) -> None:
    """With the project's own settings."""
    settings = (ROOT / "mkdocs.yml").read_text()
    assert "anchors: warn" in settings
    own = (
        settings.partition("\nnav:")[0].replace("hooks: [tools/docs/hook.py]", "").replace("extra_css: [style.css]", "")
    )
    (tmp_path / "mkdocs.yml").write_text(own)
    (tmp_path / "docs").mkdir()
    for text, right in (("[here](#there)\n\n## there\n", True), ("[x](#nowhere)", False), ("[x](none.md)", False)):
        (tmp_path / "docs/index.md").write_text(f"# A page\n\n{text}\n")
        done = subprocess.run(
            [sys.executable, "-m", "mkdocs", "build", "--strict"], capture_output=True, text=True, cwd=tmp_path
        )
        assert (done.returncode == 0) is right, done.stderr

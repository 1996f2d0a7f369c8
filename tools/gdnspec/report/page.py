"""Build the page: gather the data, and fill the templates with it, including scripts and styles."""

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gdnspec import __version__
from gdnspec.catalog.definitions import Found, presets
from gdnspec.catalog.traces import Measured
from gdnspec.catalog.workloads import workloads
from gdnspec.model.definition import Definition
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import METHODS
from gdnspec.model.workload import Workload
from gdnspec.report import charts, conformance, facts, fastest, figures, kills
from gdnspec.report.profiles import profiles
from gdnspec.report.rows import Row, baselines, rows

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("theme.js", "dom.js", "details.js", "table.js", "charts.js", "verdicts.js", "fastest.js", "start.js")
MOST_BASELINES = 3  # columns; other baselines are in the details


@dataclass(frozen=True)
class Contents:
    """What goes into a page. `sources`: the files that were read. `problems`: what could not be read."""

    found: dict[str, Found]
    measured: Sequence[Measured]
    verdicts: Sequence[CheckResult]
    selftest: Sequence[CheckResult] | None
    command: str
    sources: Sequence[str] = ()
    problems: Sequence[str] = ()
    matrix: Sequence[kills.Written] = ()  # the kill matrix as tables
    peers: frozenset[str] = frozenset()  # solutions that are other libraries

    @property
    def empty(self) -> bool:
        return not self.measured and not self.verdicts and not self.selftest


@dataclass
class Section:
    """One definition with its traces, verdicts and answers."""

    definition: Definition
    rows: list[Row]
    baselines: list[str]
    regimes: list[str]
    lines: list[conformance.Line]
    workloads: dict[str, Workload | None]  # None: measured or judged, but in no file now
    anchors: dict[str, str]
    answers: list[fastest.Answer]
    words: dict[str, str]  # what each regime of its family is
    places: dict[str, list[Row]] = field(default_factory=dict)  # of each workload, best first

    @property
    def counts(self) -> Counter[str]:
        return Counter(row.state for row in self.rows)

    @property
    def empty(self) -> bool:
        return not self.rows and not self.lines


def render(contents: Contents) -> str:
    """The page as HTML."""
    environments = facts.Shared()
    data: dict[str, Any] = {"traces": [], "verdicts": [], "charts": {}, "profiles": {}, "environments": []}
    sections = [_section(item, contents, data, environments) for item in contents.found.values()]
    usual = list(dict.fromkeys(name for item in contents.found.values() for name in item.family.about.usual.values()))
    # Definitions with content come first, and among them the usual one of each stage.
    places = {name: place for place, name in enumerate(usual)}
    sections.sort(key=lambda section: (section.empty, places.get(section.definition.name, len(places))))
    answers = [answer for section in sections for answer in section.answers]
    weights = {answer.anchor: place for place, answer in enumerate(sorted(answers, key=lambda answer: answer.weight))}
    data["environments"] = environments.values
    data["methods"] = METHODS
    data["specs"] = charts.specs()
    names = sorted({r.trace.solution for r in contents.measured} | {v.solution for v in contents.verdicts})
    data["colours"] = {figures.plain(n): charts.COLOURS[i % len(charts.COLOURS)] for i, n in enumerate(names)}
    drawn = any(data["charts"].values()) or any(data["profiles"].values())
    scripts = [charts.bundle()] if drawn else []
    # Inside a function, because vega defines short names at the top level.
    own = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    scripts.append(f"(() => {{\n{own}}})();")
    return _templates().get_template("page.html.j2").render(
        sections=sections, answers=answers, first=fastest.first(answers, usual), weights=weights, contents=contents,
        version=__version__, drawn=drawn, presets=presets(),
        generated=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), solutions=names, most=MOST_BASELINES,
        grids=kills.grids(contents.selftest, contents.found) if contents.selftest else [],
        written=contents.matrix,
        style=Markup((STATIC / "page.css").read_text(encoding="utf-8")),
        scripts=[Markup(script) for script in scripts], policy=_policy(scripts), data=embedded(data),
    )  # fmt: skip


def _section(item: Found, contents: Contents, data: dict[str, Any], environments: facts.Shared) -> Section:
    name = item.definition.name
    known = {line.name: line for line in workloads(item)}
    mine = rows((m for m in contents.measured if m.trace.definition == name), {w: i for i, w in enumerate(known)})
    for index, row in enumerate(mine, start=len(data["traces"])):
        row.index = index
        data["traces"].append(facts.trace_facts(row, environments))
    data["charts"][name] = [drawn for row in mine if (drawn := facts.chart_row(row, row.index))]
    judged = [result for result in contents.verdicts if result.definition == name]
    regimes, lines = conformance.table(enumerate(judged, start=len(data["verdicts"])), known)
    data["verdicts"] += [facts.verdict_facts(result, environments) for result in judged]
    data["profiles"][name] = facts.shown(profiles(judged, known))
    others = {r.trace.workload for r in mine} | {v.workload for v in judged}
    every: dict[str, Workload | None] = {**known, **dict.fromkeys(sorted(others - set(known)))}
    answers = fastest.answers(item, mine, lines, contents.peers)
    section = Section(
        item.definition, mine, baselines(mine, contents.peers), regimes, lines, every, _anchors(name, every), answers,
        item.family.about.regimes,
    )  # fmt: skip
    for row in sorted(mine, key=lambda row: (row.trace.device, row.rank is None, row.method, row.rank or 0)):
        section.places.setdefault(row.trace.workload, []).append(row)
    return section


def _anchors(definition: str, names: Mapping[str, object]) -> dict[str, str]:
    """The id of each workload's section, made from its name."""
    found: dict[str, str] = {}
    for i, name in enumerate(names):
        safe = re.sub(r"[^A-Za-z0-9_.\-]", "_", name)[:100]
        found[name] = f"{definition}/{safe}" + ("" if safe == name else f"~{i}")
    return found


def embedded(data: object) -> Markup:
    """JSON that cannot close the HTML element around it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _policy(scripts: Sequence[str]) -> str:
    """The content security policy: the page loads nothing, and only its own scripts run."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("gdnspec.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    for name in ("seconds", "interval", "percent", "ratio", "significant", "lengths", "plain"):
        environment.filters[name] = getattr(figures, name)
    return environment

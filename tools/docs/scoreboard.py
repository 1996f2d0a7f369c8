"""Libraries by regime, from their verdicts, and times by device, from the traces that still hold."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean

from gdnspec import paths
from gdnspec.catalog.definitions import definitions, preset_of
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import by_name
from gdnspec.model.trace import Trace
from gdnspec.report.conformance import columns
from gdnspec.report.markdown import BEGIN, END
from gdnspec.report.sources import traces
from gdnspec.report.units import shown_time

from docs.page import Page, code, table, unbroken

VERDICTS = re.compile(r"^Workloads passed by regime, on ([\w-]+):\n\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(\d+) of (\d+)")


@dataclass(frozen=True)
class Verdicts:
    """How many workloads of a regime passed, of how many that ran."""

    device: str
    library: str
    regime: str
    definition: str
    passed: int
    ran: int


def pages() -> list[Page]:
    measured = ranked()
    devices = sorted({trace.device for trace in measured})
    return [_index(measured, devices), *(_times(device, measured) for device in devices)]


def ranked() -> list[Trace]:
    """The traces that hold today and whose speed may be compared."""
    known, _ = solutions()
    rows = traces(known.values(), known.values(), definitions(), lambda problem: None)
    return [row.trace for row in rows if row.stale is None and row.trace.ranked and row.trace.timing]


# --- verdicts ---------------------------------------------------------------------------------------------------


def verdicts() -> list[Verdicts]:
    """What the README of each library says between the marks of `gdnspec report --markdown`."""
    found = []
    for readme in sorted(paths.peers_dir().glob("*/README.md")):
        body = readme.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
        for device, text in VERDICTS.findall(body):
            head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines())
            for regime, *cells in rows:
                for definition, cell in zip(head[1:], cells, strict=True):
                    for passed, ran in CELL.findall(cell):
                        found.append(Verdicts(device, readme.parent.name, regime, definition, int(passed), int(ran)))
    return found


def _by(word: str, found: list[Verdicts], order: list[str], shown: Callable[[str], str]) -> str:
    """A table of libraries by `word`: the regime, or the definition."""
    libraries = sorted({one.library for one in found})
    rows = []
    for name in (name for name in order if any(getattr(one, word) == name for one in found)):
        mine = [one for one in found if getattr(one, word) == name]
        rows.append([shown(name), *(_cell([one for one in mine if one.library == library]) for library in libraries)])
    return table([word, *(f"[{name}](../../peers/{name}/README.md)" for name in libraries)], rows)


def _cell(found: list[Verdicts]) -> str:
    passed, ran = sum(one.passed for one in found), sum(one.ran for one in found)
    if not ran:
        return ""
    return unbroken(f"passes {ran}" if passed == ran else f"**fails {ran - passed} of {ran}**")


# --- speed ------------------------------------------------------------------------------------------------------


def _index(measured: list[Trace], devices: list[str]) -> Page:
    text = (
        "# Scoreboard\n\nThis page is made from the verdicts and traces in the repository.\n\n"
        "## Which libraries are right\n\n"
        "These verdicts are the tables on the pages of the libraries. A page names newer runs where there are any. "
        "A cell counts the workloads of all definitions that the library serves, by regime. A *regime* is a way of "
        f"drawing the inputs; these pages list them: {_conventions()}. `fresh` "
        "stands for workloads that each check draws for itself, and `recorded tensors` for inputs from a real model. "
        "A kernel may fail `strict_keys` and still conform. Workloads that are unsupported do not count, such as those "
        "of a head size that the library does not have. The page of a library counts them, and names each workload "
        "that it fails.\n\n"
    )
    found = verdicts()
    for device in sorted({one.device for one in found}):
        here = [one for one in found if one.device == device]
        text += f"### Verdicts on {device}\n\n" + _by("regime", here, list(columns()), code)
        text += _by("definition", here, list(definitions()), _linked)
    text += "## How fast they are\n\n"
    text += "A library and a kernel of this project are timed in turns, on the same content. "
    text += (
        "A ratio says how much longer the library takes: below 1 it is faster. The column gives the geometric mean, "
    )
    text += "then the least and the largest. A ratio is left out if the kernel here has changed since.\n\n"
    for device in devices:
        text += f"### Speed on {device}\n\n{_against(t for t in measured if t.device == device)}"
        text += f"[All times on {device}](times/{device}.md)\n\n"
    return Page("scoreboard/index.md", text)


def _conventions() -> str:
    names = sorted({found.family.name for found in definitions().values()})
    return ", ".join(f"[{name}](../../definitions/{name}/README.md)" for name in names)


def _against(measured: Iterable[Trace]) -> str:
    peers = {name for name, one in solutions()[0].items() if one.is_peer}
    groups: dict[tuple[str, str, str], list[tuple[Trace, float]]] = defaultdict(list)
    for trace in measured:
        if trace.solution in peers:
            for ratio in trace.against:
                groups[trace.definition, trace.solution, ratio.baseline].append((trace, 1 / ratio.ratio))
            if not trace.against:
                groups[trace.definition, trace.solution, ""].append((trace, 0.0))
    rows = [
        (_linked(name), library, baseline, len(found),
         _ratio([ratio for _, ratio in found]) if baseline else "left out", _days([trace for trace, _ in found]))
        for (name, library, baseline), found in sorted(groups.items())
    ]  # fmt: skip
    return table(["definition", "library", "kernel here", "workloads", "library takes", "measured"], rows)


def _ratio(ratios: list[float]) -> str:
    return f"{unbroken(f'{geometric_mean(ratios):.2f}x')} ({unbroken(f'{min(ratios):.2f} to {max(ratios):.2f}')})"


def _days(measured: Iterable[Trace]) -> str:
    """On which days; of many the first and the last."""
    days = sorted({trace.recorded[:10] for trace in measured})
    return " to ".join(dict.fromkeys((days[0], days[-1])))


def _linked(definition: str) -> str:
    return f"[{definition}](../reference/definitions/{definition}.md)"


def _times(device: str, measured: list[Trace]) -> Page:
    mine = [trace for trace in measured if trace.device == device]
    text = (
        f"# Times on {device}\n\nMedian time of one call. The fastest of a row is bold. Heads 16/32 means 16 query "
        "and key heads, 32 value heads. The name of a prefill, such as `16x32_1x8192`, ends with sequences x tokens."
        "\n\nTo repeat a figure on such a device, name the workload and the kernel, or the library:\n\n"
        "```sh\ngdnspec bench DEFINITION --solution NAME --workload WORKLOAD\n```\n\n"
        "Below each table are the commands that measured it, one or more for each column. They stand as they were "
        "recorded: folders and names may have changed since.\n\n"
    )
    for name, found in definitions().items():
        lines, roles = by_name(found), {axis.name: axis.role for axis in found.definition.axes}
        here = [trace for trace in mine if trace.definition == name]
        names = sorted({trace.solution for trace in here})
        times = {(t.workload, t.solution): t.timing.median for t in here if t.timing}
        rows = []
        for workload in (one for one in lines if any(one == trace.workload for trace in here)):
            axes = preset_of(found, lines[workload]).axes
            sizes = [str(axes[axis]) for axis in found.definition.const_axes() if roles[axis] == "heads"]
            heads = "/".join(size for size, _ in groupby(sizes))
            fastest = min(times[workload, one] for one in names if (workload, one) in times)
            rows.append([code(workload), heads, *(_time(times.get((workload, one)), fastest) for one in names)])
        if rows:
            text += f"## {name}\n\n" + table(["workload", "heads", *names], rows) + _commands(here)
    return Page(f"scoreboard/times/{device}.md", text)


def _commands(measured: list[Trace]) -> str:
    """Folded: each column's commands, with the rows that each measured."""
    columns: dict[str, dict[str, list[Trace]]] = defaultdict(lambda: defaultdict(list))
    for trace in sorted(measured, key=lambda trace: (trace.solution, trace.recorded)):
        columns[trace.solution][trace.command].append(trace)
    lines = []
    for column, commands in columns.items():
        for command, found in commands.items():
            rows = "all rows" if len(commands) == 1 else ", ".join(code(trace.workload) for trace in found)
            lines.append(f"    - **{column}**, {rows}, {_days(found)}: `{command}`\n")
    return f'??? note "Commands that measured each column"\n\n{"".join(lines)}\n'


def _time(seconds: float | None, fastest: float) -> str:
    if seconds is None:
        return ""
    return unbroken(f"**{shown_time(seconds)}**" if seconds == fastest else shown_time(seconds))

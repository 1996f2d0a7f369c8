"""Libraries by regime, from their verdicts, and times by device, from the traces that still hold."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import geometric_mean

from gdnspec import paths
from gdnspec.catalog.definitions import definitions, preset_of
from gdnspec.catalog.families import regimes
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import by_name
from gdnspec.model.trace import Trace
from gdnspec.report.markdown import BEGIN, END
from gdnspec.report.sources import traces
from gdnspec.report.units import shown_time

from docs.page import Page, code, table

VERDICTS = re.compile(r"^Workloads passed by regime, on ([\w-]+):\n\n(.*?)\n\n", re.MULTILINE | re.DOTALL)
CELL = re.compile(r"(\d+) of (\d+)")
Counts = dict[str, dict[str, tuple[int, int]]]  # regime -> library -> how many passed, of how many that ran


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


def verdicts() -> dict[str, Counts]:
    """By device: what the README of each library says between the marks of `gdnspec report --markdown`."""
    found: dict[str, Counts] = defaultdict(lambda: defaultdict(dict))
    for readme in sorted(paths.peers_dir().glob("*/README.md")):
        body = readme.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
        for device, text in VERDICTS.findall(body):
            for regime, passed, ran in _rows(text):
                before = found[device][regime].get(readme.parent.name, (0, 0))
                found[device][regime][readme.parent.name] = before[0] + passed, before[1] + ran
    return found


def _rows(text: str) -> Iterator[tuple[str, int, int]]:
    """Of each regime: how many workloads passed and how many ran, over all definitions."""
    for line in text.splitlines()[2:]:
        regime, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        counts = [tuple(map(int, pair)) for cell in cells for pair in CELL.findall(cell)]
        yield regime, sum(passed for passed, _ in counts), sum(ran for _, ran in counts)


def _by_regime(counts: Counts) -> str:
    libraries = sorted({name for row in counts.values() for name in row})
    order = {name: i for i, name in enumerate(regimes())}
    names = sorted(counts, key=lambda regime: order.get(regime, len(order)))
    head = ["regime", *(f"[{name}](../../peers/{name}/README.md)" for name in libraries)]
    return table(head, ([code(regime), *(_cell(counts[regime].get(name)) for name in libraries)] for regime in names))


def _cell(counts: tuple[int, int] | None) -> str:
    passed, ran = counts or (0, 0)
    if not ran:
        return ""
    return f"passes {ran}" if passed == ran else f"**fails {ran - passed} of {ran}**"


# --- speed ------------------------------------------------------------------------------------------------------


def _index(measured: list[Trace], devices: list[str]) -> Page:
    text = (
        "# Scoreboard\n\nThis page is made from the verdicts and traces in the repository.\n\n## Which libraries are right\n\n"
        "A cell counts the workloads of all definitions that the library serves, in the regimes of the "
        "[conventions](../../definitions/gdn/README.md#9-regimes). A kernel may fail `strict_keys` and still conform. "
        "The page of a library names each workload that it fails.\n\n"
    )
    for device, counts in verdicts().items():
        text += f"### Verdicts on {device}\n\n{_by_regime(counts)}"
    text += "## How fast they are\n\n"
    text += "A library and a kernel of this project are timed in turns, on the same content. Above 1, the library is faster.\n\n"
    for device in devices:
        text += f"### Speed on {device}\n\n{_against(t for t in measured if t.device == device)}"
        text += f"[All times on {device}](times/{device}.md)\n\n"
    return Page("scoreboard/index.md", text)


def _against(measured: Iterable[Trace]) -> str:
    peers = {name for name, one in solutions()[0].items() if one.is_peer}
    groups: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for trace in measured:
        for ratio in trace.against if trace.solution in peers else ():
            groups[trace.definition, trace.solution, ratio.baseline].append(ratio.ratio)
    rows = [
        (f"[{name}](../reference/definitions/{name}.md)", library, baseline, len(ratios),
         f"{geometric_mean(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}")
        for (name, library, baseline), ratios in sorted(groups.items())
    ]  # fmt: skip
    return table(["definition", "library", "kernel here", "workloads", "speed, geometric mean", "range"], rows)


def _times(device: str, measured: list[Trace]) -> Page:
    mine = [trace for trace in measured if trace.device == device]
    newest = max(mine, key=lambda trace: trace.recorded)
    text = (
        f"# Times on {device}\n\nMedian time of one call. The fastest of a row is bold. Heads are query and key heads, then "
        "value heads. To repeat a figure on such a device:\n\n"
        "```sh\ngdnspec bench DEFINITION --solution NAME --workload WORKLOAD\n```\n\n"
        f"The newest of these figures, of {newest.recorded[:10]}, came from:\n\n```sh\n{newest.command}\n```\n\n"
    )
    for name, found in definitions().items():
        lines = by_name(found)
        here = [trace for trace in mine if trace.definition == name]
        names = sorted({trace.solution for trace in here})
        times = {(t.workload, t.solution): t.timing.median for t in here if t.timing}
        rows = []
        for workload in (one for one in lines if any(one == trace.workload for trace in here)):
            axes = preset_of(found, lines[workload]).axes
            heads = f"{axes.get('num_q_heads', axes.get('num_k_heads', ''))}/{axes.get('num_v_heads', '')}"
            fastest = min(times[workload, one] for one in names if (workload, one) in times)
            rows.append([code(workload), heads, *(_time(times.get((workload, one)), fastest) for one in names)])
        if rows:
            text += f"## {name}\n\n" + table(["workload", "heads", *names], rows)
    return Page(f"scoreboard/times/{device}.md", text)


def _time(seconds: float | None, fastest: float) -> str:
    if seconds is None:
        return ""
    return f"**{shown_time(seconds)}**" if seconds == fastest else shown_time(seconds)



"""The wrong kernels that the judge is tested with, as tables: one for each trap."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from gdnspec import paths
from gdnspec.catalog.faults import rejections
from gdnspec.catalog.session_faults import read_table, tables
from gdnspec.model.fault import Fault, FaultTable, KnownBad, short
from gdnspec.model.loading import load
from gdnspec.model.session_fault import SessionFault

from docs.page import Page, code, table, unbroken

PUBLIC, TRAP = "public: ", "trap: "
ROW = re.compile(r"(definitions/\w+/README\.md), section (\d+), row (\d+)")
STATUSES = "[status](../reference/statuses.md)"


def pages() -> list[Page]:
    counts = Counter(one.kind for one in rejections().values())
    text = (
        "# Table of wrong kernels\n\nThis page is made from the files in `tests/known_bad`. Each row is a kernel that "
        f"is wrong in one thing ({counts['wrong']} of them) or that cheats ({counts['cheat']}). A *trap* is a way to "
        "misread the contract or to treat one condition apart; each has a table of its own here. The status is the "
        "one that the judge must give. [How the judge is tested with them](../../tests/known_bad/README.md).\n\n"
        "`make matrix` runs every one of them on every workload. It takes long, and writes `build/kill_matrix.md`, "
        "which says which workload rejects which kernel.\n\n"
    )
    text += "".join(_faults(file) for file in sorted(paths.known_bad_dir().glob("*/faults.json")))
    return [Page("explanation/faults.md", text + _folders() + "".join(map(_of_sessions, tables())))]


def _faults(file: Path) -> str:
    """The rows of one family's table, by their source."""
    groups: dict[str, list[Fault]] = defaultdict(list)
    for fault in load(FaultTable, file).faults:
        groups[fault.source if fault.source.startswith(TRAP) else PUBLIC].append(fault)
    text = f"## Faults of {file.parent.name}\n\n"
    if PUBLIC in groups:
        text += f"### Found in public code or papers\n\n{_public(groups.pop(PUBLIC))}"
    for source, faults in sorted(groups.items(), key=lambda item: -len(item[1])):
        trap = source.removeprefix(TRAP)
        rows = [(code(fault.name), _said(fault), _statuses(fault)) for fault in faults]
        text += f"### {trap[0].upper()}{trap[1:]}\n\n{table(['name', 'what is wrong', STATUSES], rows)}"
    return text


def _public(faults: list[Fault]) -> str:
    rows = [(code(fault.name), _said(fault), _where(fault.source), _statuses(fault)) for fault in faults]
    return table(["name", "what is wrong", "where", STATUSES], rows)


def _said(fault: Fault | SessionFault) -> str:
    """What is wrong, and who has reported it."""
    return " ".join([fault.fault, *(f"[{short(report)}]({report})" for report in fault.reports)])


def _of_sessions(file: Path) -> str:
    """The wrong schedulers and kernels of one family that sessions reject."""
    faults = read_table(file)
    text = (
        f"## Faults of sessions of {file.parent.name}\n\n[Sessions](sessions.md) reject these {len(faults)}, and "
        f"{sum(fault.survives for fault in faults)} of them pass every single call.\n\n"
    )
    rows = [
        (code(one.name), _said(one), one.base, "yes" if one.survives else "", ", ".join(map(code, one.statuses)))
        for one in faults
    ]
    return text + table(["name", "what is wrong", "in", "passes single calls", STATUSES], rows)


def _where(source: str) -> str:
    """A row of a family's page, as a link to its section."""

    def linked(found: re.Match[str]) -> str:
        page, section, row = found.groups()
        lines = (paths.data_root() / page).read_text(encoding="utf-8").splitlines()
        heading = next(line for line in lines if line.startswith(f"## {section}. "))
        anchor = re.sub(r"[^\w\- ]", "", heading.removeprefix("## ")).lower().replace(" ", "-")
        return f"[{unbroken(f'row {row}')}](../../{page}#{anchor})"

    return ROW.sub(linked, source.removeprefix(PUBLIC))


def _folders() -> str:
    text = "## Whole solutions\n\n"
    for kind, words in (("cheat", "Cheats"), ("wrong", "Faults that no short edit can express")):
        rows = [(code(name), bad.fault, _statuses(bad)) for name, bad in _whole() if bad.kind == kind]
        text += f"### {words}\n\n{table(['name', 'what is wrong', STATUSES], rows)}"
    return text


def _whole() -> Iterator[tuple[str, KnownBad]]:
    for file in sorted(paths.known_bad_dir().glob("*/*/known_bad.json")):
        yield file.parent.name, load(KnownBad, file)


def _statuses(bad: Fault | KnownBad) -> str:
    return ", ".join(map(code, bad.statuses))

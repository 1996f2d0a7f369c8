"""gdnspec selftest --sessions: wrong schedulers and wrong kernels that only sessions see."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from gdnspec.catalog.session_faults import read_table, tables
from gdnspec.cli.console import add_row, complain, print_table, say, table
from gdnspec.model.errors import SpecError, near_ones
from gdnspec.model.session_fault import SessionFault

if TYPE_CHECKING:
    from gdnspec.sessions.trials import Tried

ALL = "gdnspec list faults shows all"


def refuse(given: dict[str, bool]) -> None:
    """Raises `SpecError` for the first option that has no meaning for sessions. `given`: whether each was given."""
    for option, there in given.items():
        if there:
            raise SpecError(f"{option} has no meaning with --sessions: leave it out")


def chosen(names: list[str]) -> list[tuple[Path, SessionFault]]:
    """The faults with these names or of these families, or all. Raises `SpecError`."""
    known = [(file, fault) for file in tables() for fault in read_table(file)]
    every = [fault.name for _, fault in known] + [file.parent.name for file in tables()]
    for name in names:
        if name not in every:
            raise SpecError(f"no fault of sessions has the name {name!r} ({near_ones(name, every, ALL)})")
    return [(file, fault) for file, fault in known if not names or fault.name in names or file.parent.name in names]


def session_selftest(names: list[str], jobs: int, every: bool) -> bool:
    """Runs the faults through sessions and prints a table. Returns whether the judge was right about all of them."""
    faults = chosen(names)

    from gdnspec.sessions.trials import run, trials

    found = list(run(list(trials(faults, every)), jobs))
    _print(found)
    complaints = [text for one in found for text in one.complaints()]
    for text in complaints:
        complain(f"gdnspec: {text}", style="red")
    bad = [one for one in found if one.trial.fault is not None]
    rejected = sum(any(verdict.status != "PASSED" for verdict in one.verdicts.values()) for one in bad)
    honest = [verdict.status for one in found if one.trial.fault is None for verdict in one.verdicts.values()]
    passed = honest.count("PASSED")
    say(f"{rejected} of {len(bad)} faults rejected; the reference passes {passed} of {len(honest)} sessions; "
        f"{len(complaints)} complaints")  # fmt: skip
    return not complaints


def _print(found: "list[Tried]") -> None:
    rows = table("", "fault of sessions", "base", "rejected as", "killed by", "reports", "fault")
    for one in found:
        fault = one.trial.fault
        if fault is not None:
            statuses = Counter(v.status for v in one.verdicts.values() if v.status != "PASSED")
            killed = f"{sum(statuses.values())} of {len(one.verdicts)}"
            said = ", ".join(name for name, _ in statuses.most_common()) or "NOTHING"
            add_row(rows, fault.name, fault.base, said, killed, str(len(fault.reports) or ""), fault.fault)
    print_table(rows)

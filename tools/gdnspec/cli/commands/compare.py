"""gdnspec compare A B: compare two sets of traces."""

from dataclasses import asdict
from typing import Annotated

import typer

from gdnspec.catalog.definitions import definition as known_definition
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.workloads import by_name
from gdnspec.cli import offered
from gdnspec.cli.comparison import print_comparison
from gdnspec.cli.console import complain, print_json, say
from gdnspec.cli.options import DefinitionsDir, SolutionsDir
from gdnspec.cli.selection import require_suites
from gdnspec.cli.sides import FORMS, Side, side
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.trace import Trace
from gdnspec.model.workload import SUITES
from gdnspec.report.pairing import Comparison, Key
from gdnspec.report.pairing import compare as compared

EPILOG = "Exit codes: 0 compared; 2 the request or a file is invalid; 3 nothing to compare; 130 interrupted."
MEASURE = "gdnspec bench --save measures and saves them"


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"{FORMS}.", autocompletion=offered.solutions)],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The other side, in the same form.", autocompletion=offered.solutions)
    ],
    definition: Annotated[
        list[str] | None, typer.Option(help="Only this definition; repeatable.", autocompletion=offered.definitions)
    ] = None,
    suite: Annotated[list[str] | None, typer.Option(help=f"Only this suite: {', '.join(SUITES)}.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device, such as nvidia-h200.")] = None,
    solutions_dir: SolutionsDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, times in seconds.")] = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Compare the traces of two solutions, of two devices or of two commits. Nothing is run.

    The output lists first what cannot be compared, and why: a failure, a workload that one side lacks, a stale trace,
    or different timing methods. Ratios are time of B over time of A: above 1, A is faster.
    """
    for name in definition or ():
        known_definition(name)
    require_suites(suite)

    def wanted(trace: Trace) -> bool:
        return (not definition or trace.definition in definition) and (not suite or trace.suite in suite)

    left, right = (side(text, solutions_dir, wanted) for text in (a, b))
    pairs = _devices(left, right, device)
    order, sources = _order(), (left.source, right.source)
    results = [compared(left.devices.get(x, {}), right.devices.get(y, {}), (x, y), order, sources) for x, y in pairs]
    # A side without traces may still be among the other side's baselines; otherwise there is nothing to show.
    results = [r for r in results if r.compared or (r.a_device in left.devices and r.b_device in right.devices)]
    if as_json:
        print_json({"a": _described(left), "b": _described(right), "comparisons": [asdict(r) for r in results]})
    elif results:
        _print(left, right, results)
    if not any(result.compared for result in results):
        asked = " for the given options" if definition or suite or device else ""
        for item in (left, right):
            if not item.devices or (device and device not in item.devices):
                complain(f"gdnspec: {item.label} has no traces{asked}: {MEASURE}")
        why = ": the reasons are listed above" if results and not as_json else ""
        complain(f"gdnspec: nothing to compare{why}")
        raise typer.Exit(3)


def _devices(a: Side, b: Side, device: str | None) -> list[tuple[str, str]]:
    """Pairs of devices of A and B: each common device with itself. Without a common one, the only device of each."""
    if device is not None and device not in (known := {*a.devices, *b.devices}):
        raise SpecError(f"neither side was measured on {device!r} ({nearest(device, known)})")
    of_a, of_b = (sorted(d for d in item.devices if device in (None, d)) for item in (a, b))
    both = [(name, name) for name in of_a if name in of_b]
    if both:
        return both
    if not of_a or not of_b:
        return [(name, name) for name in of_a or of_b]
    if len(of_a) == len(of_b) == 1:
        return [(of_a[0], of_b[0])]
    said = f"A on {', '.join(of_a)}; B on {', '.join(of_b)}"
    raise SpecError(f"measured on different devices, {said}: choose one per side with SOLUTION@DEVICE")


def _order() -> dict[Key, int]:
    return {(name, line): i for name, found in definitions().items() for i, line in enumerate(by_name(found))}


def _described(item: Side) -> dict[str, object]:
    return {"name": item.label, "devices": sorted(item.devices), "source_checked": item.source is not None}


def _print(a: Side, b: Side, results: list[Comparison]) -> None:
    for letter, item, other, here in (("A", a, b, "a_device"), ("B", b, a, "b_device")):
        say(f"{letter}: {item.label}")
        if item.source is None:
            say("   a file outside of a solution's folder: changes of the code since then are not checked")
        timed = {name for name, rows in item.devices.items() if any(m.trace.timing for m in rows.values())}
        beside = sorted(timed - {getattr(result, here) for result in results})
        if beside and other.devices:
            say(f"   also measured on {', '.join(beside)}: not compared here")
    for result in results:
        print_comparison(result)

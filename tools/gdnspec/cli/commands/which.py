"""gdnspec which: the solution that gdnspec.kernel would take, and why."""

from typing import Annotated

import typer

from gdnspec.catalog.definitions import definition
from gdnspec.choice.asking import ask, batch_of, device_of
from gdnspec.choice.candidates import FORCED, from_environment, serving
from gdnspec.choice.choose import Choice, choose
from gdnspec.cli import offered
from gdnspec.cli.chosen import print_choices
from gdnspec.cli.console import complain, print_json
from gdnspec.cli.options import AsJson, DefinitionsDir
from gdnspec.cli.selection import heads_of

EPILOG = "Exit codes: 0 chosen; 2 the request or a file is invalid; 3 nothing serves this call."

Name = Annotated[
    str, typer.Argument(metavar="DEFINITION", help="A definition: gdnspec list.", autocompletion=offered.definitions)
]
PresetName = Annotated[
    str, typer.Option("--preset", help="Head configuration: gdnspec list presets.", autocompletion=offered.presets)
]
Lengths = Annotated[
    str | None, typer.Option(metavar="LIST", help="Lengths of sequences: 1x8192, or 300,1200, or 4x2048,300.")
]
Batch = Annotated[int | None, typer.Option(min=1, max=1 << 20, help="Rows, for a definition that takes rows.")]
Tokens = Annotated[
    int | None, typer.Option(min=1, max=1 << 16, help="Tokens per row, where rows have several.", show_default="4")
]
Slug = Annotated[
    str | None,
    typer.Option(help="Device, such as nvidia-h200, or cpu.", show_default="this machine's, or the one with traces"),
]


def which(
    name: Name,
    preset: PresetName,
    lengths: Lengths = None,
    batch: Batch = None,
    tokens: Tokens = None,
    device: Slug = None,
    peers: Annotated[bool, typer.Option("--peers", help="Also choose among other libraries.")] = False,
    as_json: AsJson = False,
    definitions_dir: DefinitionsDir = None,
) -> None:
    """Show which solution is the fastest for a device and a shape, and why. Nothing is run.

    The choice is the solution with the best time that was measured for this device, these heads and these lengths.
    Where nothing was measured, the nearest measured workload says what to expect. `gdnspec.kernel` chooses in the same
    way.
    """
    found = definition(name)
    each = batch_of(found, lengths, batch, tokens)
    asked = ask(found, heads_of(found, preset), preset, each, device_of(device))
    choices, candidates = choose(asked, peers=peers)
    if as_json:
        print_json({"definition": name, "device": asked.slug, "choices": [_described(choice) for choice in choices],
                    "refused": candidates.refused})  # fmt: skip
    elif choices:
        print_choices(asked, preset, choices, candidates)
    if not choices:
        complain(f"gdnspec: nothing serves this call: {serving(found)}")
        raise typer.Exit(3)
    named = from_environment(found)
    if named is not None:
        complain(f"gdnspec: {FORCED} is set: gdnspec.kernel takes {named}, whatever is the fastest")


def _described(choice: Choice) -> dict[str, object]:
    return {
        "solution": choice.name, "basis": choice.basis, "earlier_version": choice.earlier, "seconds": choice.time,
        "of_the_bound": choice.efficiency, "reason": choice.reason,
    }  # fmt: skip

"""gdnspec workloads: make more of them, and freeze what error each allows."""

import typer

from gdnspec.cli import lazy
from gdnspec.cli.console import EPILOG

COMMANDS: lazy.Listed = {
    "generate": (
        "generate:generate",
        "Draw workloads: the same options give the same lines and the same tensors on any machine.",
    ),
    "from-requests": (
        "from_requests:from_requests",
        "Replay a request log through a simulated engine (continuous batching), and write the calls that its kernels "
        "get: weighted workloads, or with --reduce a few that stand for all.",
    ),
    "capture": (
        "capture:capture",
        "Run a program and record what it calls an operator with: `gdnspec capture .. -- python script.py`.",
    ),
    "stats": (
        "stats:stats",
        "Show what workloads are like: lengths, batches, chunks, how they fill a GPU, and what decides their time.",
    ),
    "materialize": (
        "materialise:materialize",
        "Write the inputs of workloads to safetensors files, for any language and any harness.",
    ),
    "freeze": (
        "freeze:freeze",
        "Run the honest emulators on each workload, and write twice their largest errors into its line as its budget.",
    ),
}

app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="Make workloads, record them, look at them, and freeze their error budgets.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def workloads() -> None:
    """Make workloads, record them, look at them, and freeze their error budgets."""

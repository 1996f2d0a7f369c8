"""gdnspec workloads: make, record and inspect workloads, and freeze their error budgets."""

import typer

from gdnspec.cli import lazy
from gdnspec.cli.console import EPILOG

COMMANDS: lazy.Listed = {
    "generate": (
        "generate:generate",
        "Draw workloads. The same options give the same lines and the same tensors on any machine.",
    ),
    "from-requests": (
        "from_requests:from_requests",
        "Replay a request log in a simulated engine (continuous batching), and write the calls of its kernels as "
        "weighted workloads. With --reduce, a few workloads represent all calls.",
    ),
    "capture": (
        "capture:capture",
        "Run a program and record its calls of an operator: `gdnspec capture .. -- python script.py`.",
    ),
    "stats": (
        "stats:stats",
        "Show statistics of workloads: lengths, batches, chunks, how they fill a GPU, and what limits their speed.",
    ),
    "materialize": (
        "materialise:materialize",
        "Write the inputs of workloads to safetensors files, for use in any language.",
    ),
    "freeze": (
        "freeze:freeze",
        "Run the honest emulators on each workload, and write twice their largest errors into its line as its budget.",
    ),
}

app = typer.Typer(
    cls=lazy.group(COMMANDS),
    help="Make, record and inspect workloads, and freeze their error budgets.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def workloads() -> None:
    """Make, record and inspect workloads, and freeze their error budgets."""

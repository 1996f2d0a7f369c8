"""gdnspec workloads: make more of them, and freeze what error each allows."""

import typer

from gdnspec.cli.commands import capture, freeze, from_requests, generate, materialise, stats
from gdnspec.cli.console import EPILOG

app = typer.Typer(
    help="Make workloads, record them, look at them, and freeze their error budgets.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("generate", epilog=EPILOG)(generate.generate)
app.command("from-requests", epilog=EPILOG)(from_requests.from_requests)
app.command("capture", epilog=EPILOG)(capture.capture)
app.command("stats", epilog=EPILOG)(stats.stats)
app.command("materialize", epilog=EPILOG)(materialise.materialize)
app.command("freeze", epilog=EPILOG)(freeze.freeze)


@app.callback()
def workloads() -> None:
    """Make workloads, record them, look at them, and freeze their error budgets."""

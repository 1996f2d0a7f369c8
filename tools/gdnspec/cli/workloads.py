"""gdnspec workloads: make more of them, and freeze what error each allows."""

import typer

from gdnspec.cli import capture, freeze, from_requests, generate, materialise, stats

app = typer.Typer(
    help="Make workloads, record them, look at them, and freeze their error budgets.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("generate")(generate.generate)
app.command("from-requests")(from_requests.from_requests)
app.command("capture")(capture.capture)
app.command("stats")(stats.stats)
app.command("materialize")(materialise.materialize)
app.command("freeze")(freeze.freeze)


@app.callback()
def workloads() -> None:
    """Make workloads, record them, look at them, and freeze their error budgets."""

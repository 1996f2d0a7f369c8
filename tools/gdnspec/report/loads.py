"""Pictures of workloads: histograms of sizes, and what limits the time. Without scripts and network."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

KIND_COLOURS = {"launch": "#8a63d2", "chain": "#e07b1a", "memory": "#2f7ed8", "compute": "#1f9e77"}
WIDTH, HEIGHT, COLUMNS = 290, 130, 3
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1040px; margin: 2rem auto; padding: 0 1rem; background: #fff;
  color: #1c2430 }
td { padding: 0.1rem 1.2rem 0.1rem 0; font-variant-numeric: tabular-nums }
figure { margin: 1rem 0 } svg { max-width: 100%; height: auto } code { background: #f0f2f5; padding: 0.1rem 0.3rem }
"""


@dataclass(frozen=True)
class Bars:
    """A histogram: the labels of its bins in order, and the share of each."""

    title: str
    labels: Sequence[str]
    shares: Sequence[float]


@dataclass(frozen=True)
class Picture:
    """The picture of one definition. `facts`: rows of the table. `kinds`: (kind, share of calls, share of time)."""

    title: str
    facts: Sequence[tuple[str, str]]
    histograms: Sequence[Bars]
    kinds: Sequence[tuple[str, float, float]]


def svg(picture: Picture) -> str:
    """One picture as SVG, with its title."""
    return _drawn(_chart(picture).properties(title=picture.title))


def page(pictures: Sequence[Picture], command: str) -> str:
    """One self-contained HTML page with all pictures."""
    body = "".join(
        f"<h2>{html.escape(picture.title)}</h2>{_table(picture.facts)}<figure>{_drawn(_chart(picture))}</figure>"
        for picture in pictures
    )
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>gdnspec workloads</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body><h1>Workloads</h1>'
        f"<p><code>{html.escape(command)}</code></p>{body}</body></html>\n"
    )


def _table(facts: Sequence[tuple[str, str]]) -> str:
    rows = (f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in facts)
    return f"<table>{''.join(rows)}</table>"


def _drawn(chart: Any) -> str:
    import vl_convert

    return str(vl_convert.vegalite_to_svg(chart.configure_view(stroke=None).configure_axis(grid=False).to_dict()))


def _chart(picture: Picture) -> Any:
    drawn: list[Any] = [_bars(bars) for bars in picture.histograms]
    return alt.concat(*drawn, _kinds(picture.kinds), columns=COLUMNS, spacing=34)


def _bars(bars: Bars) -> Any:
    rows = [{"bin": label, "share": share} for label, share in zip(bars.labels, bars.shares, strict=True)]
    # With many bins, labels are left out so that they do not overlap.
    x = alt.X("bin:N", sort=None, title=bars.title, axis=alt.Axis(labelAngle=-40, labelOverlap=True))
    y = alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=4))
    chart = alt.Chart(alt.InlineData(rows)).mark_bar(color="#2f7ed8")
    return chart.encode(x=x, y=y).properties(width=WIDTH, height=HEIGHT)


def _kinds(kinds: Sequence[tuple[str, float, float]]) -> Any:
    rows = [
        {"kind": kind, "of": of, "share": share}
        for kind, calls, time in kinds
        for of, share in (("calls", calls), ("time", time))
    ]
    scale = alt.Scale(domain=list(KIND_COLOURS), range=list(KIND_COLOURS.values()))
    colour = alt.Color("kind:N", scale=scale, legend=alt.Legend(title=None, orient="bottom"))
    axis = alt.Axis(format="%", tickCount=4)
    x = alt.X("share:Q", title="decided by", axis=axis, stack="zero", scale=alt.Scale(domain=[0, 1]))
    chart = alt.Chart(alt.InlineData(rows)).mark_bar()
    return chart.encode(x=x, y=alt.Y("of:N", title=None), color=colour).properties(width=WIDTH, height=60)

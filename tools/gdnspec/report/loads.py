"""Pictures of workloads: histograms of what a kernel meets, and what its time is made of. No scripts, no network."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

KIND_COLOURS = {"launch": "#8a63d2", "chain": "#e07b1a", "memory": "#2f7ed8", "compute": "#1f9e77"}
WIDTH, HEIGHT = 300, 130


@dataclass(frozen=True)
class Bars:
    """A histogram: labels of its bins in order, and the share of each."""

    title: str
    labels: Sequence[str]
    shares: Sequence[float]


@dataclass(frozen=True)
class Picture:
    """Of one definition: `facts` for the table under its title, `kinds` (kind, share of calls, share of time)."""

    title: str
    facts: Sequence[tuple[str, str]]
    histograms: Sequence[Bars]
    kinds: Sequence[tuple[str, float, float]]


def svg(picture: Picture) -> str:
    """One image."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_chart(picture)))


def page(pictures: Sequence[Picture], command: str) -> str:
    """One self-contained page of all pictures."""
    body = "".join(
        f"<h2>{html.escape(picture.title)}</h2>{_table(picture)}<figure>{svg(picture)}</figure>" for picture in pictures
    )
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2rem auto;padding:0 1rem;background:#fff;"
        "color:#1c2430}table{border-collapse:collapse}td{padding:.15rem 1.2rem .15rem 0}td+td{font-variant-numeric:"
        "tabular-nums}figure{margin:1rem 0;overflow-x:auto}code{background:#f0f2f5;padding:.1rem .3rem}"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>gdnspec workloads</title><style>{style}</style></head><body><h1>Workloads</h1>"
        f"<p><code>{html.escape(command)}</code></p>{body}</body></html>\n"
    )


def _table(picture: Picture) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in picture.facts
    )
    return f"<table>{rows}</table>"


def _chart(picture: Picture) -> dict[str, Any]:
    drawn: list[Any] = [_bars(bars) for bars in picture.histograms]
    drawn.append(_kinds(picture.kinds))
    chart = alt.concat(*drawn, columns=3, spacing=34).properties(title=picture.title)
    return dict(chart.configure_view(stroke=None).configure_axis(grid=False).to_dict())


def _bars(bars: Bars) -> alt.Chart:
    rows = [{"bin": label, "share": share} for label, share in zip(bars.labels, bars.shares, strict=True)]
    # Many bins: every other label, or they lie on one another.
    x = alt.X("bin:N", sort=None, title=bars.title, axis=alt.Axis(labelAngle=-40, labelOverlap=True))
    y = alt.Y("share:Q", title="share", axis=alt.Axis(format="%", tickCount=4))
    drawn: alt.Chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color="#2f7ed8")
        .encode(x=x, y=y)
        .properties(width=WIDTH, height=HEIGHT)
    )
    return drawn


def _kinds(kinds: Sequence[tuple[str, float, float]]) -> alt.Chart:
    rows = [
        {"kind": kind, "of": of, "share": share}
        for kind, calls, time in kinds
        for of, share in (("calls", calls), ("time", time))
    ]
    colour = alt.Color(
        "kind:N", scale=alt.Scale(domain=list(KIND_COLOURS), range=list(KIND_COLOURS.values())),
        legend=alt.Legend(title=None, orient="bottom"),
    )  # fmt: skip
    x = alt.X("share:Q", title="decided by", axis=alt.Axis(format="%", tickCount=4), stack="zero")
    drawn: alt.Chart = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(x=x, y=alt.Y("of:N", title=None), color=colour)
        .properties(width=WIDTH, height=60)
    )
    return drawn

"""The charts as Vega-Lite. Each names its data; the page fills in the rows that its table shows.

The page replaces placeholders: `@solutions` and `@colours` by the visible solutions and their colours, `@x` and `@y` by
the values to mark on the axes, and `@muted` by a colour of the theme.
"""

from typing import Any

import altair as alt

# Colours that most people can tell apart, on white and on near-black.
COLOURS = (
    "#2f7ed8", "#e07b1a", "#1f9e77", "#c8478f", "#8a63d2", "#b58900", "#17a2b8", "#d9534f", "#6b8e23", "#8c6d5a",
    "#5b7083", "#a0527f",
)  # fmt: skip
SHAPES = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left"]
SAID = (
    "solution",
    "workload",
    "preset",
    "device",
    "method",
    "time",
    "bound",
    "note",
)  # shown when the pointer is on a point


def specs() -> dict[str, dict[str, Any]]:
    return {"length": _latency("tokens", "tokens of all sequences"), "batch": _latency("batch", "batch, or sequences"),
            "share": _share(), "position": _position()}  # fmt: skip


def bundle() -> str:
    """vega, vega-lite and vega-embed as one script, in the version that altair uses."""
    import vl_convert

    wanted = ".".join(alt.SCHEMA_VERSION[1:].split(".")[:2])
    had = vl_convert.get_vegalite_versions()
    return str(
        vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=wanted if wanted in had else had[-1])
    )


def _colour() -> dict[str, Any]:
    return {
        "field": "solution", "type": "nominal", "scale": {"domain": ["@solutions"], "range": ["@colours"]},
        "legend": {"title": None, "symbolType": "circle"},
    }  # fmt: skip


def _axis(x: str, title: str, edge: str, form: str = "~r") -> dict[str, Any]:
    """A logarithmic axis. `edge`: the placeholder for the values that the page marks."""
    scale = {"type": "log", "nice": False, "padding": 12}
    axis = {"values": [f"@{edge}"], "format": form}
    return {"field": x, "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _rows() -> alt.Chart:
    return alt.Chart(alt.NamedData("rows"))


def _points(x: alt.X, y: alt.Y) -> alt.Chart:
    """Points: filled if ranked, hollow if not."""
    filled = alt.condition("datum.ranked", alt.value(0.85), alt.value(0.0))
    legend = alt.Legend(title=None, symbolFillColor="@muted", symbolStrokeColor="@muted")
    preset = alt.Shape("preset:N", scale=alt.Scale(range=SHAPES), legend=legend)
    points = _rows().mark_point(size=55, strokeWidth=1.5, filled=False)
    drawn: alt.Chart = points.encode(
        x=x,
        y=y,
        color=alt.Color(**_colour()),
        fill=alt.Fill(**_colour()),
        shape=preset,
        fillOpacity=filled,
        tooltip=[f"{name}:N" for name in SAID],
    )
    return drawn


def _latency(field: str, title: str) -> dict[str, Any]:
    """Lines connect rows that differ only in `field`."""
    x, y = alt.X(**_axis(field, title, "x")), alt.Y(**_axis("median_us", "time of a call, µs", "y"))
    lines = _rows().mark_line(strokeWidth=1.5, opacity=0.7)
    lines = lines.encode(x=x, y=y, color=alt.Color(**_colour()), detail=f"{field}_line:N")
    return _finished(alt.layer(lines, _points(x, y)))


def _share() -> dict[str, Any]:
    """The share of the bound against the bytes that a call moves. Small calls are far from the bound."""
    x = alt.X(**_axis("bytes", "bytes that a call moves", "x", "~s"))
    y = alt.Y("share:Q", title="share of the bound", axis=alt.Axis(format="%"), scale=alt.Scale(zero=True))
    return _finished(alt.layer(*_limit("share:Q"), _points(x, y)))


def _limit(y: str) -> list[alt.Chart]:
    limit = alt.Chart(alt.NamedData("limit"))
    colour = alt.value("@muted")
    rule = limit.mark_rule(strokeDash=[6, 4], strokeWidth=1.5)
    words = limit.mark_text(align="left", dy=-6, fontSize=11, x=4)
    return [
        rule.encode(y=y, color=colour, tooltip=[alt.Tooltip("text:N", title="limit")]),
        words.encode(y=y, text="text:N", color=colour),
    ]


def _position() -> dict[str, Any]:
    x = alt.X("position:O", title="position in the sequence", sort=None, axis=alt.Axis(labelAngle=0))
    y = alt.Y(**_axis("error", "error", "y"))
    tips = [alt.Tooltip(f"{name}:N") for name in ("solution", "position", "error", "output", "device")]
    lines = _rows().mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=1.5).encode(
        x=x, y=y, color=alt.Color(**_colour()), detail="line:N", tooltip=tips
    )  # fmt: skip
    return _finished(alt.layer(lines, *_limit("error:Q")))


def _finished(chart: alt.LayerChart | alt.FacetChart) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(width="container", height=280).to_dict()
    spec.pop("config", None)  # the page's theme sets colours and fonts
    spec.pop("$schema", None)  # an address on the web, which vega-embed does not need
    return spec

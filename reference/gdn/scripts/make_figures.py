"""The figures of definitions/gdn/README.md, section 14, computed with the reference: docs/figures/*.svg.

python reference/gdn/scripts/make_figures.py [--out docs/figures]
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any, Literal

import altair as alt
import torch
import vl_convert
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from reference.gdn import chunkwise, gated_delta_net

ROOT = Path(__file__).resolve().parents[3]
SEED, K = 3, 32
CHUNK, TOKENS, RESET = 8, 32, 13  # of the two figures with masks: the token whose alpha is 0
RULES, COLOURS = ("linear attention", "delta rule"), ("#b45309", "#1d4ed8")
Rows = list[dict[str, Any]]
Chart = Any  # one of altair's


def data(rows: Rows) -> Any:
    return alt.Data(values=rows)  # type: ignore[no-untyped-call]


def unit_keys(generator: torch.Generator, count: int, size: int = K) -> Tensor:
    x = torch.randn(count, size, generator=generator, dtype=torch.float64)
    unit: Tensor = x / x.norm(dim=-1, keepdim=True)
    return unit


def written(k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, erase: bool) -> Tensor:
    """The state [V, K] after all tokens; without `erase` a write adds to what is held, as linear attention does."""
    S = torch.zeros(v.shape[-1], k.shape[-1], dtype=torch.float64)
    for t in range(len(k)):
        if erase:
            _, S = gated_delta_net.step(S, k[t], k[t], v[t], alpha[t], beta[t], 1.0)
        else:
            S = alpha[t] * S + beta[t] * v[t][:, None] * k[t][None, :]
    return S


def recall() -> Chart:
    """How far off S k is of the value last written under k, when every key has been written twice."""
    generator = torch.Generator().manual_seed(SEED)
    rows: Rows = []
    for count in (2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64):
        for rule, erase in zip(RULES, (False, True), strict=True):
            errors = []
            for _ in range(12):
                keys = unit_keys(generator, count).repeat(2, 1)
                values = torch.randn(2 * count, K, generator=generator, dtype=torch.float64)
                ones = torch.ones(2 * count, dtype=torch.float64)
                S = written(keys, values, ones, ones, erase)
                held = gated_delta_net.read(S, keys[count:])
                errors.append(float((held - values[count:]).norm() / values[count:].norm()))
            rows.append({"keys": count, "rule": rule, "error": sum(errors) / len(errors)})
    return (
        alt.Chart(data(rows), width=420, height=200, padding={"left": 5, "top": 5, "bottom": 5, "right": 24})
        .mark_line(point=True)
        .encode(
            x=alt.X("keys:Q", title=f"keys, each written twice ({K} key channels)"),
            y=alt.Y("error:Q", title="relative error of what is read"),
            color=alt.Color("rule:N", title=None, scale=alt.Scale(domain=[*RULES], range=[*COLOURS])),
        )
    )  # fmt: skip


def strengths() -> Chart:
    """What a write of value 0 leaves of a row of the state: (I - beta k k^T) x, for one x and one k."""
    k = torch.tensor([math.cos(math.radians(25)), math.sin(math.radians(25))], dtype=torch.float64)
    x = torch.tensor([[0.35, 0.95]], dtype=torch.float64)
    none, one = torch.zeros(1, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)
    rows: Rows = []
    for beta in (0.0, 0.5, 1.0, 1.5, 2.0):
        _, after = gated_delta_net.step(x, k, k, none, one, torch.tensor(beta, dtype=torch.float64), 1.0)
        kind = {0.0: "identity", 1.0: "projection", 2.0: "reflection"}.get(beta, "")
        rows += [{"x": 0.0, "y": 0.0, "beta": f"{beta:g}"}, {
            "x": float(after[0, 0]), "y": float(after[0, 1]), "beta": f"{beta:g}",
            "label": f"beta = {beta:g}{', ' + kind if kind else ''}",
        }]  # fmt: skip
    ends = [row for row in rows if "label" in row]
    axis = alt.Axis(tickCount=5)
    x_axis = alt.X("x:Q", title=None, axis=axis, scale=alt.Scale(domain=[-1.9, 1.4]))
    y_axis = alt.Y("y:Q", title=None, axis=axis, scale=alt.Scale(domain=[-0.2, 1.2]))
    key: Rows = [{"x": s * float(k[0]) * 1.1, "y": s * float(k[1]) * 1.1} for s in (-0.15, 1)]
    plane: Rows = [{"x": -s * float(k[1]) * 1.2, "y": s * float(k[0]) * 1.2} for s in (-0.15, 1)]

    def line(values: Rows, dash: list[int]) -> Chart:
        return alt.Chart(data(values)).mark_line(color="#6b7280", strokeDash=dash).encode(x=x_axis, y=y_axis)

    arrows = alt.Chart(data(rows)).mark_line(color=COLOURS[1]).encode(x=x_axis, y=y_axis, detail="beta:N")
    points = alt.Chart(data(ends)).mark_point(color=COLOURS[1], filled=True, size=45).encode(x=x_axis, y=y_axis)
    labels = (
        alt.Chart(data(ends)).mark_text(align="right", dx=-8, fontSize=11).encode(x=x_axis, y=y_axis, text="label:N")
    )
    named = [{**key[1], "label": "k"}, {**plane[1], "label": "orthogonal to k"}]
    names = (
        alt.Chart(data(named))
        .mark_text(align="left", dx=5, color="#6b7280", fontSize=11)
        .encode(x=x_axis, y=y_axis, text="label:N")
    )
    return alt.layer(line(key, [1, 0]), line(plane, [4, 3]), arrows, points, labels, names).properties(
        width=566, height=240
    )


def gates() -> Tensor:
    """alpha of the tokens in the next two figures: a slow decay, and one reset."""
    alpha = torch.full((TOKENS,), 0.93, dtype=torch.float64)
    alpha[RESET] = 0.0
    return alpha


def matrix(values: Tensor, title: str, scheme: Literal["blues", "redblue"], chunk: int | None) -> Chart:
    """Entry (i, j) as a square, row 0 on top, lines between chunks; nothing where the value is exactly 0."""
    count = len(values)
    rows: Rows = [
        {"i": i, "i2": i + 1, "j": j, "j2": j + 1, "value": float(values[i, j])}
        for i in range(count)
        for j in range(count)
        if float(values[i, j]) != 0
    ]
    x = alt.X("j:Q", title="token j", scale=alt.Scale(domain=[0, count], nice=False))
    y = alt.Y("i:Q", title="token i", scale=alt.Scale(domain=[count, 0], nice=False))
    squares = (
        alt.Chart(data(rows), title=title, width=230, height=230)
        .mark_rect(stroke=None)
        .encode(
            x=x, x2="j2:Q", y=y, y2="i2:Q",
            color=alt.Color("value:Q", title=None, scale=alt.Scale(scheme=scheme)),
        )
    )  # fmt: skip
    marks = [{"at": at} for at in range(chunk, count, chunk)] if chunk else []
    at = data(marks)
    rule: dict[str, Any] = {"color": "#374151", "strokeWidth": 0.7, "strokeDash": [3, 2]}
    across = alt.Chart(at).mark_rule(**rule).encode(y=alt.Y("at:Q"))
    down = alt.Chart(at).mark_rule(**rule).encode(x=alt.X("at:Q"))
    return alt.layer(squares, across, down)


def masks() -> Chart:
    """Gamma of one chunk, without a reset and with one."""
    even, reset = torch.full((16,), 0.85, dtype=torch.float64), torch.full((16,), 0.85, dtype=torch.float64)
    reset[6] = 0.0
    left, right = (chunkwise.decay_ratios(alpha)[0] for alpha in (even, reset))
    return alt.hconcat(
        matrix(left, "alpha = 0.85", "blues", None), matrix(right, "the same, alpha = 0 at token 6", "blues", None)
    )


def contributions() -> Tensor:
    """[T, T]: how much of token j's value is in the output of token i. The output is linear in the values, so that
    unit vectors read it off."""
    generator = torch.Generator().manual_seed(SEED)
    k, q = unit_keys(generator, TOKENS, 12), unit_keys(generator, TOKENS, 12)
    v = torch.eye(TOKENS, dtype=torch.float64)
    alpha, beta = gates(), torch.full((TOKENS,), 0.8, dtype=torch.float64)
    S = torch.zeros(TOKENS, 12, dtype=torch.float64)
    rows = []
    for t in range(TOKENS):
        o, S = gated_delta_net.step(S, q[t], k[t], v[t], alpha[t], beta[t], 1.0)
        rows.append(o)
    return torch.stack(rows)


def chunks() -> Chart:
    """The same contributions, those from within a chunk and those by way of the state at its start."""
    whole = contributions()
    token = torch.arange(TOKENS)
    same = token[:, None] // CHUNK == token[None, :] // CHUNK
    inside, before = torch.where(same, whole, 0.0), torch.where(same, 0.0, whole)
    return alt.hconcat(
        matrix(inside, "within a chunk: (Gamma * Q K^T) T", "redblue", CHUNK),
        matrix(before, "by way of the state at its start", "redblue", CHUNK),
    ).resolve_scale(color="shared")


FIGURES = {"recall": recall, "write_strength": strengths, "decay_masks": masks, "chunks": chunks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        chart = draw().configure_view(stroke=None).configure_axis(grid=False).properties(background="white")
        (out / f"{name}.svg").write_text(vl_convert.vegalite_to_svg(chart.to_dict()))
        print(out / f"{name}.svg")


if __name__ == "__main__":
    main()

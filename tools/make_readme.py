"""Writes what README.md shows of this tree: speed beside the peers, what the judge catches, a wrong kernel explained.

    python tools/make_readme.py            writes the two tables
    python tools/make_readme.py --check    writes nothing; exit code 1 where a table is not what this tool writes
    python tools/make_readme.py --picture  checks a wrong kernel and draws docs/figures/wrong_kernel.svg as well

A table stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.faults import known_bad, rejections
from gdnspec.catalog.solutions import solutions
from gdnspec.model.fault import Fault, Rejection
from gdnspec.report.sources import traces

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "figures" / "wrong_kernel.svg"
# A kernel that carries its state from chunk to chunk without the chunk's decay, and conditions that tell it apart.
WRONG = "carry_undecayed"
REGIMES = ("long_memory", "slow_decay", "typical", "fast_decay", "hard_reset")


def speed() -> Iterator[str]:
    """Times of the peers over those of every kernel here that was timed beside one. Each ratio comes from one run that
    measured both in turns."""
    known, _ = solutions()
    own = {name for name, one in known.items() if one.folder.parent.name == "solutions"}
    latest: dict[tuple[str, str, str, str, str], tuple[str, float]] = {}
    for item in traces(known.values(), known.values(), definitions(), lambda text: None):
        trace = item.trace
        for ratio in trace.against if trace.ranked and not item.stale else ():
            if (trace.solution in own) == (ratio.baseline in own):
                continue
            mine, peer, slower = (
                (trace.solution, ratio.baseline, ratio.ratio)
                if trace.solution in own
                else (ratio.baseline, trace.solution, 1 / ratio.ratio)
            )
            row = (trace.device, trace.definition, mine, peer, trace.workload)
            latest[row] = max((trace.recorded, slower), latest.get(row, (trace.recorded, slower)))
    ratios: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (device, definition, mine, peer, _), (_, slower) in latest.items():
        ratios[device, definition, mine][peer].append(slower)
    names = sorted({name for found in ratios.values() for name in found})
    yield f"| GPU | operator | kernel | {' | '.join(names)} |"
    yield "|---|---|---|" + "---|" * len(names)
    for (device, definition, kernel), found in sorted(ratios.items()):
        cells = " | ".join(_range(found[name]) if name in found else "" for name in names)
        yield f"| {device} | `{definition}` | `{kernel}` | {cells} |"


def _range(values: list[float]) -> str:
    """Geometric mean, the least and the largest, and of how many workloads."""
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return f"{mean:.2f}x ({min(values):.2f} to {max(values):.2f}) of {len(values)}"


def catches() -> Iterator[str]:
    """The sources of all faults, the most frequent first, each with an example."""
    of_source = defaultdict(list)
    for bad in rejections().values():
        of_source[_source(bad)].append(bad)
    yield "| what goes wrong | kernels | for example |"
    yield "|---|---|---|"
    for source, found in sorted(of_source.items(), key=lambda item: (-len(item[1]), item[0])):
        example = min(found, key=lambda bad: (len(bad.fault), bad.fault)).fault
        yield f"| {source} | {len(found)} | {example} |"


def _source(bad: Rejection) -> str:
    if bad.kind == "cheat":
        return "cheating: published inputs, kept answers, late writers, clocks that lie"
    if not isinstance(bad, Fault):
        return "faults that need a whole kernel"
    return "found in public code or papers" if bad.source.startswith("public") else bad.source.removeprefix("trap: ")


def placed(text: str) -> str:
    """The README with both tables written anew."""
    for name, rows in {"speed": speed(), "catches": catches()}.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(end)}", re.DOTALL)
        body = "\n".join([begin, *rows, end])
        text, count = pattern.subn(lambda _: body, text)  # noqa: B023
        if count != 1:
            raise SystemExit(f"{README}: {begin} .. {end} stands there {count} times, not once")
    return text


# --- the picture --------------------------------------------------------------------------------------------------


def errors() -> list[dict[str, Any]]:
    """The worst vector of the wrong kernel's output, by regime and position, as `gdnspec check --errors` finds it."""
    (bad,) = known_bad({WRONG})
    with tempfile.TemporaryDirectory(prefix="gdnspec-readme-") as folder:
        shutil.copytree(bad.solution.folder, Path(folder) / WRONG)
        file = Path(folder) / "verdicts.jsonl"
        words = [
            sys.executable,
            "-m",
            "gdnspec",
            "check",
            *bad.solution.manifest.entries,
            "--solution",
            WRONG,
            "--solutions-dir",
            folder,
        ]
        words += [word for regime in REGIMES for word in ("--workload", f"regime_{regime}")]
        subprocess.run([*words, "--seed", "1", "--errors", "--json", file], check=False, capture_output=True)
        results = [json.loads(line) for line in file.read_text().splitlines()]
    rows = []
    for result in results:
        for output in result["outputs"][:1]:
            budget = output["budget"]["worst_vector"]
            for part in output["profile"]:
                first, last = part["first"], part["last"]
                place = f"{first} on" if last is None else str(first) if first == last else f"{first} to {last}"
                error = part["worst_vector"]
                regime = result["workload"].removeprefix("regime_").replace("_", " ")
                rows.append(
                    {
                        "regime": regime, "place": place, "error": error, "shown": f"{error:.2g}",
                        "right": error <= budget,
                    }
                )  # fmt: skip
    return rows


def draw() -> str:
    """A table of cells, with what a reader concludes from them."""
    import altair as alt
    import vl_convert

    rows = errors()
    places = list(dict.fromkeys(row["place"] for row in rows))
    base = alt.Chart(alt.Data(values=rows)).encode(  # type: ignore[no-untyped-call]
        x=alt.X("place:N", sort=places, title="token of the sequence", axis=alt.Axis(labelAngle=0, orient="top")),
        y=alt.Y("regime:N", sort=[regime.replace("_", " ") for regime in REGIMES], title=None),
    )
    colour = alt.condition("datum.right", alt.value("#d7f0dd"), alt.value("#f6c4be"))
    cells = base.mark_rect(stroke="white", strokeWidth=3).encode(color=colour)
    words = base.mark_text(fontSize=13).encode(text="shown:N")
    title = alt.TitleParams(
        "Largest error of a vector of the output (red: over budget)",
        subtitle=[
            "Tokens 0 to 63 are right: chunks of 64 are right inside. All is right where nothing decays (long memory).",
            f"The fault: {rejections()[WRONG].fault[0].lower()}{rejections()[WRONG].fault[1:]}",
        ],
        anchor="start", fontSize=15, subtitleFontSize=13, offset=14,
    )  # fmt: skip
    chart = (cells + words).properties(width=620, height=190, title=title, background="white")
    styled = chart.configure_axis(labelFontSize=13, titleFontSize=13, grid=False, domain=False, ticks=False)
    return str(vl_convert.vegalite_to_svg(styled.configure_view(stroke=None).to_dict()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    parser.add_argument("--picture", action="store_true", help="draw the picture as well")
    asked = parser.parse_args()
    held, wanted = README.read_text(), placed(README.read_text())
    if asked.check:
        if held != wanted:
            print("README.md is not what its tables are made from: python tools/make_readme.py")
        return int(held != wanted)
    README.write_text(wanted)
    if asked.picture:
        PICTURE.write_text(draw() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

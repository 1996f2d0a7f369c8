"""The first screen of `gdnspec report`: which kernel is fastest, by how much, and why another one is not named."""

import json
import re
import shlex
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import typer

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")

import helpers_report as made
from conftest import ROOT
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.families import families
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.trace_check import check_traces
from gdnspec.catalog.traces import Measured
from gdnspec.catalog.workloads import workloads
from gdnspec.model.result import CheckResult
from gdnspec.model.trace import Ratio, Trace
from gdnspec.report import shapes
from gdnspec.report.figures import ratio, seconds
from gdnspec.report.page import Contents, render
from gdnspec.report.rows import rows
from gdnspec.report.sources import traces
from gdnspec.report.versus import versus

DECODE, PREFILL = "gdn_decode_k_last", "gdn_prefill_k_last"
NOTHING = "\u2013"
LINE = next(line for line in workloads(definitions()[DECODE]) if line.name == "16x32_batch_16")


@dataclass
class Shown:
    """One answer as a reader sees it."""

    attributes: dict[str, str]
    text: str = ""
    rows: list[list[str]] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        return " ".join(self.text.split())

    @property
    def hidden(self) -> bool:
        return "hidden" in self.attributes


class Reader(HTMLParser):
    """The answers of a page. Without scripts, as a browser that runs none would have it."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Shown] = []
        self.within, self.cell = False, False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "article":
            self.within = True
            self.answers.append(Shown(given))
        elif self.within and tag == "tr":
            self.answers[-1].rows.append([])
        elif self.within and tag in ("td", "th"):
            self.cell = True
            self.answers[-1].rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.within = self.within and tag != "article"
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.within and self.cell:
            self.answers[-1].rows[-1][-1] += data
        elif self.within:
            self.answers[-1].text += data


def read(page: str) -> list[Shown]:
    reader = Reader()
    reader.feed(re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))
    for answer in reader.answers:
        answer.rows = [[" ".join(cell.split()) for cell in row] for row in answer.rows[1:]]
    return reader.answers


def timed(solution: str, microseconds: float, **changes: Any) -> Trace:
    """A trace of LINE that no other was measured in turns with."""
    base = made.trace(DECODE, LINE, solution, against=[])
    assert base.timing is not None
    median = microseconds * 1e-6
    times = {"median": median, "interval": (0.99 * median, 1.01 * median)}
    return base.model_copy(update={"timing": base.timing.model_copy(update=times), **changes})


def beside(baseline: str, times: float) -> Ratio:
    interval = (times - 0.01, times + 0.01)
    return Ratio(baseline=baseline, baseline_hash="c" * 64, method="graph", median=1e-5, ratio=times, interval=interval)


def verdict(solution: str, status: Any, workload: str, suite: str = "conformance") -> CheckResult:
    return CheckResult(
        definition=DECODE, workload=workload, suite=suite, solution=solution, device="nvidia-h200", status=status
    )


def only(*measured: Trace | Measured, judged: list[CheckResult] | None = None, peers: tuple[str, ...] = ()) -> Shown:
    """The one answer of a page of these traces."""
    rows = [m if isinstance(m, Measured) else Measured(m) for m in measured]
    (answer,) = read(render(replace(made.contents(rows, judged), peers=frozenset(peers))))
    assert not answer.hidden
    return answer


# --- what the repository holds ------------------------------------------------------------------------------------


def test_the_first_answer_says_what_the_traces_say() -> None:
    known, _ = solutions()
    found = {name: definitions()[name] for name in (DECODE, PREFILL)}
    measured = traces(known.values(), known.values(), found, lambda message: None)
    peers = frozenset(name for name, solution in known.items() if solution.is_peer)
    page = read(render(Contents(found, measured, [], None, "gdnspec report", peers=peers)))
    (first,) = (answer for answer in page if not answer.hidden)
    asked = first.attributes
    assert asked["data-operator"] == next(iter(families()["gdn"].about.usual.values()))

    times = {}
    for file in [*ROOT.glob("solutions/*/traces/**/*.jsonl"), *ROOT.glob("peers/*/traces/*.jsonl")]:
        for text, stale in zip(file.read_text().splitlines(), check_traces(file), strict=True):
            line = json.loads(text)
            place = (line["definition"], line["device"], line["preset"], line["workload"])
            wanted = tuple(asked[f"data-{key}"] for key in ("operator", "device", "heads", "lengths"))
            if place == wanted and stale is None and (line["timing"] or {}).get("method") == "graph":
                times[line["solution"]] = line["timing"]["median"]
    best = min(times, key=lambda name: times[name])
    assert len(times) > 3
    assert f": {best} takes {seconds(times[best])}." in first.sentence
    assert first.sentence.startswith("On an NVIDIA H")
    named = {name: float(said) for said, name in re.findall(r"([\d.]+)x faster than (\w+)", first.sentence)}
    assert set(named) >= (peers & set(times)) - {best}
    for name, said in named.items():
        assert said == pytest.approx(times[name] / times[best], rel=0.05)
    shown = {row[0].split(" ")[0]: row for row in first.rows}
    assert set(times) <= set(shown)
    for name, time in times.items():
        assert shown[name][1] == seconds(time)
        assert float(shown[name][2].removesuffix("x")) == pytest.approx(time / times[best], rel=0.05)
        assert shown[name][4] == "passed this workload"
    assert first.rows[0][0].removesuffix(" peer") == best


def test_every_measured_row_is_in_an_answer() -> None:
    measured = made.measured()
    wanted = {
        (m.trace.definition, m.trace.device, m.trace.preset, m.trace.workload, m.trace.solution) for m in measured
    }
    page = read(render(made.contents(measured)))
    keys = ("operator", "device", "heads", "lengths")
    found = {
        (*(answer.attributes[f"data-{key}"] for key in keys), row[0].split(" ")[0])
        for answer in page
        for row in answer.rows
    }
    assert found == wanted
    anchors = [answer.attributes["id"] for answer in page]
    assert len(anchors) == len(set(anchors))
    assert sum(not answer.hidden for answer in page) == 1
    said = {tuple(answer.attributes[f"data-{key}"] for key in (*keys[:3], "lengths-said")) for answer in page}
    assert len(said) == len(page)  # a reader can tell the choices of a picker apart


# --- who is named -------------------------------------------------------------------------------------------------


def test_the_fastest_is_named_with_the_ratio_to_the_libraries() -> None:
    kernels = [timed("ours", 10), timed("slow", 30), timed("theirs", 15), timed("also", 20)]
    answer = only(*kernels, peers=("theirs", "also"))
    assert ": ours takes 10.00 µs. It is 1.50x faster than theirs and 2.00x faster than also." in answer.sentence
    assert [row[0] for row in answer.rows] == ["ours", "theirs peer", "also peer", "slow"]
    assert [row[2] for row in answer.rows] == ["1.00x", "1.50x", "2.00x", "3.00x"]


def test_the_next_kernel_is_named_where_that_says_more() -> None:
    assert "It is as fast as second within 2%." in only(timed("first", 10), timed("second", 10.1)).sentence
    between = [timed("theirs", 10), timed("ours", 10.1), timed("also", 30)]
    said = "It is as fast as ours within 2% and 3.00x faster than also."
    assert said in only(*between, peers=("theirs", "also")).sentence
    assert "No other kernel was measured here." in only(timed("alone", 10)).sentence


@pytest.mark.slow
def test_a_ratio_that_one_run_measured_counts_before_two_times() -> None:
    answer = only(timed("first", 10, against=[beside("second", 1.25)]), timed("second", 20))
    assert "It is 1.25x faster than second." in answer.sentence
    contradicted = only(timed("first", 10, against=[beside("second", 0.8)]), timed("second", 20))
    assert "Where one run measured both in turns, second was 1.25x faster." in contradicted.sentence


@pytest.mark.parametrize(
    ("changes", "stale", "why"),
    [
        (
            {"status": "SUSPECT_TIMING", "message": "two clocks"},
            None,
            "failed this workload, SUSPECT_TIMING: two clocks",
        ),
        ({"unclean": ["throttled"]}, None, "not counted: throttled"),
        ({}, "the solution has changed", "not counted: the solution has changed"),
    ],
)
def test_what_did_not_pass_is_shown_and_not_named(changes: dict[str, Any], stale: str | None, why: str) -> None:
    answer = only(Measured(timed("quick", 5, **changes), stale), timed("right", 10))
    assert ": right takes 10.00 µs." in answer.sentence
    assert f"quick takes 5.00 µs, but it is not named the fastest: {why}." in answer.sentence
    assert answer.rows[1][0] == "quick"
    assert answer.rows[1][2] == NOTHING
    assert answer.rows[1][4] == why


def test_a_kernel_that_failed_another_workload_is_not_named() -> None:
    judged = [
        *(verdict("quick", "PASSED", name) for name in ("batch_8", "tiny_keys")),
        verdict("quick", "NON_FINITE", "regime_tiny_keys"),
        verdict("right", "PASSED", "batch_8"),
    ]
    answer = only(timed("quick", 5), timed("right", 10), judged=judged)
    assert ": right takes 10.00 µs." in answer.sentence
    assert "quick takes 5.00 µs, but it is not named" in answer.sentence
    assert [row[4] for row in answer.rows] == [
        "passed the only workload that it supports",
        "failed 1 of 3 workloads: tiny_keys",
    ]


def test_a_failure_in_the_strict_suite_alone_is_said_and_excludes_nobody() -> None:
    judged = [verdict("quick", "PASSED", "batch_8"), verdict("quick", "INCORRECT_NUMERICAL", "tiny_keys", "strict")]
    answer = only(timed("quick", 5), timed("right", 10), judged=judged)
    assert ": quick takes 5.00 µs." in answer.sentence
    assert answer.rows[0][4] == "failed 1 of 2 workloads, all of them in the strict suite: tiny_keys"


def test_no_kernel_is_named_where_none_is_ranked() -> None:
    answer = only(made.trace(DECODE, LINE, "on_cpu", "x86-64"))
    assert answer.sentence.startswith("On an x86-64, ")
    assert ": no kernel can be named the fastest." in answer.sentence
    assert answer.rows[0][4] == "not counted: times on a CPU are not ranked"
    assert "--device cpu" in answer.sentence


def test_an_answer_that_names_a_kernel_is_shown_before_one_that_names_none() -> None:
    """Though a GPU has a stale time there, and a CPU has none that is stale."""
    gpu = [Measured(timed("ours", 10)), Measured(timed("variant", 12), "the solution has changed since")]
    answers = read(render(made.contents([*gpu, Measured(made.trace(DECODE, LINE, "on_cpu", "x86-64"))])))
    (shown,) = (answer for answer in answers if not answer.hidden)
    assert shown.attributes["data-device"] == "nvidia-h200"
    assert ": ours takes 10.00 µs." in shown.sentence


def test_times_by_events_are_not_compared() -> None:
    other = timed("eager", 5)
    assert other.timing is not None
    eager = other.model_copy(update={"timing": other.timing.model_copy(update={"method": "events"})})
    answer = only(eager, timed("replayed", 10))
    assert ": replayed takes 10.00 µs." in answer.sentence
    assert "eager" not in answer.sentence.split("Measured")[0]
    assert answer.rows[1][:3] == ["eager events", "5.00 µs", NOTHING]


def test_the_command_repeats_the_comparison() -> None:
    from gdnspec.cli.main import app

    answer = only(timed("ours", 10), timed("theirs:v", 15))
    command = answer.sentence.split("To repeat it: ")[1].removesuffix("Copy").strip()
    assert command == f"gdnspec bench {DECODE} --workload {LINE.name} --solution ours --against theirs:v"
    bench = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    asked = bench.make_context("bench", shlex.split(command)[2:]).params
    assert (asked["names"], asked["workload"], asked["solution"], asked["against"]) == (
        [DECODE], [LINE.name], ["ours"], "theirs:v",
    )  # fmt: skip


# --- ratios in the table of traces --------------------------------------------------------------------------------


def test_a_winner_has_ratios_too() -> None:
    """Where the baseline's run measured both, its ratio the other way round."""
    measured = [timed("ours", 10), timed("theirs", 15, against=[beside("ours", 0.64)]), timed("third", 30)]
    found = {row.trace.solution: row.versus for row in rows(map(Measured, measured), {})}
    assert found["ours"]["theirs"].ratio == pytest.approx(1 / 0.64)
    assert found["ours"]["theirs"].in_turns
    assert found["theirs"]["ours"].ratio == 0.64
    assert found["third"]["theirs"].ratio == pytest.approx(0.5)
    assert not found["third"]["theirs"].in_turns
    page = render(replace(made.contents(list(map(Measured, measured))), peers=frozenset({"theirs"})))
    cells = re.findall(r"<td class=\"num\" data-v=\"([^\"]*)\"><span title=\"95%", page)
    assert len(cells) == 2 * len(measured)  # a column each for `theirs` and `ours`, none of them empty
    assert ratio(1 / 0.64) in page


def test_what_is_not_ranked_is_compared_with_nothing() -> None:
    hot = timed("hot", 5, unclean=["throttled"])
    found = {row.trace.solution: row.versus for row in rows([Measured(hot), Measured(timed("ours", 10))], {})}
    assert found["hot"] == {}
    assert set(found["ours"]) == {"ours"}


def test_an_interval_without_a_lower_end_gives_no_ratio() -> None:
    broken = timed("broken", 10, against=[beside("x", 0.01)])
    assert broken.timing is not None
    broken = broken.model_copy(update={"timing": broken.timing.model_copy(update={"interval": (0.0, 2e-5)})})
    assert versus(timed("x", 10), broken) is None


# --- words --------------------------------------------------------------------------------------------------------


def test_lengths_in_words() -> None:
    prefill, decode = definitions()[PREFILL].definition, definitions()[DECODE].definition
    verify = definitions()["gdn_verify_k_last"].definition
    assert shapes.lengths(prefill, {}, [1]) == "1 sequence of 1 token"
    assert shapes.lengths(prefill, {}, [2048] * 4) == "4 sequences of 2,048 tokens each"
    assert shapes.lengths(prefill, {}, [0, 9, 2000]) == "3 sequences of 0 to 2,000 tokens, 2,009 in total"
    assert shapes.lengths(decode, {"batch_size": 64}, None) == "a batch of 64"
    assert shapes.lengths(verify, {"batch_size": 16, "draft_tokens": 4}, None) == "a batch of 16, 64 tokens in total"


def test_heads_in_words() -> None:
    found = definitions()[PREFILL]
    assert shapes.heads(found, "qwen3-next-80b-a3b-tp1") == "16/32"
    assert shapes.heads(found, "qwen3-next-80b-a3b-tp4") == "4/8"
    assert shapes.heads(found, "no such preset") == ""


def test_articles() -> None:
    names = ("NVIDIA H200", "x86-64", "Tesla", "B200", "Apple", "GH200")
    assert [shapes.article(name) for name in names] == ["an", "an", "a", "a", "an", "a"]


def test_the_page_names_no_operator_and_no_axis() -> None:
    """Its templates and scripts: tests/test_family_names.py searches the Python."""
    words = set()
    for name, found in definitions().items():
        words |= {name, found.family.name} | {axis.name for axis in found.definition.axes}
        words |= {t.name for t in (*found.definition.inputs, *found.definition.outputs) if "_" in t.name}
    folder = Path(ROOT / "tools" / "gdnspec" / "report")
    text = "\n".join(file.read_text() for file in folder.rglob("*") if file.suffix in (".js", ".j2", ".css"))
    assert words & set(re.findall(r"[A-Za-z_][A-Za-z0-9_]*", text)) == set()

"""`gdnspec report`: what the page says, what it never says, and that nothing from a file becomes part of it."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run

pytest.importorskip("altair", reason="the extra `report` is not installed")
pytest.importorskip("vl_convert", reason="the extra `report` is not installed")

import helpers_report as made
from gdnspec import paths
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.families import families
from gdnspec.catalog.faults import known_bad
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.traces import Measured
from gdnspec.catalog.workloads import workloads
from gdnspec.cli import matrix
from gdnspec.model.result import CheckResult
from gdnspec.report.conformance import table as by_regime
from gdnspec.report.figures import interval, lengths, percent, plain, seconds
from gdnspec.report.kills import grids, written
from gdnspec.report.page import embedded, render
from gdnspec.report.rows import rows
from typer.testing import CliRunner

DECODE = "gdn_decode_k_last"
LINES = {line.name: line for line in workloads(definitions()[DECODE])}
LINE = LINES["16x32_batch_16"]


def table(page: str, definition: str = DECODE) -> list[dict[str, str]]:
    """The rows of a definition's traces: class, solution, and the text and value of the cells."""
    section = page.split(f'<section id="{definition}"')[1].split("</section>")[0]
    found = []
    for kind, attributes, body in re.findall(r'<tr class="row ([^"]*)"([^>]*)>(.*?)</tr>', section, re.DOTALL):
        row = dict(re.findall(r'data-(\w+)="([^"]*)"', attributes), kind=kind, body=body)
        row["rank"] = re.search(r'class="num rank" data-v="([^"]*)"', body).group(1)  # type: ignore[union-attr]
        found.append(row)
    return found


def slow(solution: str, factor: float, **changes: Any) -> Measured:
    """A trace of LINE that takes `factor` x 10 µs."""
    base = made.trace(DECODE, LINE, solution)
    assert base.timing is not None
    timing = base.timing.model_copy(update={"median": factor * 1e-5})
    return Measured(base.model_copy(update={"timing": timing, **changes}), "")


def test_ranks_are_among_the_comparable() -> None:
    quickest_but_stale = Measured(slow("stale", 1).trace, "the solution has changed since")
    events = slow("events", 1.5)
    assert events.trace.timing is not None
    by_events = events.trace.model_copy(update={"timing": events.trace.timing.model_copy(update={"method": "events"})})
    found = rows(
        [
            slow("second", 3),
            slow("first", 2),
            quickest_but_stale,
            slow("hot", 1, unclean=["throttled"]),
            slow("suspect", 1, status="SUSPECT_TIMING"),
            Measured(by_events, ""),
            slow("elsewhere", 9, device="nvidia-b200"),
            Measured(made.trace(DECODE, LINE, "on_cpu", "x86-64"), ""),
            slow("absent", 1, status="UNSUPPORTED", timing=None),
        ],
        {LINE.name: 0},
    )
    ranks = {row.trace.solution: row.rank for row in found}
    assert ranks == {
        "first": 1,
        "second": 2,
        "events": 1,
        "elsewhere": 1,
        "stale": None,
        "hot": None,
        "suspect": None,
        "on_cpu": None,
        "absent": None,
    }
    assert next(row.rivals for row in found if row.trace.solution == "first") == 2
    order = [row.trace.solution for row in found]
    assert order[0] == "suspect"
    assert order[-1] == "stale"
    assert order.index("first") < order.index("second") < order.index("hot")


def test_the_page_puts_failures_first_and_ranks_nothing_stale() -> None:
    page = render(made.contents(made.measured(120)))
    for name in made.shown():
        shown = table(page, name)
        states = [row["state"] for row in shown]
        assert states[:2] == ["failed", "failed"]
        assert states == sorted(states, key=["failed", "passed", "unsupported", "stale"].index)
        for row in shown:
            assert bool(row["rank"]) == ("unranked" not in row["kind"])
            if row["state"] != "passed" or 'class="tag cpu"' in row["body"] or 'class="tag unclean"' in row["body"]:
                assert not row["rank"], row
        assert sum('class="tag cpu"' in row["body"] for row in shown) == 1
        assert sum('class="tag unclean"' in row["body"] for row in shown) == 1
    assert any(row["state"] == "stale" for name in made.shown() for row in table(page, name))


def test_definitions_with_evidence_come_first() -> None:
    last = list(made.shown())[-1]
    page = render(made.contents([m for m in made.measured(120) if m.trace.definition == last]))
    assert re.findall(r'<section id="(gdn_[^"]*)"', page)[0] == last


def test_charts_leave_out_what_is_stale_or_failed() -> None:
    page = render(
        made.contents(
            [slow("kept", 2), Measured(slow("old", 1).trace, "changed"), slow("wrong", 1, status="NON_FINITE")]
        )
    )
    assert [row["solution"] for row in given(page)["charts"][DECODE]] == ["kept"]


def given(page: str) -> dict[str, Any]:
    """The data inside the page."""
    found: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return found


def markup_of(page: str) -> str:
    """The page without its own scripts."""
    return re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


HOSTILE = '</script><script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">\u202e\x1b[31m{{ 7 * 7 }}'


def hostile() -> tuple[list[Measured], list[CheckResult]]:
    """Evidence whose every free text would like to be code."""
    trace = made.trace(
        DECODE,
        LINE,
        workload=HOSTILE,
        preset=HOSTILE,
        message=HOSTILE,
        command=HOSTILE,
        recorded=HOSTILE,
        suite=HOSTILE,
        unclean=[HOSTILE],
        environment={HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}},
    )
    against = [trace.against[0].model_copy(update={"baseline": HOSTILE})]
    named = {"solution": HOSTILE, "device": HOSTILE, "against": against}
    verdict = CheckResult(
        definition=DECODE,
        workload=HOSTILE,
        suite="smoke",
        solution=HOSTILE,
        device=HOSTILE,
        status="RUNTIME_ERROR",
        message=HOSTILE,
        repeat=HOSTILE,
        environment={HOSTILE: HOSTILE},
        outputs=made.errors(LINE, 0.3, 300),
    )
    return [Measured(trace.model_copy(update=named), HOSTILE)], [verdict]


@pytest.mark.slow
def test_text_of_files_stays_text() -> None:
    traces, judged = hostile()
    page = render(made.contents(traces, judged))
    harmless = render(made.contents([slow("kept", 2)], made.verdicts(3)))
    assert page.count("<script") == harmless.count("<script")
    assert "<img" not in markup_of(page)
    assert "{{ 7 * 7 }}" in page
    assert "\u202e" not in page
    assert "\x1b" not in page
    assert given(page)["traces"][0]["message"].startswith("</script><script>")  # whole, for the details


def test_data_cannot_end_its_element() -> None:
    text = str(embedded({"a": "</script><!--&", "b": [1, None]}))
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"a": "</script><!--&", "b": [1, None]}


def test_the_page_refers_to_nothing_outside() -> None:
    page = render(made.contents(made.measured(60), made.verdicts(40)))
    markup = markup_of(page)
    assert "http:" not in markup.replace("http-equiv", "")
    assert "https:" not in markup
    assert not re.search(r'(?:src|href)="(?!#|data:,)', markup)
    assert "url(" not in markup
    assert "default-src &#39;none&#39;; script-src &#39;sha256-" in markup


@pytest.mark.thorough
def test_a_full_run_stays_small() -> None:
    traces, judged, tested = made.measured(), made.verdicts() + made.verdicts(110, ["one_more"]), made.selftest()
    assert (len(traces), len(judged)) == (500, 2110)
    size = len(render(made.contents(traces, judged, tested)).encode())
    assert size < 8_000_000, size


def test_workloads_have_sections_that_links_lead_to() -> None:
    unknown = made.trace(DECODE, LINE, workload="drawn elsewhere")
    page = render(made.contents([slow("kept", 2), Measured(unknown, "")]))
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'href="#([^"]+)"', page))
    assert targets <= set(ids), targets - set(ids)
    assert f"{DECODE}/{LINE.name}" in targets
    section = page.split(f'id="{DECODE}/{LINE.name}"')[1].split("</details>")[0]
    for said in (LINE.preset, "batch_size 16", "typical: Mamba-style", "relative_l2", f"--workload {LINE.name}"):
        assert said in section
    assert "in no file of this definition" in page


def test_verdicts_are_counted_by_regime() -> None:
    names = ["batch_8", "tiny_keys", "regime_tiny_keys", "qwen3_next_model"]
    statuses: list[Any] = ["PASSED", "PASSED", "NON_FINITE", "UNSUPPORTED"]
    judged = [
        CheckResult(
            definition=DECODE, workload=name, suite=LINES[name].suite, solution="s", device="x86-64", status=status
        )
        for name, status in zip(names, statuses, strict=True)
    ]
    page = render(made.contents([], judged))
    assert re.findall(r'aria-label="s, ([^"]*)"', page) == [
        "all: 2 passed, 1 failed, 1 unsupported",
        "typical: 1 passed, 0 failed, 0 unsupported",
        "tiny_keys: 1 passed, 1 failed, 0 unsupported",
        "recorded tensors: 0 passed, 0 failed, 1 unsupported",
    ]


def test_who_fails_strict_keys_alone_may_conform() -> None:
    known = {line.name: line for line in workloads(definitions()["gdn_prefill_k_last"])}
    judged = [r for r in made.verdicts(1 << 20) if r.solution == "fla_adapter" and r.definition == "gdn_prefill_k_last"]
    _, (line,) = by_regime(enumerate(judged), known)
    assert line.total.failed == 4
    assert line.strict is False
    assert line.conforming


def test_errors_by_position_come_from_profiles() -> None:
    judged = [r for r in made.verdicts(400) if r.definition == "gdn_prefill_k_last"]
    entries = given(render(made.contents([], judged)))["profiles"]["gdn_prefill_k_last"]
    assert entries[0]["buckets"][-1][1] == 19999  # the longest first
    assert entries[0]["buckets"][0][:2] == [0, 0]
    assert entries[0]["budget"]["relative_l2"] > 0


def test_a_decode_of_another_family_has_its_regimes_and_no_chart_of_one_position() -> None:
    name, bucket = "kda_decode_k_last", {"first": 0, "last": 0, "relative_l2": 0.001, "worst_vector": 0.002}
    output = {"output": "output", "errors": {}, "budget": {}, "worst": None, "profile": [bucket]}
    about = {"definition": name, "workload": "batch_5", "solution": "mine", "device": "x86-64", "suite": "smoke"}
    judged = [CheckResult.model_validate({**about, "status": "PASSED", "outputs": [output]})]
    page = render(replace(made.contents([], judged), found={name: definitions()[name]}))
    assert "1 of 1 judged solution passes, the strict suite not counted" in page
    own, other = (families()[family].about.regimes["typical"] for family in ("kda", "gdn"))
    assert own in page
    assert other not in page
    assert given(page)["profiles"][name] == []


@pytest.mark.thorough
def test_the_kill_matrix_from_results_and_from_its_markdown(tmp_path: Path) -> None:
    tested = made.selftest()
    found = grids(tested, made.shown())
    assert {grid.family for grid in found} == {"decode", "prefill"}
    for grid in found:
        assert all(len(fault.cells) == len(grid.workloads) for fault in grid.faults)
        assert sum(grid.kills) == sum(fault.kills for fault in grid.faults)
    bad, good = known_bad(), [load_solution(ROOT / "solutions" / "torch_recurrent")]
    results: dict[str, list[CheckResult]] = {solution.name: [] for solution in good}
    for result in tested:
        results.setdefault(result.solution, []).append(result)
    matrix.write(tmp_path / "matrix.md", bad, good, results)
    tables = written(tmp_path / "matrix.md")
    assert [table.columns[0] for table in tables] == ["honest solution", "known-bad solution", "workload"]
    assert sorted(row[0] for row in tables[1].rows) == [item.solution.name for item in bad]
    page = render(replace(made.contents([slow("kept", 2)]), matrix=tables))
    assert "As <code>gdnspec selftest --markdown</code> wrote it" in page
    assert "no_carry" in page
    assert "No results of a selftest" in render(made.contents([slow("kept", 2)]))


def test_figures_read_well() -> None:
    assert [seconds(x) for x in (3.804e-6, 1.2345e-4, 9.99e-4, 1.5e-3, 1.25)] == [
        "3.80 µs",
        "123.4 µs",
        "999.0 µs",
        "1.50 ms",
        "1,250 ms",
    ]
    assert interval(9.98e-4, 1.002e-3) == "1.00\u20131.00 ms"
    shares = (0.034, 0.42, 1.0, 37.2, 5.89e21, float("inf"))
    assert [percent(x) for x in shares] == ["3.4%", "42%", "100%", "37x", "5.9e+21x", "∞"]
    assert [lengths(x) for x in (None, [5], [8, 8], [1, 2])] == ["", "5", "2 x 8", "1, 2"]
    assert lengths(list(range(30))) == "30 sequences of 0 to 29"
    assert len(plain("x" * 10_000)) < 3000


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(make_solution: Any) -> Path:
    """A folder of one solution with traces: one that holds, one that is stale, one that is cut off."""
    folder = make_solution("def run(**inputs): return decode_k_last(**inputs)", name="mine")
    source = load_solution(folder).source_hash
    whole = made.trace(DECODE, LINE, "mine", source_hash=source)
    old = made.trace(DECODE, LINES["16x32_batch_64"], "mine")
    file = made.write_lines(folder / "traces" / "nvidia-h200.jsonl", [whole, old])
    with file.open("a") as stream:
        stream.write('{"schema_version": 1, "definition": "gdn_dec')
    return Path(folder.parent)


def test_the_command_writes_a_page(gdnspec: Run, shop: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    verdicts = made.write_lines(tmp_path / "v.jsonl", [r for r in made.verdicts(60) if r.definition == DECODE])
    done = gdnspec("report", DECODE, "-o", page, "--solutions-dir", shop, "--verdicts", verdicts)
    assert done.returncode == 0, done.stderr
    assert "nvidia-h200.jsonl: line 3" in done.stderr
    assert "traces, " in done.stdout
    mine = [row for row in table(page.read_text()) if row["solution"] == "mine"]
    assert [row["state"] for row in mine] == ["passed", "stale"]
    assert "line 3" in page.read_text()
    assert "gdn_prefill_k_last" not in re.findall(r'<section id="([^"]+)"', page.read_text())


def test_a_readme_has_no_ratio_to_what_has_changed(gdnspec: Run, make_solution: Any, tmp_path: Path) -> None:
    folder = make_solution("def run(**inputs): return decode_k_last(**inputs)", name="mine")
    ours = {"source_hash": load_solution(folder).source_hash}
    old, new = made.trace(DECODE, LINE, "mine", **ours), made.trace(DECODE, LINES["16x32_batch_64"], "mine", **ours)
    now = load_solution(ROOT / "solutions" / "triton_recurrent").source_hash
    old.against[0] = old.against[0].model_copy(update={"baseline": "triton_recurrent"})
    new.against[0] = old.against[0].model_copy(update={"baseline_hash": now})
    made.write_lines(folder / "traces" / "nvidia-h200.jsonl", [old, new])
    done = gdnspec("report", "--markdown", "mine", "-o", tmp_path / "x.md", "--solutions-dir", folder.parent)
    assert done.returncode == 0, done.stderr
    assert "1 ratio left out" in done.stderr
    lines = {line.split(" | ")[1]: line for line in (tmp_path / "x.md").read_text().splitlines() if "16x32" in line}
    assert "triton_recurrent" not in lines["16x32_batch_16"]
    assert "triton_recurrent" in lines["16x32_batch_64"]


def test_the_command_without_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gdnspec.cli.main import app

    monkeypatch.setattr(paths, "solutions_dir", lambda: tmp_path)
    monkeypatch.setattr(paths, "peers_dir", lambda: tmp_path)
    done = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "page.html")])
    assert done.exit_code == 3, done.output
    assert "gdnspec bench --save" in done.output
    assert "neither a trace nor a verdict" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gdn_decode_k_lost", "-o", "page.html"), "did you mean 'gdn_decode_k_last'?"),
        (("-o", "kernel.py"), "named .html"),
        (("-o", "no/such/page.html"), "cannot be written"),
        (("-o", "page.html", "--verdicts", "absent.jsonl"), "no such file"),
    ],
)
def test_bad_requests(gdnspec: Run, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = gdnspec("report", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


def run_with(code: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = f"import sys\nsys.argv[1:] = {list(arguments)!r}\n{code}"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=cwd)


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    code = "sys.modules['altair'] = sys.modules['vl_convert'] = None\nfrom gdnspec.cli.main import main\nmain()"
    done = run_with(code, "report", "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 3
    assert "altair, vl_convert, which are not installed: pip install 'gdnspec[report]'" in done.stderr


def test_a_report_never_imports_torch(tmp_path: Path) -> None:
    code = (
        "from gdnspec.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'triton'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = run_with(code, "report", DECODE, "-o", "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").stat().st_size > 10_000

"""`gdnspec compare`: what is compared, what is not and why, and the figures checked by hand."""

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.traces import Measured
from gdnspec.report.pairing import compare, ratio_interval
from gdnspec.report.units import shown_time
from helpers_traces import DECODE, ENVIRONMENT, PREFILL, make_timing, make_trace, trace_of, write_traces

RIGHT = "def run{args}:\n    return decode_k_last{args}\n".format(
    args="(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
)
ONE, FOUR, SIXTEEN = "16x32_batch_1", "16x32_batch_4", "16x32_batch_16"
LONG = "16x32_1x8192"
Two = Callable[..., tuple[Path, Path]]


@pytest.fixture
def two(make_solution: Callable[..., Path]) -> tuple[Path, Path]:
    """The folders of two solutions, `left` and `right`, side by side."""
    return make_solution(RIGHT, name="left"), make_solution(RIGHT, name="right")


@pytest.fixture
def compared(gdnspec: Run, two: tuple[Path, Path]) -> Callable[..., Any]:
    """`gdnspec compare left right` with the options given."""

    def run(*options: str | Path, sides: tuple[str | Path, str | Path] = ("left", "right")) -> Any:
        return gdnspec("compare", *sides, "--solutions-dir", two[0].parent, *options, cwd=ROOT)

    return run


def apart(done: Any) -> dict[str, list[str]]:
    """Workload -> reasons, of the first comparison of a JSON answer."""
    return {row["workload"]: row["reasons"] for row in json.loads(done.stdout)["comparisons"][0]["not_compared"]}


# --- figures ----------------------------------------------------------------------------------------------------


def test_the_interval_of_a_ratio_by_hand() -> None:
    # log2 half-widths of 3 and 4 make 5, each side for itself.
    a = make_timing(8.0, interval=[8.0 / 2**3, 8.0 * 2**5])
    b = make_timing(16.0, interval=[16.0 / 2**12, 16.0 * 2**4])
    low, high = ratio_interval(a, b)
    assert math.log2(high) == pytest.approx(1 + 5)  # b's upper 4, a's lower 3
    assert math.log2(low) == pytest.approx(1 - 13)  # b's lower 12, a's upper 5


def test_the_geometric_mean_and_its_interval_by_hand() -> None:
    a = {(DECODE, w): Measured(make_trace(workload=w, timing=make_timing(1.0, interval=[1, 1]))) for w in (ONE, FOUR)}
    b = {
        (DECODE, ONE): Measured(make_trace(workload=ONE, timing=make_timing(2.0, interval=[2 / 8, 2 * 8]))),
        (DECODE, FOUR): Measured(make_trace(workload=FOUR, timing=make_timing(8.0, interval=[8 / 16, 8 * 16]))),
    }
    mean = compare(a, b, ("d", "d"), {}).overall
    assert mean.ratio == pytest.approx(4.0)  # sqrt(2 * 8)
    assert mean.interval == pytest.approx((2 ** (2 - 5 / 2), 2 ** (2 + 5 / 2)))  # sqrt(3^2 + 4^2) / 2
    assert (mean.compared, mean.workloads) == (2, 2)


def test_swapping_the_sides_inverts_every_figure() -> None:
    def rows(median: float, within: float) -> dict[tuple[str, str], Measured]:
        return {(DECODE, w): Measured(make_trace(workload=w, median=median, within=within)) for w in (ONE, FOUR)}

    forth = compare(rows(1e-5, 1.02), rows(3e-5, 1.1), ("d", "d"), {}).overall
    back = compare(rows(3e-5, 1.1), rows(1e-5, 1.02), ("d", "d"), {}).overall
    assert forth.ratio is not None and forth.interval is not None and back.interval is not None
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.interval == pytest.approx((1 / forth.interval[1], 1 / forth.interval[0]))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(83.44e-6, "83.4 us"), (1.5e-7, "0.15 us"), (999.7e-6, "1.00 ms"), (1.2345e-3, "1.23 ms"), (0.0456, "45.6 ms"),
     (2.1, "2.10 s"), (250e-6, "250 us"), (9.999e-6, "10.0 us"), (0.0, "0.00 us")],
)  # fmt: skip
def test_times_have_a_sensible_unit(seconds: float, shown: str) -> None:
    assert shown_time(seconds) == shown


# --- what a user sees -------------------------------------------------------------------------------------------


def test_what_is_not_compared_stands_first_and_is_counted(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, right = two
    write_traces(left, [
        trace_of(left, workload=ONE, median=10e-6),
        trace_of(left, workload=FOUR, median=20e-6),
        trace_of(left, workload=SIXTEEN, median=30e-6),
        trace_of(left, definition=PREFILL, workload=LONG, median=2e-3),
    ])  # fmt: skip
    write_traces(right, [
        trace_of(right, workload=ONE, median=15e-6),
        trace_of(right, workload=FOUR, status="INCORRECT_NUMERICAL", message="output: too far off", timing=None),
        trace_of(right, definition=PREFILL, workload=LONG, median=1e-3),
    ])  # fmt: skip
    done = compared()
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert "not compared: 2 of 4 workloads" in text
    assert "B: INCORRECT_NUMERICAL: output: too far off" in text
    assert "only A has it" in text
    row = next(line.split() for line in text.splitlines() if ONE + " " in line)
    assert row == [DECODE, ONE, "10.0", "us", "15.0", "us", "1.500", "[1.479,", "1.521]", "50%", "50%", "A", "apart"]
    assert f"{DECODE}: 1.500 [1.479, 1.521] over 1 of 3 workloads; 2 not compared, listed above" in text
    assert f"{PREFILL}: 0.500 [0.493, 0.507] over 1 of 1 workloads" in text
    assert "overall: 0.866 [0.857, 0.875] over 2 of 4 workloads; 2 not compared, listed above" in text
    assert text.index("only A has it") < text.index("15.0 us") < text.index("overall")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"timing": make_timing(method="events")}, "A is timed by graph, B by events: methods are never compared"),
        ({"timing": make_timing(method="cpu")}, "B: wall time on a CPU: shown, never ranked"),
        ({"unclean": ["throttled by power", "in use by others"]}, "B: not ranked: throttled by power, in use by"),
        ({"source_hash": "0" * 64}, "B: stale: the solution has changed since it was measured"),
        ({"definition_hash": "0" * 64}, "B: stale: the definition has changed since it was measured"),
        ({"status": "SUSPECT_TIMING"}, "B: SUSPECT_TIMING"),
        ({"timing": None}, "B: has no times"),
        ({"timing": make_timing(0.0)}, "B: no time above 0 within its interval"),
        ({"timing": make_timing(1.0, interval=[2.0, 3.0])}, "B: no time above 0 within its interval"),
    ],
)
def test_what_is_never_compared(
    compared: Callable[..., Any], two: tuple[Path, Path], change: dict[str, Any], says: str
) -> None:
    left, right = two
    write_traces(left, [trace_of(left, workload=ONE), trace_of(left, workload=FOUR)])
    write_traces(right, [trace_of(right, workload=ONE), trace_of(right, workload=FOUR, **change)])
    done = compared("--json")
    assert done.returncode == 0
    (reasons,) = apart(done).values()
    assert any(reason.startswith(says) for reason in reasons), reasons
    assert json.loads(done.stdout)["comparisons"][0]["overall"]["compared"] == 1


def test_every_reason_is_given_and_nothing_comparable_is_exit_code_3(
    compared: Callable[..., Any], two: tuple[Path, Path]
) -> None:
    left, right = two
    write_traces(left, [trace_of(left, workload=ONE, timing=make_timing(method="cpu"))])
    write_traces(right, [trace_of(right, workload=ONE, source_hash="0" * 64, unclean=["throttled"])])
    done = compared()
    assert done.returncode == 3
    assert "nothing to compare" in done.stderr
    said = " ".join(done.stdout.split())
    assert "not compared: 1 of 1 workloads" in said
    assert "100 us" in said, "a time is shown, though not ranked"
    done = compared("--json")
    assert done.returncode == 3
    assert len(apart(done)[ONE]) == 4


def test_one_json_object_has_it_all_in_seconds(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, right = two
    write_traces(left, [trace_of(left, workload=ONE, median=10e-6)])
    write_traces(right, [trace_of(right, workload=ONE, median=20e-6, timing=make_timing(20e-6, bound=None))])
    said = json.loads(compared("--json").stdout)
    assert said["a"] == {"name": "left", "devices": ["nvidia-h200"], "source_checked": True}
    (comparison,) = said["comparisons"]
    (pair,) = comparison["compared"]
    assert (pair["a"], pair["b"], pair["ratio"]) == (10e-6, 20e-6, 2.0)
    assert (pair["method"], pair["a_of_bound"], pair["b_of_bound"]) == ("graph", 0.5, None)
    assert comparison["definitions"][DECODE] == comparison["overall"]
    assert comparison["overall"]["ratio"] == pytest.approx(2.0)


def test_definition_and_suite_narrow_what_is_compared(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    for folder in two:
        write_traces(folder, [
            trace_of(folder, workload=ONE), trace_of(folder, workload="batch_8"),
            trace_of(folder, definition=PREFILL, workload=LONG),
        ])  # fmt: skip

    def counted(*options: str) -> int:
        return int(json.loads(compared("--json", *options).stdout)["comparisons"][0]["overall"]["compared"])

    assert counted() == 3
    assert counted("--suite", "performance") == 2
    assert counted("--definition", DECODE) == 2
    assert counted("--definition", DECODE, "--suite", "smoke") == 1
    done = compared("--suite", "strict")
    assert done.returncode == 3
    assert "left has no traces for the given options" in done.stderr


def test_workloads_stand_in_the_order_of_their_file(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    for folder in two:
        write_traces(folder, [trace_of(folder, workload=w) for w in (SIXTEEN, FOUR, "16x32_batch_256", ONE)])
    said = json.loads(compared("--json").stdout)
    assert [p["workload"] for p in said["comparisons"][0]["compared"]] == [ONE, FOUR, SIXTEEN, "16x32_batch_256"]


# --- devices and environments -----------------------------------------------------------------------------------


def test_each_device_is_compared_with_itself(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, right = two
    both = ("nvidia-h100", "nvidia-h200")
    write_traces(left, [trace_of(left, workload=ONE, device=d) for d in (*both, "nvidia-b200")])
    write_traces(right, [trace_of(right, workload=ONE, device=d) for d in both])
    done = compared()
    assert done.returncode == 0
    assert "on nvidia-h100\n" in done.stdout and "on nvidia-h200\n" in done.stdout
    assert "also measured on nvidia-b200: not compared here" in done.stdout
    only = json.loads(compared("--device", "nvidia-h100", "--json").stdout)
    assert [c["a_device"] for c in only["comparisons"]] == ["nvidia-h100"]
    assert compared("--device", "nvidia-b200").returncode == 3
    unknown = compared("--device", "nvidia-h20")
    assert unknown.returncode == 2
    assert "did you mean 'nvidia-h200'?" in unknown.stderr


def test_two_devices_are_compared_where_they_are_named(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, _ = two
    newer = {**ENVIRONMENT, "device": "NVIDIA B200", "torch": "2.14.0"}
    write_traces(left, [
        trace_of(left, workload=ONE, device="nvidia-h200", median=20e-6),
        trace_of(left, workload=ONE, device="nvidia-b200", median=10e-6, environment=newer),
    ])  # fmt: skip
    done = compared(sides=("left@nvidia-h200", "left@nvidia-b200"))
    assert done.returncode == 0
    assert "A on nvidia-h200, B on nvidia-b200" in done.stdout
    assert "different device, in 1 of 1 compared: A nvidia-h200; B nvidia-b200" in done.stdout
    assert "different torch, in 1 of 1 compared: A 2.13.0; B 2.14.0" in done.stdout
    assert "different triton" not in done.stdout
    assert "0.500" in done.stdout


def test_devices_that_cannot_be_paired_are_to_be_named(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, right = two
    write_traces(left, [trace_of(left, device=d) for d in ("nvidia-h100", "nvidia-h200")])
    write_traces(right, [trace_of(right, device="nvidia-b200")])
    done = compared()
    assert done.returncode == 2
    assert "A on nvidia-h100, nvidia-h200; B on nvidia-b200: choose one per side with SOLUTION@DEVICE" in done.stderr


# --- commits and files ------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)


@pytest.fixture
def history(two: tuple[Path, Path]) -> Path:
    """The folder of `left`, whose kernel became faster since the commit `HEAD`."""
    left, _ = two
    write_traces(left, [trace_of(left, workload=ONE, median=30e-6)])
    git(left.parent, "init", "-q")
    git(left.parent, "add", ".")
    git(left.parent, "commit", "-q", "-m", "slow")
    (left / "kernel.py").write_text((left / "kernel.py").read_text() + "\n# faster\n")
    write_traces(left, [trace_of(left, workload=ONE, median=10e-6)])
    return left


def test_a_solution_is_compared_with_itself_at_a_commit(compared: Callable[..., Any], history: Path) -> None:
    done = compared(sides=("left", "left@HEAD"))
    assert (done.returncode, done.stderr) == (0, ""), "its source of then is what it measured: not stale"
    assert "30.0 us  3.000" in done.stdout


def test_traces_that_were_stale_at_their_commit_are_stale(compared: Callable[..., Any], history: Path) -> None:
    (history / "kernel.py").write_text((history / "kernel.py").read_text() + "\n# and not measured\n")
    git(history.parent, "commit", "-q", "-a", "-m", "forgotten")
    done = compared("--json", sides=("left@HEAD~1", "left@HEAD"))
    assert done.returncode == 3
    assert apart(done) == {ONE: ["B: stale: the solution has changed since it was measured"]}


def test_a_cut_off_line_of_a_commit_is_told(compared: Callable[..., Any], history: Path) -> None:
    file = history / "traces" / "nvidia-h200.jsonl"
    file.write_text(file.read_text() + "{")
    git(history.parent, "commit", "-q", "-a", "-m", "cut off")
    done = compared(sides=("left@HEAD", "left@HEAD"))
    assert done.returncode == 0
    assert "left@HEAD/traces/nvidia-h200.jsonl: line 2, column 2: not JSON" in done.stderr


@pytest.mark.parametrize("where", ["HEAD~7", "nvidia-h20", "-h", "", "HEAD:left"])
def test_what_is_neither_device_nor_commit(compared: Callable[..., Any], history: Path, where: str) -> None:
    done = compared(sides=("left", f"left@{where}"))
    assert done.returncode == 2
    assert f"{where!r} is neither a device with traces of left" in done.stderr
    assert "nor a commit" in done.stderr


def test_a_commit_where_there_is_no_repository(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    done = compared(sides=("left", "left@HEAD"))
    assert done.returncode == 2
    assert "nor a commit" in done.stderr


def test_a_copy_of_a_trace_file_stands_for_the_code_of_its_day(
    compared: Callable[..., Any], two: tuple[Path, Path], tmp_path: Path
) -> None:
    left, _ = two
    (file,) = write_traces(left, [trace_of(left, workload=ONE, median=30e-6)])
    kept = tmp_path / "before.jsonl"
    kept.write_bytes(file.read_bytes())
    (left / "kernel.py").write_text((left / "kernel.py").read_text() + "\n# faster\n")
    done = compared(sides=(kept, file))
    assert done.returncode == 3
    assert "B: stale" in done.stdout, "a file in its solution's folder is held to the source beside it"
    write_traces(left, [trace_of(left, workload=ONE, median=10e-6)])
    done = compared(sides=(kept, "left"))
    assert done.returncode == 0
    assert "changes of the code since then are not checked" in done.stdout


# --- requests that are wrong ------------------------------------------------------------------------------------


def test_no_traces_at_all_says_how_to_get_some(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    write_traces(two[0], [trace_of(two[0])])
    done = compared()
    assert (done.returncode, done.stdout) == (3, "")
    assert "right has no traces: gdnspec bench" in done.stderr
    assert "left has no traces" not in done.stderr
    assert json.loads(compared("--json").stdout)["comparisons"] == []


@pytest.mark.parametrize(
    ("sides", "options", "says"),
    [
        (("lefft", "right"), (), "did you mean 'left'?"),
        (("left", "rihgt@nvidia-h200"), (), "did you mean 'right'?"),
        (("left", "right"), ("--definition", "gdn_decode_k_lats"), "did you mean 'gdn_decode_k_last'?"),
        (("left", "right"), ("--suite", "performnce"), "did you mean 'performance'?"),
        (("left", "no/such/file.jsonl"), (), "no/such/file.jsonl: no such file"),
        (("left", "README.md"), (), "README.md: holds no trace"),
        (("left", "definitions/gdn/gdn_decode_k_last/workloads.jsonl"), (), "workloads.jsonl: holds no trace"),
        (("left", "solutions/torch_recurrent"), (), "solutions/torch_recurrent is a folder: give SOLUTION"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_code_2(
    compared: Callable[..., Any], two: tuple[Path, Path], sides: tuple[str, str], options: tuple[str, ...], says: str
) -> None:
    for folder in two:
        write_traces(folder, [trace_of(folder)])
    done = compared(*options, sides=sides)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_file_of_several_solutions_is_no_side(compared: Callable[..., Any], tmp_path: Path) -> None:
    (file,) = write_traces(tmp_path, [make_trace(), make_trace(solution="torch_chunkwise", workload=FOUR)])
    done = compared(sides=(file, file))
    assert done.returncode == 2
    assert "holds traces of several solutions: torch_chunkwise, torch_recurrent" in done.stderr


def test_what_a_trace_says_does_nothing_to_the_terminal(compared: Callable[..., Any], two: tuple[Path, Path]) -> None:
    left, right = two
    write_traces(left, [trace_of(left, workload=ONE), trace_of(left, workload=FOUR)])
    odd = trace_of(right, workload=ONE, status="RUNTIME_ERROR", message="\x1b[2J [bold]gone[/] " + "x" * 2000)
    other = trace_of(right, workload=FOUR, environment={**ENVIRONMENT, "torch": "\x1b[2J"})
    write_traces(right, [odd, other])
    done = compared()
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "[bold]gone[/]" in done.stdout
    assert len(done.stdout) < 3000


def beside(baseline: str, source: str, ratio: float) -> dict[str, Any]:
    return {
        "baseline": baseline, "baseline_hash": source, "method": "graph", "median": 100e-6 * ratio, "ratio": ratio,
        "interval": [ratio * 0.999, ratio * 1.001],
    }  # fmt: skip


def test_what_was_measured_in_turns_counts_before_two_runs(
    compared: Callable[..., Any], two: tuple[Path, Path]
) -> None:
    left, right = two
    source = load_solution(right).source_hash
    write_traces(left, [
        trace_of(left, workload=ONE, against=[beside("right", source, 3.0)]),
        trace_of(left, workload=FOUR, against=[beside("right", "0" * 64, 3.0)]),  # of other code
    ])  # fmt: skip
    write_traces(right, [trace_of(right, workload=w, median=200e-6) for w in (ONE, FOUR)])
    for sides, sign in ((("left", "right"), 1), (("right", "left"), -1)):
        rows = {
            row["workload"]: row
            for row in json.loads(compared("--json", sides=sides).stdout)["comparisons"][0]["compared"]
        }
        assert (rows[ONE]["in_turns"], rows[ONE]["ratio"]) == (True, pytest.approx(3.0**sign))
        assert (rows[FOUR]["in_turns"], rows[FOUR]["ratio"]) == (False, pytest.approx(2.0**sign))
    # Without traces of its own, the baseline still has those.
    (right / "traces" / "nvidia-h200.jsonl").unlink()
    done = compared()
    assert done.returncode == 0
    assert "in turns" in done.stdout
    assert "only A has it" in done.stdout

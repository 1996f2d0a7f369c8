"""gdnspec workloads from-requests and stats: weighted workloads that add up to the log they came from."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Run
from gdnspec.catalog.definitions import definition, definitions
from gdnspec.catalog.solutions import load_solution, solutions
from gdnspec.catalog.workloads import load_workloads
from gdnspec.cli.commands.stats import stats
from gdnspec.model.workload import Workload
from gdnspec.numerics.floor import bound, work
from gdnspec.traffic.calls import Operator, Shape
from gdnspec.traffic.cost import FEWEST, ceilings_of, kernel_time, measured
from gdnspec.traffic.reduce import reduce
from gdnspec.traffic.summary import shape_of
from gdnspec.traffic.tally import Call
from helpers_unit import OF_A_MODEL
from sampled import one_in

PRESET = "qwen3-next-80b-a3b-tp1"
DEVICE = "nvidia-h200"
AZURE = ROOT / "samples" / "synthetic_azure.csv"
MOONCAKE = ROOT / "samples" / "synthetic_mooncake.jsonl"
BOTH = ("--definition", "gdn_prefill_k_last", "--definition", "gdn_decode_k_last")


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def requests_of(log: Path) -> list[tuple[int, int]]:
    return [(int(p), int(o)) for _, p, o in (line.split(",") for line in log.read_text().splitlines()[1:])]


def test_weights_add_up_to_the_log(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("workloads", "from-requests", AZURE, *BOTH, "--preset", PRESET, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    requests = requests_of(AZURE)
    prefills = rows_of(tmp_path / "out" / "gdn_prefill_k_last.jsonl")
    decodes = rows_of(tmp_path / "out" / "gdn_decode_k_last.jsonl")
    assert sum(sum(row["sequence_lengths"]) * row["weight"] for row in prefills) == sum(p for p, _ in requests)
    assert sum(row["axes"]["batch_size"] * row["weight"] for row in decodes) == sum(o - 1 for _, o in requests)
    assert len({(*row["sequence_lengths"], "omit" in row) for row in prefills}) == len(prefills)
    assert "400 requests in" in done.stdout
    for name in ("gdn_prefill_k_last", "gdn_decode_k_last"):
        assert load_workloads(tmp_path / "out" / f"{name}.jsonl", definition(name))
    assert gdnspec("validate", tmp_path / "out").returncode == 0


def test_a_state_is_given_where_a_prompt_goes_on(gdnspec: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival,prompt_tokens,output_tokens\n0,150,1\n")
    options = ("--definition", "gdn_prefill_k_last", "--preset", PRESET, "-o", tmp_path / "out")
    assert (
        gdnspec("workloads", "from-requests", log, *options, "--step-tokens", "128", "--running", "8").returncode == 0
    )
    first, second = rows_of(tmp_path / "out" / "gdn_prefill_k_last.jsonl")
    assert (first["sequence_lengths"], first["omit"]) == ([128], ["initial_state"])
    assert second["sequence_lengths"] == [22]
    assert "omit" not in second


def test_the_same_seed_gives_the_same_files(gdnspec: Run, tmp_path: Path) -> None:
    """And these, on any machine: nothing here rests on a library's random numbers or on a clock."""
    options = (*BOTH[2:], "--definition", "gdn_prefill_k_first", "--preset", PRESET, "--reduce", "8")
    for name in ("a", "b"):
        assert gdnspec("workloads", "from-requests", MOONCAKE, *options, "-o", tmp_path / name).returncode == 0
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
        assert len(rows_of(file)) == 8


def test_steps_are_written_in_order(gdnspec: Run, tmp_path: Path) -> None:
    options = (*BOTH, "--preset", PRESET, "-o", tmp_path / "out", "--steps", tmp_path / "steps.jsonl")
    assert gdnspec("workloads", "from-requests", AZURE, *options).returncode == 0
    steps = rows_of(tmp_path / "steps.jsonl")
    clock = 0
    for step in steps:
        assert step["start"] >= clock
        clock = step["start"] + step["times"] * step["duration"]
    assert sum(sum(step["lengths"]) * step["times"] for step in steps) == sum(p for p, _ in requests_of(AZURE))


def test_prefixes_that_are_cached_are_not_prefilled(gdnspec: Run, tmp_path: Path) -> None:
    options = ("--definition", "gdn_prefill_k_last", "--preset", PRESET)

    def prefilled(name: str, *more: str) -> int:
        done = gdnspec("workloads", "from-requests", MOONCAKE, *options, *more, "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
        rows = rows_of(tmp_path / name / "gdn_prefill_k_last.jsonl")
        return sum(sum(row["sequence_lengths"]) * row["weight"] for row in rows)

    everything = sum(json.loads(line)["input_length"] for line in MOONCAKE.read_text().splitlines())
    assert prefilled("without", "--cached-states", "0") == everything
    assert prefilled("with") < 0.9 * everything


def test_speculation_verifies_and_pools_have_slots(gdnspec: Run, tmp_path: Path) -> None:
    options = ("--definition", "gdn_verify_k_last", "--preset", PRESET, "-o", tmp_path, "--drafts", "2")
    assert gdnspec("workloads", "from-requests", AZURE, *options).returncode == 0
    rows = rows_of(tmp_path / "gdn_verify_k_last.jsonl")
    assert {row["axes"]["draft_tokens"] for row in rows} == {3}
    tokens = sum(o - 1 for _, o in requests_of(AZURE))
    verified = sum(row["axes"]["batch_size"] * row["weight"] for row in rows)
    assert tokens / 3 < verified < tokens
    options = ("--definition", "gdn_decode_pool_k_last", "--preset", PRESET, "-o", tmp_path)
    assert gdnspec("workloads", "from-requests", AZURE, *options).returncode == 0
    for row in rows_of(tmp_path / "gdn_decode_pool_k_last.jsonl"):
        slots = row["integers"]["write_slots"]
        assert len(set(slots)) == row["axes"]["batch_size"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no/such.csv", *BOTH), "No such file"),
        ((AZURE, "--definition", "gdn_prefil_k_last"), "did you mean 'gdn_prefill_k_last'?"),
        ((AZURE, *BOTH, "--preset", "qwen"), "no preset 'qwen'"),
        ((AZURE, *BOTH, "--drafts", "3"), "an engine with --drafts verifies and never decodes"),
        ((AZURE, *BOTH, "--definition", "gdn_verify_k_last"), "leave out the verify definition, or the decode"),
        ((AZURE, "--definition", "gdn_verify_k_last", "--drafts", "0"), "a verify definition needs draft tokens"),
        ((AZURE, *BOTH, "--device", "nvidia-h20"), "no trace has the rates of device 'nvidia-h20'"),
        ((AZURE, *BOTH, "--solution", "cuda_deocde"), "did you mean 'cuda_decode'?"),
        ((AZURE, *BOTH, "--columns", "a,b"), "give three different names"),
        ((AZURE, *BOTH, "--columns", "a,b,a"), "give three different names"),
        ((AZURE, *BOTH, "--step-ms", "inf"), "--step-ms"),
        ((AZURE, *BOTH, "--whole", "--step-tokens", "300"), "does not fit into a step of 300"),
        ((AZURE, *BOTH, "--step-tokens", "200"), "a step of 200 tokens is too small for 256 requests"),
        ((AZURE, *BOTH, "--preset", "synthetic-gqa-4x2-d128"), "gdn_decode_k_last with synthetic-gqa-4x2-d128"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_told(gdnspec: Run, tmp_path: Path, arguments: tuple[Any, ...], said: str) -> None:
    preset = () if "--preset" in arguments else ("--preset", PRESET)
    done = gdnspec("workloads", "from-requests", *arguments, *preset, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.rglob("*.jsonl")), "nothing half done is left"


def test_step_times_of_a_slow_kernel_are_warned_of(gdnspec: Run, tmp_path: Path) -> None:
    options = ("--definition", "gdn_prefill_k_last", "--solution", "torch_chunkwise", "--preset", PRESET)
    done = gdnspec("workloads", "from-requests", AZURE, *options, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert re.search(r"warning: prefilling 8192 tokens takes \d{2,} times the bound", done.stderr)


def test_the_order_of_definitions_changes_nothing(gdnspec: Run, tmp_path: Path) -> None:
    names = ("gdn_prefill_k_first", "gdn_prefill_k_last")
    for folder, order in (("a", names), ("b", names[::-1])):
        options = [part for name in order for part in ("--definition", name)]
        done = gdnspec("workloads", "from-requests", AZURE, *options, "--preset", PRESET, "-o", tmp_path / folder)
        assert done.returncode == 0, done.stderr
        assert "warning" not in done.stderr, "a fast prefill has been measured"
    for name in names:
        assert (tmp_path / "a" / f"{name}.jsonl").read_bytes() == (tmp_path / "b" / f"{name}.jsonl").read_bytes()


def test_checkpoints_are_counted_as_the_lines_have_them(gdnspec: Run, tmp_path: Path) -> None:
    """The sum that the command states is that of the file."""
    options = ("--definition", "gdn_prefill_checkpoints", "--preset", PRESET, "--interval", "64")
    done = gdnspec("workloads", "from-requests", AZURE, *options, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    found, ceilings = definition("gdn_prefill_checkpoints"), ceilings_of(solutions()[0].values(), DEVICE)
    lines = load_workloads(tmp_path / "gdn_prefill_checkpoints.jsonl", found)
    assert {line.scalars["checkpoint_interval"] for line in lines} == {64}
    total = sum((line.weight or 0) * bound(work(found, line), ceilings)[0] for line in lines)
    assert f"{total:.4g}" in done.stdout


def test_files_are_overwritten_on_request_only(gdnspec: Run, tmp_path: Path) -> None:
    file = tmp_path / "gdn_decode_k_last.jsonl"
    file.write_text("mine\n")
    options = ("--definition", "gdn_decode_k_last", "--preset", PRESET, "-o", tmp_path)
    assert "exists already" in gdnspec("workloads", "from-requests", AZURE, *options).stderr
    assert file.read_text() == "mine\n"
    assert gdnspec("workloads", "from-requests", AZURE, *options, "--force").returncode == 0


# --- work, time, reduction --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n for n, f in definitions().items() if f.definition.stage in ("prefill", "decode", "verify")]
)
def test_work_is_that_of_the_workload(name: str) -> None:
    """Counted from a few numbers, as it is for millions of steps, and from the line itself."""
    found = definition(name)
    preset = OF_A_MODEL[found.family.name]
    operator = Operator(found, preset, 3 if found.definition.stage == "verify" else 1, 128)
    batches = (
        [(128,), (100, 63), (0, 511, 129, 128), (1,) * 40]
        if operator.ragged
        else [(operator.each,) * n for n in (1, 7, 64)]
    )
    for lengths in batches:
        for carried in (True, False) if operator.ragged else (True,):
            line = operator.line("x", lengths, carried, 1)
            assert operator.work(operator.shape(lengths, carried)) == work(found, line), (lengths, carried)


def test_step_times_are_fitted_to_traces() -> None:
    known = solutions()[0].values()
    traces = measured(known, definition("gdn_decode_k_last"), DEVICE)
    assert len(traces) >= FEWEST
    time = kernel_time(traces, DEVICE)
    assert time is not None
    assert time.off[1] < 0.05, "decode is bytes and a launch"
    assert 1 / time.byte == pytest.approx(ceilings_of(known, DEVICE).copy_bandwidth, rel=0.1)
    assert kernel_time(dict(list(traces.items())[: FEWEST - 1]), DEVICE) is None


def test_a_step_takes_as_long_after_a_kernel_was_edited(tmp_path: Path) -> None:
    found, known = definition("gdn_decode_k_last"), solutions()[0]
    folder = tmp_path / "cuda_decode"
    shutil.copytree(known["cuda_decode"].folder, folder)
    with (folder / "kernel.cu").open("a") as source:
        source.write("// edited\n")
    edited = load_solution(folder)
    assert edited.source_hash != known["cuda_decode"].source_hash
    assert measured([edited], found, DEVICE) == measured([known["cuda_decode"]], found, DEVICE) != {}


OTHER_LOGS = [pytest.param(f"synthetic_{name}.csv", marks=pytest.mark.thorough) for name in ("azure", "burstgpt")]


@pytest.mark.parametrize("log", ["synthetic_mooncake.jsonl", *OTHER_LOGS])
def test_a_few_workloads_predict_the_time_of_all(gdnspec: Run, tmp_path: Path, log: str) -> None:
    options = (*BOTH, "--preset", PRESET)
    for name, more in (("all", ()), ("few", ("--reduce", "32"))):
        done = gdnspec("workloads", "from-requests", ROOT / "samples" / log, *options, *more, "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
    ceilings = ceilings_of(solutions()[0].values(), DEVICE)
    for name in ("gdn_prefill_k_last", "gdn_decode_k_last"):
        found = definition(name)
        total, few = (
            [
                (w.weight, bound(work(found, w), ceilings)[0])
                for w in load_workloads(tmp_path / x / f"{name}.jsonl", found)
            ]
            for x in ("all", "few")
        )
        assert len(few) <= 32
        assert sum(w for w, _ in few) == sum(w for w, _ in total), "every call is stood for"
        assert sum(w * t for w, t in few) == pytest.approx(sum(w * t for w, t in total), rel=0.03)


def test_representatives_are_calls_that_occurred() -> None:
    calls = [Call((64 * (1 + i % 40), 100 + i), bool(i % 2), 1 + i % 5) for i in range(500)]
    seconds = [1e-6 * (5 + sum(call.lengths)) for call in calls]
    few = reduce(calls, seconds, 16, seed=3)
    assert len(few.calls) == 16
    assert all(any(c.lengths == call.lengths and c.carried == call.carried for c in calls) for call in few.calls)
    assert sum(call.times for call in few.calls) == sum(call.times for call in calls)
    assert abs(few.error) < 0.03
    assert reduce(calls, seconds, 16, seed=3) == few
    assert reduce(calls[:9], seconds[:9], 16, seed=3).calls == calls[:9]


# --- stats ------------------------------------------------------------------------------------------------------


@pytest.fixture
def replayed(gdnspec: Run, tmp_path: Path) -> Path:
    done = gdnspec("workloads", "from-requests", AZURE, *BOTH, "--preset", PRESET, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    return tmp_path / "out"


def test_stats_say_what_is_in_a_file(gdnspec: Run, replayed: Path, tmp_path: Path) -> None:
    done = gdnspec("workloads", "stats", replayed, "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    lengths = [x for row in rows_of(replayed / "gdn_prefill_k_last.jsonl") for x in row["sequence_lengths"]]
    row = next(line for line in done.stdout.splitlines() if line.startswith("tokens a sequence  "))
    said = row.removeprefix("tokens a sequence").replace(",", "").split()
    assert int(said[0]) == min(lengths)
    assert int(said[4]) == max(lengths)
    for word in ("launch", "chain", "memory", "compute", "pairs a multiprocessor", "at the bound of nvidia-h200"):
        assert word in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2
    assert "<script" not in page
    assert "http://www.w3.org" in page
    assert "https://" not in page


def test_stats_of_shipped_workloads_and_as_an_image(gdnspec: Run, replayed: Path, tmp_path: Path) -> None:
    shipped = ROOT / "definitions" / "gdn" / "gdn_prefill_k_last" / "workloads.jsonl"
    done = gdnspec("workloads", "stats", shipped)
    assert done.returncode == 0, done.stderr
    assert "gdn_prefill_k_last" in done.stdout
    image = ("workloads", "stats", replayed / "gdn_decode_k_last.jsonl", "-o", tmp_path / "x.svg")
    assert gdnspec(*image).returncode == 0
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


# What a kernel of each stage can do at the same time, by an example of the stage.
SIDE_BY_SIDE = {
    "gdn_prefill_from_conv": "(sequence, head) pairs a multiprocessor",
    "gdn_layer_prefill": "(sequence, head) pairs a multiprocessor",
    "gdn_chunk_state": "(sequence, head) pairs a multiprocessor",
    "gdn_core_decode": "(sequence, head) pairs a multiprocessor",
    "gdn_chunk_wy": "(chunk, head) pairs a multiprocessor",
    "gdn_chunk_output": "(chunk, head) pairs a multiprocessor",
    "gdn_conv1d_prefill": "(token, channel) pairs a multiprocessor",
    "gdn_conv1d_decode": "(token, channel) pairs a multiprocessor",
    "gdn_gated_rms_norm": "(row, head) pairs a multiprocessor",
}


@pytest.mark.parametrize("name", one_in(6, definitions()))
def test_stats_serve_every_definition(capsys: pytest.CaptureFixture[str], name: str) -> None:
    file = definition(name).file.parent / "workloads.jsonl"
    stats([file])
    said = capsys.readouterr().out
    calls = sum(row.get("weight") or 1 for row in rows_of(file))
    assert f"{name}, {file}: {calls} calls" in said
    for word in ("a call", " pairs a multiprocessor", "at the bound of nvidia-h200", "decided by", "memory"):
        assert word in said
    assert SIDE_BY_SIDE.get(name, "") in said
    chain = next(line for line in said.splitlines() if line.startswith("chain "))
    if name in ("gdn_prefill_k_last", "gdn_chunk_state", "gdn_layer_prefill", "gdn_prefill_padded_k_first"):
        assert chain.split()[1] != "0.0%", "long sequences are chains"
    elif "tokens a sequence" not in said or name in ("gdn_chunk_wy", "gdn_chunk_output") or "conv1d" in name:
        assert chain.split()[1:3] == ["0.0%", "0.0%"], "nothing waits for the chunk before"


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (None, ("no/such",), "no/such: no such file or folder"),
        ("mine.jsonl", (), "is not named after a definition"),
        (None, ("-o", "x.png"), "is not named .html, or .svg for one file"),
        (None, ("--device", "tpu-v5"), "the number of multiprocessors of 'tpu-v5' is unknown"),
        (None, ("-o", "no/such/x.html"), "cannot be written"),
    ],
)
def test_stats_that_cannot_be(
    gdnspec: Run, replayed: Path, change: str | None, options: tuple[str, ...], said: str
) -> None:
    file = replayed / "gdn_decode_k_last.jsonl"
    if change:
        (replayed / "sub").mkdir()
        file = file.rename(replayed / "sub" / change)
    done = gdnspec("workloads", "stats", file, *options, cwd=replayed)
    assert done.returncode == 2
    assert said in done.stderr


def test_answers_of_one_token_are_never_decoded(gdnspec: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("arrival,prompt_tokens,output_tokens\n0,100,1\n1,50,1\n")
    done = gdnspec("workloads", "from-requests", log, *BOTH, "--preset", PRESET, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "the log has no call for gdn_decode_k_last" in done.stderr
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["gdn_prefill_k_last.jsonl"]
    alone = gdnspec("workloads", "from-requests", log, *BOTH[2:], "--preset", PRESET, "-o", tmp_path / "none")
    assert alone.returncode == 2
    assert "the log has no call for these definitions" in alone.stderr


@pytest.mark.parametrize("omit", [[], ["initial_state"]])
def test_a_recorded_call_without_a_state_carries_none(omit: list[str]) -> None:
    """Its lengths are in its tensors: the line has the sums alone."""
    line = Workload.model_validate({
        "name": "recorded", "suite": "performance", "preset": PRESET, "tensors": "tensors/x.safetensors", "omit": omit,
        "axes": {"total_seq_len": 30, "num_seqs": 4},
    })  # fmt: skip
    assert shape_of(definition("gdn_prefill_k_last"), line) == Shape(30, 4, 8, not omit)

"""The command line as a stranger meets it: answers, refusals, exit codes."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import forked_command
import pytest
import typer
from conftest import ROOT, Run
from gdnspec.catalog.faults import rejections
from gdnspec.catalog.session_faults import read_table, tables
from helpers_traces import make_trace, write_traces
from patience import PATIENCE, until
from sampled import one_in

RIGHT = "def run{args}:\n    return decode_k_last{args}\n".format(
    args="(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
)
COMMAND = ROOT / "tests/support/command_process.py"
SMALL = ("gdn_decode_k_last", "--workload", "one_row", "--workload", "scale_zero", "--device", "cpu")


def results(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- reading -------------------------------------------------------------------------------------------------


READING = [
    ("list",),
    ("list", "solutions"),
    ("list", "workloads", "-k", "smoke and kda"),
    ("list", "presets"),
    ("list", "faults", "-k", "decay"),
    ("list", "sessions", "-k", "tree"),
    ("show", "slot_reused"),
    ("show", "gdn_prefill_k_last"),
    ("validate",),
    ("which", "gdn_prefill_k_last", "--preset", "qwen3-next-80b-a3b-tp1", "--lengths", "1x8192"),
]


def test_reading_json_never_imports_torch(tmp_path: Path) -> None:
    (file,) = write_traces(tmp_path, [make_trace()])
    run_without_torch(*READING, ("compare", str(file), str(file)))


# Each of these takes longer to import than the commands that only read take in all.
SLOW = {
    "altair", "asyncio", "fastapi", "http.client", "jinja2", "multiprocessing", "numpy", "pandas", "ray",
    "scipy", "sklearn", "sqlite3", "torch", "transformers", "triton", "uvicorn",
}  # fmt: skip


def run_without_torch(*commands: tuple[str, ...], others: Iterable[str] = ()) -> None:
    """Nor any other package that is slow to import, or of the `others`. In one process: to start it takes longer."""
    code = (
        "import sys\nfrom gdnspec.cli.main import main\n"
        f"for arguments in {commands!r}:\n"
        "    sys.argv = ['gdnspec', *arguments]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert end.code == 0, (arguments, end.code)\n"
        f"    heavy = {SLOW | {*others}!r} & set(sys.modules)\n    assert not heavy, (arguments, heavy)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [("--help",), ("workloads", "--help"), ("--version",)])
def test_the_list_of_commands_imports_none_of_them(arguments: tuple[str, ...]) -> None:
    modules = [f"gdnspec.cli.commands.{file.stem}" for file in (ROOT / "tools/gdnspec/cli/commands").glob("[a-z]*.py")]
    assert len(modules) > 20
    modules.remove("gdnspec.cli.commands.workloads")
    run_without_torch(arguments, others=["rich", "gdnspec.catalog", "gdnspec.model.base", *modules])


@pytest.mark.parametrize("width", [80, 700])
@pytest.mark.parametrize("path", [(), ("workloads",)])
def test_the_list_of_commands_says_what_each_says_of_itself(path: tuple[str, ...], width: int) -> None:
    """The list has sentences of its own, as it imports no command."""
    from gdnspec.cli.main import app

    context = typer.Context(typer.main.get_command(app), terminal_width=width)
    group: Any = context.command
    for name in path:
        group = group.get_command(context, name)
    formatter = context.make_formatter()
    group.format_commands(context, formatter)
    shown = " ".join(formatter.getvalue().split())
    for name, command in group.commands.items():
        said = " ".join(command.help.split())
        assert any(f" {name} {said[:end]}." in shown for end, sign in enumerate(said) if sign == "."), name
    assert "..." not in shown.replace("...jsonl", "")


@pytest.mark.parametrize("path", [("check",), ("selftest",), ("workloads", "from-requests"), ("workloads",)])
def test_help_keeps_words_whole(path: tuple[str, ...]) -> None:
    """An option, or `batch-invariant`, in two parts is neither found nor copied."""
    from gdnspec.cli.main import app

    context = typer.Context(typer.main.get_command(app), terminal_width=80)
    command: Any = context.command
    for name in path:
        command = command.get_command(context, name)
    shown = command.get_help(typer.Context(command, info_name=path[-1], parent=context, terminal_width=80))
    assert shown.count("\n") > 10
    assert not [line for line in shown.splitlines() if line.rstrip().endswith("-")]


def test_a_list_is_narrowed_by_words(gdnspec: Run) -> None:
    rows = json.loads(gdnspec("list", "presets", "-k", "kda and tp8", "--json").stdout)
    assert {row["family"] for row in rows} == {"kda"}
    assert all("tp8" in row["preset"] for row in rows), "a word may stand in any column"
    assert gdnspec("show", "kda_decode_k_last").stdout.endswith("gdnspec list solutions -k kda_decode_k_last\n")
    done = gdnspec("list", "regimes", "-k", "no_such_word")
    assert (done.returncode, done.stderr) == (
        2, "gdnspec: no row has the words -k 'no_such_word': gdnspec list regimes shows all\n",
    )  # fmt: skip


def test_faults_are_listed_as_the_selftest_takes_them(gdnspec: Run) -> None:
    rows = json.loads(gdnspec("list", "faults", "--json").stdout)
    by_workloads = [row["name"] for row in rows if row["tried by"] == "selftest"]
    assert sorted(by_workloads) == [*rejections()]
    assert {row["name"] for row in rows if row["tried by"] == "selftest --sessions"} == {
        fault.name for table in tables() for fault in read_table(table)
    }
    assert {row["family"] for row in rows} >= {"gdn", "kda"}
    assert all(row["fault"] for row in rows)
    reports = {row["name"]: row["reports"] for row in rows}
    assert reports["restores_the_block_before"] == "vllm-project/vllm#55600"
    assert reports["kda_bound_clamps_softplus"] == "lightseekorg/tokenspeed#847"


def test_sessions_are_listed_and_shown_by_step(gdnspec: Run) -> None:
    rows = json.loads(gdnspec("list", "sessions", "--json").stdout)
    assert len(rows) >= 40
    assert {row["suite"] for row in rows} == {"smoke", "conformance"}
    assert all(row["covers"] for row in rows)
    shown = gdnspec("show", "drafts_accepted_in_part").stdout
    assert "gdnspec check --sessions --workload drafts_accepted_in_part" in shown
    line = json.loads(gdnspec("show", "drafts_accepted_in_part", "--json").stdout)
    for number, step in enumerate(line["steps"]):
        assert re.search(rf"^{number} +{step['do']}", shown, re.MULTILINE)
    assert "slots [2, 3, 4], accept 2" in shown
    assert "(did you mean 'slot_reused'?)" in gdnspec("show", "slot_reusd").stderr
    both = gdnspec("show", "moved")
    assert "request" in both.stdout
    assert "workloads have this name too: gdnspec show gdn_decode_pool_k_last" in both.stderr


def test_a_session_of_a_file_is_shown(gdnspec: Run, tmp_path: Path) -> None:
    steps = [{"do": "admit", "request": "a", "slot": 1}, {"do": "decode", "rows": [{"request": "a"}, None]}]
    line = {"name": "mine", "suite": "smoke", "preset": "synthetic-gva-1x2-d64", "regime": "typical", "seed": 1}
    line |= {"slots": 2, "steps": [*steps, {"do": "finish", "request": "a"}]}
    (tmp_path / "own.jsonl").write_text(json.dumps(line) + "\n")
    done = gdnspec("show", "mine", "--workloads", "own.jsonl", cwd=tmp_path)
    assert re.search(r"^1 +decode .*padding", done.stdout, re.MULTILINE)
    assert "None" not in done.stdout
    assert "gdnspec check --sessions --workload mine --workloads own.jsonl" in done.stdout
    refused = gdnspec("show", "mime", "--workloads", "own.jsonl", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "own.jsonl: no session 'mime' (did you mean 'mine'?)" in refused.stderr


def test_list_and_show_speak_json(gdnspec: Run) -> None:
    rows = json.loads(gdnspec("list", "--json").stdout)
    assert {row["definition"] for row in rows} >= {"gdn_prefill_k_last", "gdn_decode_k_first"}
    shown = json.loads(gdnspec("show", "gdn_decode_k_last", "--json").stdout)
    assert shown["conventions"]["padding_slot"] == "minus_one", "a default is shown as well"
    assert shown == json.loads((ROOT / "definitions/gdn/gdn_decode_k_last/definition.json").read_text()) | {
        key: shown[key]
        for key in ("axes", "conventions", "inputs", "outputs", "symmetries", "second_reference", "blocks")
    }
    assert json.loads(gdnspec("show", "qwen3-next-80b-a3b-tp1").stdout)["axes"]["num_v_heads"] == 32
    assert json.loads(gdnspec("show", "gdn_decode_k_last/one_row").stdout)["axes"] == {"batch_size": 1}
    assert "kda_decode_k_last" in json.loads(gdnspec("show", "kda", "--json").stdout)["definitions"]
    meant = json.loads(gdnspec("show", "typical", "--json").stdout)["typical"]
    assert meant.keys() == {"gdn", "kda"}
    assert meant["gdn"] != meant["kda"], "each family draws it in its own way"


def test_show_prints_brackets_as_they_are(gdnspec: Run) -> None:
    assert "rows cu_seqlens[n] to cu_seqlens[n + 1]" in " ".join(gdnspec("show", "gdn_prefill_k_last").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("show", "gdn_prefil_k_last"), "did you mean 'gdn_prefill_k_last'?"),
        (("check", "gdn_decode"), "no definition 'gdn_decode'"),
        (("check", "--solution", "torch_recurent"), "did you mean 'torch_recurrent'?"),
        (("check", "--suite", "smok"), "did you mean 'smoke'?"),
        (("check", "--workload", "one_rwo"), "did you mean 'one_row'?"),
        (("check", "--device", "tpu"), "no device 'tpu'"),
        (("check", "--solutions-dir", "no/such/folder"), "no such folder: no/such/folder"),
        (("check", "--workloads", "x.jsonl"), "--workloads holds workloads of one definition"),
        (("validate", "no/such/file.json"), "no such file"),
        (("new", "Bad-Name", "--definition", "gdn_decode_k_last"), "'Bad-Name'"),
        (("new", "mine", "--definition", "gdn_decode"), "no definition 'gdn_decode'"),
        (("new", "torch_recurrent", "--definition", "gdn_decode_k_last"), "exists already"),
        (("workloads", "generate", "gdn_decode_k_last", "--preset", "none", "-o", "-"), "no preset 'none'"),
        (("workloads", "generate", "gdn_decode_k_last", "--preset", "qwen3.5-9b-tp1", "--lengths", "3", "-o", "-"),
         "--batch SPEC"),
        (("workloads", "generate", "gdn_prefill_k_last", "--preset", "qwen3.5-9b-tp1", "-o", "-"), "--lengths SPEC"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_one_line_and_exit_code_2(gdnspec: Run, arguments: tuple[str, ...], says: str) -> None:
    done = gdnspec(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


AMOUNTS = {
    ("--timeout",): (
        ("check", *SMALL, "--solution", "torch_recurrent"),
        ("bench", "gdn_decode_k_last", "--device", "cpu", "--solution", "torch_recurrent"),
        ("submit", "torch_recurrent", "--device", "cpu"),
        ("intake", "no.bundle.tar"),
        ("selftest", "no_decay"),
        ("serve", "--users"),
    ),
    ("--memory", "--disk", "--minutes"): (("intake", "no.bundle.tar"),),
    ("--days", "--lease", "--upload-limit", "--minutes"): (("serve", "--users"),),
}


@pytest.mark.parametrize("amount", one_in(2, ["inf", "1e300", "nan", "-inf"]))
def test_an_amount_that_no_clock_or_limit_takes_is_exit_code_2(gdnspec: Run, amount: str) -> None:
    for options, commands in AMOUNTS.items():
        for command, option in itertools.product(commands, options):
            done = gdnspec(*command, option, amount)
            assert done.returncode == 2, (command, option, done.stderr)
            assert f"Invalid value for '{option}'" in done.stderr


def test_an_unknown_option_or_command_is_exit_code_2(gdnspec: Run) -> None:
    assert gdnspec("chekc").returncode == 2
    assert gdnspec("check", "--solutoin", "x").returncode == 2


def test_a_reader_that_leaves_early_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m gdnspec list workloads -k smoke | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_help_names_the_exit_codes(gdnspec: Run) -> None:
    for command in ((), ("check",)):
        text = " ".join(gdnspec(*command, "--help").stdout.split())
        assert "0 all passed; 1 something failed; 2 the request or a file is invalid; 3 nothing could run here" in text


def test_the_help_of_every_command_has_its_exit_codes() -> None:
    from gdnspec.cli.main import app

    def walked(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, command
        for name, below in getattr(command, "commands", {}).items():
            yield from walked(below, f"{path} {name}")

    every = dict(walked(typer.main.get_command(app), "gdnspec"))
    assert {"gdnspec check", "gdnspec workloads generate", "gdnspec vectors judge"} <= set(every)
    assert [path for path, command in every.items() if "Exit codes: 0" not in (command.epilog or "")] == []


# --- validate ------------------------------------------------------------------------------------------------


def test_validate_names_file_place_and_remedy(gdnspec: Run, tmp_path: Path) -> None:
    folder = tmp_path / "gdn_decode_k_last"
    shutil.copytree(ROOT / "definitions/gdn/gdn_decode_k_last", folder)
    definition = json.loads((folder / "definition.json").read_text())
    definition["inputs"][3]["optionl"] = True
    (folder / "definition.json").write_text(json.dumps(definition))
    done = gdnspec("validate", folder / "definition.json")
    assert done.returncode == 2
    assert "definition.json: /inputs/3/optionl: unknown key 'optionl' (did you mean 'optional'?)" in done.stderr


def test_a_derived_axis_without_a_value_is_one_message(gdnspec: Run, tmp_path: Path) -> None:
    folder = tmp_path / "gdn_decode_k_last"
    folder.mkdir()
    text = (ROOT / "definitions/gdn/gdn_decode_k_last/definition.json").read_text()
    text = text.replace('"expression": "num_v_heads"', '"expression": "num_v_heads // (head_size - head_size)"')
    (folder / "definition.json").write_text(text)
    done = gdnspec("validate", folder / "definition.json")
    assert done.returncode == 2
    assert "axis 'num_o_heads'" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_validate_reports_every_bad_line_of_a_workload_file(gdnspec: Run, tmp_path: Path) -> None:
    good = (ROOT / "definitions/gdn/gdn_prefill_k_last/workloads.jsonl").read_text().splitlines()[0]
    line = json.loads(good)
    short = {**line, "name": "short", "sequence_lengths": [1, 2]}
    twice = {**line, "sufite": "smoke"}
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join([good, json.dumps(short), json.dumps(twice), good, "{", ""]))
    done = gdnspec("validate", file, "--definition", "gdn_prefill_k_last")
    assert done.returncode == 2
    assert "line 3: /sufite: unknown key 'sufite'" in done.stderr
    assert "line 5" in done.stderr
    file.write_text("\n".join([good, json.dumps(short), good]))
    done = gdnspec("validate", file, "--definition", "gdn_prefill_k_last")
    assert "line 2" in done.stderr
    assert "cu_seqlens ends at total_seq_len" in done.stderr
    assert "line 1 already has the name 'ragged'" in done.stderr
    orphan = gdnspec("validate", file)
    assert orphan.returncode == 2
    assert "--definition" in orphan.stderr


def test_validate_reads_solutions_results_and_tensors(
    gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_solution(RIGHT)
    assert gdnspec("validate", folder).returncode == 0
    manifest = json.loads((folder / "solution.json").read_text())
    for change, says in (
        ({"entries": {"gdn_decode_k_last": {"entry": "kernel.py::ran", "call": "return"}}}, "did you mean 'run'?"),
        (
            {"entries": {"gdn_decode_k_last": {"entry": "kernel.py::step", "call": "return"}}},
            "step does not take state, A_log",
        ),
        (
            {"entries": {"gdn_decode_k_last": {"entry": "kernel.py::run", "call": "out"}}},
            "does not take output, new_state",
        ),
        ({"entries": {"gdn_decode_k_last": {"entry": "other.py::run", "call": "return"}}}, "'other.py' is not among"),
        ({"sources": ["kernel.py", "gone.py"]}, "no file 'gone.py'"),
        ({"sources": ["../kernel.py"]}, "not a path inside"),
        ({"schema_version": 2}, "this gdnspec reads version 1"),
        ({"entries": {"gdn_decode": {"entry": "kernel.py::run", "call": "return"}}}, "no definition 'gdn_decode'"),
        ({"name": "other"}, "the name 'other' differs from its folder's, 'under_test'"),
    ):
        (folder / "solution.json").write_text(json.dumps({**manifest, **change}))
        done = gdnspec("validate", folder)
        assert done.returncode == 2, change
        assert says in done.stderr, (change, done.stderr)
    tensors = ROOT / "definitions/gdn/gdn_decode_k_last/tensors/qwen3_next.safetensors"
    assert gdnspec("validate", tensors).returncode == 0
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(tensors.read_bytes()[:100_000])
    done = gdnspec("validate", cut, "--definition", "gdn_decode_k_last")
    assert done.returncode == 2
    assert "cut.safetensors: not a complete safetensors file" in done.stderr
    done = gdnspec("validate", tensors, "--definition", "gdn_prefill_k_last")
    assert done.returncode == 2
    assert "'A_log' is not an input of gdn_prefill_k_last" in done.stderr


def test_validate_holds_the_tensors_of_a_file_of_workloads_to_its_lines(gdnspec: Run, tmp_path: Path) -> None:
    """A line whose tensors another definition recorded was called valid, and refused by everything that draws it."""
    folder = ROOT / "definitions/kda/kda_decode_k_last"
    line = next(row for row in map(json.loads, (folder / "workloads.jsonl").open()) if "tensors" in row)
    right, other = line["tensors"], "elsewhere.safetensors"
    file = tmp_path / "mine.jsonl"
    shutil.copy(ROOT / "definitions/kda/kda_prefill_raw_gates" / right, tmp_path / other)
    for change, code, says in (
        ({}, 0, "1 file valid"),
        ({"tensors": other}, 2, "elsewhere.safetensors: cu_seqlens: 'cu_seqlens' is not an input"),
        ({"axes": {"batch_size": 4}}, 2, "the shape is [3, 1, 2, 64], not [4, 1, 2, 64]"),
        ({"preset": "synthetic-gva-1x2-d64"}, 2, "the shape is [3, 1, 2, 64], not [3, 1, 1, 64]"),
        ({"sha256": "0" * 64}, 2, "says sha256 000000000000.., the inputs have"),
    ):
        file.write_text(json.dumps({**line, **change}) + "\n")
        done = gdnspec("validate", file, "--definition", folder.name)
        assert (done.returncode, says in done.stdout + done.stderr) == (code, True), (change, done.stderr)


def test_a_source_that_cannot_be_read_is_its_solutions_problem_alone(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdnspec.catalog.solutions import load_solution, solutions
    from gdnspec.model.errors import SpecError

    folder = make_solution(RIGHT, sources=["kernel.py", "table.bin"])
    (folder / "table.bin").write_bytes(b"\0")
    opened = Path.open

    def refused(path: Path, *arguments: object, **named: object) -> object:  # root may read every file
        if path.name == "table.bin":
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(SpecError, match=r"/sources/1: 'table.bin' cannot be read: Permission denied"):
        load_solution(folder)
    found, problems = solutions(folder.parent)
    assert "under_test" not in found
    assert "torch_recurrent" in found
    assert len(problems) == 1


# --- workloads generate ----------------------------------------------------------------------------------------


def test_generated_workloads_are_the_same_each_time_and_can_be_checked(gdnspec: Run, tmp_path: Path) -> None:
    base = (
        "workloads",
        "generate",
        "gdn_prefill_k_first",
        "--preset",
        "synthetic-gva-1x2-d64",
        "--regime",
        "hard_reset",
    )
    options = ("--lengths", "lognormal:20:0.8", "--batch", "uniform:1:4", "--count", "3", "--seed", "7")
    first = gdnspec(*base, *options, "-o", "-")
    assert first.returncode == 0, first.stderr
    assert first.stdout == gdnspec(*base, *options, "-o", "-").stdout
    assert first.stdout != gdnspec(*base, *options[:-1], "8", "-o", "-").stdout
    file = tmp_path / "more.jsonl"
    written = gdnspec(*base, *options, "-o", file)
    assert written.returncode == 0
    assert file.read_text() == first.stdout
    assert len({line["sha256"] for line in results(file)}) == 3
    assert gdnspec("validate", file, "--definition", "gdn_prefill_k_first").returncode == 0
    done = gdnspec(
        "check", "gdn_prefill_k_first", "--workloads", file, "--solution", "torch_chunkwise", "--device", "cpu"
    )
    assert done.returncode == 0, done.stderr
    assert "3 of 3" in done.stdout
    again = gdnspec(*base, *options, "-o", file)
    assert again.returncode == 2
    assert "exists already" in again.stderr


# --- check -----------------------------------------------------------------------------------------------------


def test_exit_codes_of_a_check(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT).parent
    here = ("--solutions-dir", root, "--solution", "under_test")
    assert gdnspec("check", *SMALL, *here).returncode == 0
    make_solution(RIGHT.replace("return", "o, s =") + "    return o, s * 2\n")
    failed = gdnspec("check", *SMALL, *here)
    assert failed.returncode == 1
    assert "INCORRECT_NUMERICAL" in failed.stdout
    assert "repeat: gdnspec check gdn_decode_k_last --solution under_test --workload one_row" in failed.stderr
    make_solution(RIGHT, requires={"device": "any", "packages": ["no-such-package"]})
    nothing = gdnspec("check", *SMALL, *here)
    assert nothing.returncode == 3
    assert "needs no-such-package" in nothing.stdout
    make_solution(RIGHT, schema_version=9)
    assert gdnspec("check", *SMALL, *here).returncode == 2


def test_one_broken_folder_does_not_hide_the_others(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    """Of a definition that few serve: all of them are checked."""
    root = make_solution(RIGHT, name="broken", sources=["kernel.py", "gone.py"]).parent
    right = Path(shutil.copytree(ROOT / "solutions/torch_layer", root / "right"))
    manifest = json.loads((right / "solution.json").read_text())
    (right / "solution.json").write_text(json.dumps({**manifest, "name": "right"}))
    workloads = ("--workload", "tiny", "--workload", "eps_given")
    done = gdnspec("check", "gdn_gated_rms_norm", *workloads, "--device", "cpu", "--solutions-dir", root)
    assert done.returncode == 2
    assert "no file 'gone.py'" in done.stderr
    assert "2 of 2" in next(line for line in done.stdout.splitlines() if " right " in line)


def test_the_repeat_command_repeats(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT.replace("return", "o, s =") + "    return o, s * 2\n").parent
    failed = gdnspec("check", *SMALL, "--solutions-dir", root, "--solution", "under_test")
    command = next(line for line in failed.stderr.splitlines() if "repeat:" in line).split("repeat: gdnspec ")[1]
    again = gdnspec(*command.split())
    assert again.returncode == 1
    assert "0 of 1" in again.stdout


def test_results_are_recorded_and_an_interrupted_run_resumes(
    gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_solution(RIGHT).parent
    file = tmp_path / "results.jsonl"
    command = ("check", *SMALL, "--solutions-dir", root, "--solution", "under_test", "--json", file)
    assert gdnspec(*command).returncode == 0
    lines = file.read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["PASSED", "PASSED"]
    assert gdnspec("validate", file).returncode == 0
    # As if the power had gone in the middle of the second line.
    file.write_text(lines[0] + "\n" + lines[1][:40])
    resumed = gdnspec(*command)
    assert resumed.returncode == 0
    assert "1 of 2 results taken from" in resumed.stderr
    assert "line 2" in resumed.stderr, "the cut line is reported"
    assert "2 of 2" in resumed.stdout
    # Or of the first one: the file is its own, with or without what came after.
    for cut in (lines[0][:1], lines[0][:40]):
        file.write_text(cut)
        for warned in range(2):
            again = gdnspec(*command)
            assert again.returncode == 0, again.stderr
            assert "line 1" in again.stderr
            assert ("2 of 2 results taken from" in again.stderr) == bool(warned)
    # A changed solution is another question.
    make_solution(RIGHT + "# changed\n")
    changed = gdnspec(*command)
    assert "taken from" not in changed.stderr


def test_json_to_stdout_is_json_alone(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT).parent
    done = gdnspec("check", *SMALL, "--solutions-dir", root, "--solution", "under_test", "--json", "-")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["status"] for row in rows] == ["PASSED", "PASSED"]
    assert rows[0]["outputs"][0]["budget"]


def test_ctrl_c_keeps_what_was_measured(make_solution: Callable[..., Path], tmp_path: Path) -> None:
    stays = "    import time\n    if q.shape[0] == 1: open('called', 'w'), time.sleep(9600)\n"
    slow = RIGHT.replace(":\n", f":\n{stays}", 1)
    root = make_solution(slow).parent
    file = tmp_path / "results.jsonl"
    workloads = ("--workload", "scale_zero", "--workload", "one_row")  # scale_zero comes first in the file
    command = ["check", "gdn_decode_k_last", *workloads, "--device", "cpu", "--solutions-dir", str(root)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = [*command, "--solution", "under_test", "--json", str(file)]
    process = forked_command.Forked(COMMAND, words, tmp_path / "err", {"TMPDIR": str(scratch)})
    until(lambda: list(scratch.glob("gdnspec-*/called")))  # the second workload's call: the first has its result
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    out, err = process.out, (tmp_path / "err").read_text()
    assert "interrupted after 1 of 2" in err
    assert "Traceback" not in err
    assert "1 of 2 judged" in out, "what was measured is shown, and no verdict on the rest"
    assert "not reached: 1 of 2 workloads" in out
    assert [row["workload"] for row in results(file)] == ["scale_zero"]


def test_an_unwritable_cache_costs_time_and_nothing_else(
    gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_solution(RIGHT).parent
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    done = gdnspec(
        "check", *SMALL, "--solutions-dir", root, "--solution", "under_test", env={"GDNSPEC_CACHE": str(blocked)}
    )
    assert done.returncode == 0
    assert done.stderr.count("cannot write expected values") == 1
    assert "set GDNSPEC_CACHE" in done.stderr


def test_an_unwritable_results_file_is_refused_before_anything_runs(gdnspec: Run, tmp_path: Path) -> None:
    done = gdnspec("check", *SMALL, "--solution", "torch_recurrent", "--json", tmp_path / "no" / "such" / "r.jsonl")
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_an_invalid_workload_is_never_a_pass(gdnspec: Run, tmp_path: Path) -> None:
    line = json.loads((ROOT / "definitions/gdn/gdn_decode_k_last/workloads.jsonl").read_text().splitlines()[0])
    file = tmp_path / "w.jsonl"
    file.write_text(json.dumps({**line, "sha256": "0" * 64}))
    done = gdnspec(
        "check", "gdn_decode_k_last", "--workloads", file, "--solution", "torch_recurrent", "--device", "cpu"
    )
    assert done.returncode == 1
    assert "INVALID_WORKLOAD" in done.stdout
    assert "but the workload says 000000000000.. (if they are meant to differ, take sha256 out of" in done.stderr


def test_a_name_that_is_taken_is_never_judged_in_silence(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT, name="torch_recurrent").parent
    done = gdnspec("check", *SMALL, "--solutions-dir", root, "--solution", "torch_recurrent")
    assert done.returncode == 2
    assert "already has the name 'torch_recurrent'" in done.stderr


@pytest.mark.thorough
def test_what_may_change_is_not_resumed(gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path) -> None:
    root = make_solution(
        RIGHT.replace(
            ":\n",
            f":\n    import os, time\n    time.sleep(0 if os.path.exists({str(tmp_path / 'fast')!r}) else 9600)\n",
            1,
        )
    ).parent
    file = tmp_path / "results.jsonl"
    command = ("check", "gdn_decode_k_last", "--workload", "one_row", "--device", "cpu", "--solutions-dir", root)
    options = ("--solution", "under_test", "--json", file)
    assert gdnspec(*command, *options, "--timeout", "0.5").returncode == 1
    (tmp_path / "fast").touch()
    longer = gdnspec(*command, *options, "--timeout", f"{PATIENCE:g}")
    assert longer.returncode == 0, longer.stderr
    again = gdnspec(*command, *options)
    assert "1 of 1 results taken from" in again.stderr


def test_a_failure_taken_from_a_file_is_told_again(
    gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_solution(RIGHT.replace("return", "o, s =") + "    return o, s * 2\n").parent
    command = ("check", *SMALL, "--solutions-dir", root, "--solution", "under_test", "--json", tmp_path / "r.jsonl")
    first, second = gdnspec(*command), gdnspec(*command)
    assert (first.returncode, second.returncode) == (1, 1)
    assert "2 of 2 results taken from" in second.stderr
    assert second.stderr.count("INCORRECT_NUMERICAL  under_test") == 2


def test_results_are_never_appended_to_something_else(gdnspec: Run, tmp_path: Path) -> None:
    victim = tmp_path / "victim.py"
    victim.write_text("precious = 1\n")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path, says in ((victim, "other than results"), (Path("/dev/full"), "regular file"), (tmp_path, "folder")):
        done = gdnspec("check", *SMALL, "--solution", "torch_recurrent", "--json", path)
        assert done.returncode == 2, path
        assert says in done.stderr
    assert victim.read_text() == "precious = 1\n"
    for command in (("validate", loop), ("check", *SMALL, "--solution", "torch_recurrent", "--json", loop)):
        assert gdnspec(*command).returncode == 2


@pytest.mark.thorough
def test_the_repeat_command_survives_a_shell(gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path) -> None:
    spaced = tmp_path / "two words"
    make_solution(RIGHT.replace("return", "o, s =") + "    return o, s * 2\n").parent.rename(spaced)
    failed = gdnspec("check", *SMALL, "--solutions-dir", spaced, "--solution", "under_test", "--timeout", "50")
    command = next(line for line in failed.stderr.splitlines() if "repeat:" in line).split("repeat: gdnspec ")[1]
    done = subprocess.run(f"{sys.executable} -m gdnspec {command}", shell=True, capture_output=True, text=True)
    assert done.returncode == 1
    assert "0 of 1" in done.stdout
    assert "--timeout 50" in command


def test_a_solutions_folder_may_be_the_current_one(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    folder = make_solution(RIGHT)
    done = gdnspec("check", *SMALL, "--solutions-dir", ".", "--solution", "under_test", cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("supports", ["head_size % (num_q_heads - num_q_heads) == 0", "1 in 5", "sqrt() == 1"])
@pytest.mark.thorough
def test_a_condition_without_a_value_concerns_its_solution_alone(
    gdnspec: Run, make_solution: Callable[..., Path], supports: str
) -> None:
    make_solution(RIGHT, name="right")
    entry = {"entry": "kernel.py::run", "call": "return", "supports": [supports]}
    root = make_solution(RIGHT, name="odd", entries={"gdn_decode_k_last": entry}).parent
    done = gdnspec("check", *SMALL, "--solutions-dir", root, "--solution", "right", "--solution", "odd")
    assert done.returncode == 0, done.stderr
    assert "2 of 2" in next(line for line in done.stdout.splitlines() if " right " in line)
    assert "unsupported: odd" in done.stdout


def test_a_terminal_that_knows_no_unicode_is_served(gdnspec: Run, make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT, description="größer").parent
    environment = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    assert gdnspec("show", "under_test", "--solutions-dir", root, env=environment).returncode == 0


@pytest.mark.thorough
def test_a_closed_stderr_costs_no_verdict(make_solution: Callable[..., Path]) -> None:
    root = make_solution(RIGHT).parent
    command = f"{sys.executable} -m gdnspec check {' '.join(SMALL)} --solutions-dir {root} --solution under_test 2>&-"
    done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert "2 of 2" in done.stdout


def test_a_polite_end_leaves_nothing_behind(make_solution: Callable[..., Path], tmp_path: Path) -> None:
    stays = "    import time; open('called', 'w').close(); time.sleep(9600)\n"
    root = make_solution(RIGHT.replace(":\n", f":\n{stays}", 1)).parent
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ["check", *SMALL, "--solutions-dir", str(root), "--solution", "under_test"]
    process = forked_command.Forked(COMMAND, words, tmp_path / "err", {"TMPDIR": str(scratch)})
    until(lambda: list(scratch.glob("gdnspec-*/called")))
    for _ in range(2):  # whoever ends a whole group may ask twice
        process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 130
    out, err = process.out, (tmp_path / "err").read_text()
    assert "interrupted after 0 of 2" in err
    assert "not reached: 2 of 2 workloads" in out
    assert not list(scratch.glob("gdnspec-*"))


def test_cuda_asked_for_where_there_is_none(gdnspec: Run) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = gdnspec("check", "--device", "cuda")
    assert done.returncode == 3
    assert "no CUDA GPU" in done.stderr


def test_doctor_says_what_runs_here(gdnspec: Run) -> None:
    done = gdnspec("doctor", "--json")
    said = json.loads(done.stdout)
    assert said["solutions"]["torch_recurrent"]["cpu"] == "yes"
    assert "needs a CUDA GPU" in said["solutions"]["cuda_recurrent"]["cpu"]
    assert said["machine"]["torch"]
    assert said["machine"]["seccomp"] == "yes"
    assert said["machine"]["namespaces"] == "yes" or "none: " in said["machine"]["namespaces"]
    assert said["machine"]["intake"].startswith("fully isolated on ")


@pytest.mark.parametrize(
    ("without", "key", "says", "full"),
    [
        ("landlock_create_ruleset=444", "isolation", "none: this Linux has no Landlock", False),
        ("unshare", "namespaces", "none: this user may not make namespaces here", True),
    ],
)
def test_doctor_names_each_wall_that_is_missing(without: str, key: str, says: str, full: bool) -> None:
    """Landlock of Linux 6.12 makes up for namespaces."""
    from gdnspec.sandbox.child import landlock

    if landlock.abi() < 6:
        pytest.skip("this Linux has no Landlock that scopes signals")
    script, env = ROOT / "tests/support/without_system_calls.py", {**os.environ, "WITHOUT": without}
    said = json.loads(forked_command.run(["doctor", "--json"], env, script=script).stdout)["machine"]
    assert said[key] == says
    assert said["seccomp"] == "yes"
    assert said["intake"].startswith("fully isolated") == full, said["intake"]
    assert full or "--trusted" in said["intake"]


def test_a_verdict_that_somebody_else_wrote_is_not_believed(
    gdnspec: Run, make_solution: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_solution(RIGHT.replace("return ", "return tuple(2 * x for x in ") + "    )\n").parent
    file = tmp_path / "verdicts.jsonl"
    command = ["check", "gdn_decode_k_last", "--workload", "one_row", "--device", "cpu", "--solutions-dir", root]
    command += ["--solution", "under_test", "--json", file]
    assert gdnspec(*command).returncode == 1
    again = gdnspec(*command)
    assert again.returncode == 1
    assert "1 of 1 results were taken from" in again.stdout
    file.write_text(file.read_text().replace('"INCORRECT_NUMERICAL"', '"PASSED"'))
    edited = gdnspec(*command)
    assert edited.returncode == 1, "it is judged again"
    assert "1 results were not recorded by this judge, or were changed since" in edited.stderr.replace("\n", " ")

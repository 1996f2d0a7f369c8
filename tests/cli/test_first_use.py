"""The command as a new user meets it: without torch, with a typo, in the middle of writing a kernel."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import RIGHT_DECODE, ROOT, Run
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import load_workloads
from gdnspec.cli import offered
from gdnspec.cli.commands import generate
from gdnspec.cli.commands.validate import validate
from gdnspec.cli.matching import matching
from gdnspec.cli.selection import unserved
from gdnspec.cli.targets import split
from gdnspec.cli.verdicts import Summary, largest_error, print_summary
from gdnspec.model.errors import SpecError, nearest
from gdnspec.model.result import CheckResult
from watched_kernel import NAME, write_while_it_waits

# Each command in turn in one process that lacks packages: most of the time would be to start Python.
LACKING = """
import contextlib, io, json, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from gdnspec.cli import console
from gdnspec.cli.main import main
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["gdnspec", *arguments]
    console.err.cache_clear()
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
    found.append([code, err.getvalue()])
print(json.dumps(found))
"""


def without(packages: Iterable[str], commands: Iterable[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Exit code and stderr of each command in a Python that lacks these packages."""
    words = [sys.executable, "-c", LACKING, json.dumps(list(commands)), *packages]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return [(code, said) for code, said in json.loads(done.stdout)]


def without_torch(commands: Iterable[tuple[str, ...]]) -> list[tuple[int, str]]:
    return without(("torch", "triton"), commands)


RUNNING = {
    "doctor": ("doctor",),
    "check": ("check", "gdn_decode_k_last", "--workload", "one_row"),
    "bench": ("bench", "gdn_decode_k_last"),
    "submit": ("submit", "torch_recurrent"),
    "freeze": ("workloads", "freeze", "gdn_decode_k_last"),
}


def test_without_torch_a_command_says_in_one_line_what_to_install() -> None:
    for name, (code, said) in zip(RUNNING, without_torch(RUNNING.values()), strict=True):
        assert (code, said.count("\n")) == (3, 1), f"{name}: {said}"
        assert "this command needs torch" in said, name
        assert "pip install 'gdnspec[run]'" in said, name


EXTRAS = {
    "serve": ("fastapi", ("serve",)),
    "serving": (
        "sklearn",
        ("workloads", "from-requests", "x", "--definition", "gdn_decode_k_last", "--preset", "x", "-o", "x"),
    ),
    "onnx": ("onnx", ("vectors", "export", "gdn_decode_k_last", "--format", "onnx-backend", "--out", "x")),
}


def test_a_missing_extra_has_the_exit_code_of_a_missing_torch() -> None:
    packages, commands = zip(*EXTRAS.values(), strict=True)
    for extra, (code, said) in zip(EXTRAS, without(packages, commands), strict=True):
        assert (code, said.count("\n")) == (3, 1), f"{extra}: {said}"
        assert f"pip install 'gdnspec[{extra}]'" in said, extra


# --- mistakes are found before torch is imported --------------------------------------------------------------------

TUNE = ("tune", "gdn_decode_k_last", "--preset", "qwen3-next-80b-a3b-tp4", "--batch", "8")
TYPOS = {
    "list": (("list", "definition"), "did you mean 'definitions'?"),
    "list words": (("list", "-k", "one and"), "combine words with and, or, not"),
    "new in a language": (("new", "x", "--definition", "x", "--language", "pyton"), "did you mean 'python'?"),
    "check a definition": (("check", "gdn_decode_k_lst"), "did you mean 'gdn_decode_k_last'?"),
    "check a solution": (("check", "--solution", "torch_recurent"), "did you mean 'torch_recurrent'?"),
    "check a suite": (("check", "--suite", "smok"), "did you mean 'smoke'?"),
    "check a workload": (("check", "gdn_decode_k_last", "--workload", "one_rwo"), "did you mean 'one_row'?"),
    "check a device": (("check", "--device", "tpu"), "no device 'tpu'"),
    "check a folder of kernels": (
        ("check", "solutions"),
        "it holds solutions: name one, such as solutions/cuda_decode",
    ),
    "check words": (("check", "-k", "one and"), "combine words with and, or, not"),
    "check a file": (("check", "no/such/kernel.py"), "no such file or folder"),
    "check a module": (("check", "no_such_module:run"), "no module 'no_such_module'"),
    "check into a file": (("check", "gdn_decode_k_last", "--json", "no/such/x"), "cannot be written"),
    "bench a definition": (("bench", "gdn_decode_k_lst"), "did you mean 'gdn_decode_k_last'?"),
    "bench a folder": (
        ("bench", "solutions/torch_recurrent"),
        "add --solution torch_recurrent --solutions-dir solutions",
    ),
    "bench against": (("bench", "gdn_decode_k_last", "--against", "torch_recurent"), "did you mean"),
    "bench a device": (("bench", "--device", "tpu"), "no device 'tpu'"),
    "bench an executor": (("bench", "--executor", "rya"), "no executor 'rya'"),
    "bench into a file": (("bench", "gdn_decode_k_last", "--json", "no/such/x"), "cannot be written"),
    "tune a device": ((*TUNE, "--device", "tpu"), "no device 'tpu': --device takes cuda or cpu"),
    "tune a solution": ((*TUNE, "--solution", "torch_recurent"), "did you mean 'torch_recurrent'?"),
    "tune a preset": ((*TUNE[:3], "qwen3-next-tp4", *TUNE[4:]), "did you mean 'qwen3-next-80b-a3b-tp4'?"),
    "tune a preset of another family": (
        ("tune", "kda_decode_k_last", *TUNE[2:]),
        "is a preset of the family gdn, not of kda: gdnspec list presets",
    ),
    "draw a regime of another family": (
        (
            "workloads",
            "generate",
            "kda_decode_k_last",
            "--preset",
            "kimi-k3-tp8",
            "--regime",
            "forget_regions",
            "-o",
            "-",
        ),
        "is a regime of the family gdn, not of kda: gdnspec list regimes",
    ),
    "selftest a device": (("selftest", "--device", "tpu"), "no device 'tpu'"),
    "freeze a file": (("workloads", "freeze", "gdn_decode_k_last", "--workloads", "no/such"), "cannot be written"),
    "selftest into a file": (("selftest", "--json", "no/such/x"), "cannot be written"),
    "submit on a device": (("submit", "torch_recurrent", "--device", "tpu"), "no device 'tpu'"),
    "doctor a folder": (("doctor", "--solutions-dir", "no/such"), "no such folder"),
}


def test_a_mistake_is_found_before_torch_is_imported() -> None:
    answers = without_torch(arguments for arguments, _ in TYPOS.values())
    for (name, (_, says)), (code, said) in zip(TYPOS.items(), answers, strict=True):
        assert code == 2, f"{name}: {said}"
        assert says in said, name


def test_a_word_without_some_parts_of_a_name_is_taken_for_it() -> None:
    names = ["flash-next-tp1", "next-tp1", "next-80b-tp1", "next-80b-tp2", "other"]
    assert nearest("next-tp2", names) == "did you mean 'next-80b-tp2'?"
    assert nearest("next", names) == "did you mean one of next-80b-tp1, next-80b-tp2, next-tp1, flash-next-tp1?"
    assert nearest("othr", names) == "did you mean 'other'?", "an ordinary misspelling"
    assert nearest("x", names) == "valid: flash-next-tp1, next-80b-tp1, next-80b-tp2, next-tp1, other"
    assert nearest("a", [f"a-{i:02}" for i in range(20)] + ["b"]).startswith("valid: a-00, a-01")
    assert nearest("x", []) == "there are none"
    assert nearest("Next-TP2", names) == "did you mean 'next-80b-tp2'?", "in any case"
    assert nearest("Gdn_decode", ["gdn_decode", "kda_decode"]) == "did you mean 'gdn_decode'?"
    assert nearest("lOg", ["LOG", "lag", "log"]) == "did you mean one of LOG, log?"


def test_addresses_do_not_tell_errors_apart(capfd: pytest.CaptureFixture[str]) -> None:
    summary = Summary("x86-64")
    for name, address in (("one", "0x00007f1d"), ("two", "0x00007fe2")):
        message = f"the process ended by SIGSEGV\nCurrent thread {address}"
        about = {"definition": "d", "solution": "s", "workload": name, "device": "x86-64", "suite": "smoke"}
        summary.add(CheckResult.model_validate({**about, "status": "RUNTIME_ERROR", "message": message}))
    summary.print_repeated()
    said = capfd.readouterr().err
    assert said.count("SIGSEGV") == 1
    assert "the same error on 1 more workload: two" in said


def test_a_solution_that_was_named_is_told_by_what_it_serves() -> None:
    chosen = [load_solution(ROOT / "solutions" / name) for name in ("cuda_recurrent", "torch_quantised")]
    said = unserved(["gdn_prefill_k_last", "gdn_verify_k_last"], chosen[:1])
    assert said.startswith("cuda_recurrent does not serve gdn_prefill_k_last or gdn_verify_k_last, only gdn_decode_k_l")
    said = unserved(["gdn_prefill_k_last"] * 4, chosen)
    assert said == "no chosen solution serves a chosen definition: gdnspec list solutions shows what each serves"


UNWRITTEN_OUTPUT = "output: every value is NaN: was it never written?; worst at sequence {}, head 0"


def failing(count: int, message: str, **options: bool) -> Summary:
    """A kernel that fails on so many workloads."""
    summary = Summary("a CPU", **options)
    about = {"definition": "d", "solution": "s", "device": "a CPU", "suite": "smoke", "status": "INCORRECT_NUMERICAL"}
    for number in range(count):
        whole = {**about, "workload": f"w{number}", "message": message.format(number), "repeat": f"gdnspec w{number}"}
        summary.add(CheckResult.model_validate(whole))
    summary.print_repeated()
    return summary


def test_a_kernel_that_fails_everywhere_does_not_fill_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    failing(9, "off by {}")
    said = capfd.readouterr().err
    assert said.count("INCORRECT_NUMERICAL  s on d/w") == 9, "each is named"
    assert said.count("repeat: ") == said.count("off by") == 5
    assert said.endswith("s on d: 4 failures named without details; gdnspec check -v shows them\n")
    failing(9, "off by {}", verbose=True)
    assert capfd.readouterr().err.count("off by") == 9


@pytest.mark.parametrize(
    ("errors", "says"),
    [
        ([0.2, 0.5], "50% (bias of o)"), ([0.5, 3.0], "300% (bias of o)"), ([0.5, 8523.4], "8,523 times (bias of o)"),
        ([None, 0.5], "not finite (bias of o)"), ([], ""),
    ],
)  # fmt: skip
def test_the_largest_error_is_of_what_failed_too(errors: list[float | None], says: str) -> None:
    """A kernel far over one budget was said to be at a third of it, by the workloads that it passed."""
    about = {"definition": "d", "solution": "s", "device": "a CPU", "suite": "smoke"}
    results = [
        CheckResult.model_validate({
            **about, "workload": f"w{i}", "status": "PASSED" if x is not None and x < 1 else "INCORRECT_NUMERICAL",
            "outputs": [{"output": "o", "errors": {"bias": x}, "budget": {"bias": 1.0}}],
        })
        for i, x in enumerate(errors)
    ]  # fmt: skip
    assert largest_error(results) == says


def test_outputs_that_nobody_wrote_are_one_error(capfd: pytest.CaptureFixture[str]) -> None:
    failing(4, UNWRITTEN_OUTPUT)
    said = capfd.readouterr().err
    assert said.count("was it never written?") == 1
    assert "s on d: the same error on 3 more workloads: w1, w2, w3\n" in said


@pytest.mark.parametrize(("others", "hints"), [("PASSED", 1), ("INCORRECT_NUMERICAL", 0)])
def test_a_kernel_that_fails_on_slices_alone_is_told_so(
    capfd: pytest.CaptureFixture[str], others: str, hints: int
) -> None:
    summary = Summary("a CPU")
    about = {"definition": "gdn_decode_k_last", "solution": "mine", "device": "a CPU", "suite": "smoke"}
    for name, status in (("one_row", others), ("batch_8", "PASSED"), ("strided_inputs", "NON_FINITE")):
        summary.add(CheckResult.model_validate({**about, "workload": name, "status": status}))
    print_summary(summary)
    said = capfd.readouterr().err
    assert said.count("mine on gdn_decode_k_last: it fails only where inputs are slices") == hints
    assert said.count('"contiguous" to "supports"') == hints


# --- what check takes ------------------------------------------------------------------------------------------------

ARGUMENTS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
RIGHT = f"{RIGHT_DECODE}\n\ndef mine{ARGUMENTS}:\n    print('called')\n    return decode_k_last{ARGUMENTS}\n"
UNWRITTEN = f"def gdn_decode_k_last{ARGUMENTS}:\n    raise NotImplementedError\n"
SMALL = ("--workload", "one_row", "--workload", "scale_zero", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "right.py").write_text(RIGHT.replace("import math\n", "import math\nimport beside\n"))
    (folder / "beside.py").write_text("x = 1\n")
    (folder / "unwritten.py").write_text(UNWRITTEN)
    return folder


@pytest.mark.parametrize("kernel", ["right.py::mine", "right:mine"])
def test_check_takes_a_file_or_a_module_with_a_function(gdnspec: Run, folder: Path, kernel: str) -> None:
    options = ("-k", "one and not empty", "-v", "--show-output", "--seed", "1", "--device", "cpu")
    done = gdnspec("check", kernel, "gdn_decode_k_last", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gdn_decode_k_last  mine      PASSED   1 of 1" in done.stdout
    assert "PASSED  mine on gdn_decode_k_last/one_row" in done.stderr
    assert "called" in done.stderr
    assert "landlock" in done.stdout or "none (this kernel" in done.stdout


def test_an_error_that_repeats_is_shown_once_with_a_count(gdnspec: Run, folder: Path) -> None:
    done = gdnspec("check", "unwritten.py", *SMALL, cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("checking unwritten on gdn_decode_k_last\n"), "and the failures follow"
    assert done.stderr.count("NotImplementedError") <= 2  # in the message, and in the line of the source
    assert "the same error on 1 more workload: " in done.stderr
    assert f"repeat: gdnspec check gdn_decode_k_last {folder}/unwritten.py --workload" in done.stderr


def test_fail_fast_says_how_many_of_how_many_it_judged(gdnspec: Run, folder: Path) -> None:
    done = gdnspec("check", "unwritten.py", *SMALL, "-x", cwd=folder)
    assert done.returncode == 1
    assert "stopped at the first failure, after 1 of 2" in done.stderr
    assert "0 of 2" in done.stdout


def test_an_unfinished_table_says_how_many_were_judged(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary("a CPU", {("op", "mine"): 45, ("op", "other"): 3})
    for i in range(17):
        summary.add(
            CheckResult(definition="op", workload=f"w{i}", suite="smoke", solution="mine", device="x", status="PASSED")
        )
    print_summary(summary)
    said = capsys.readouterr().out
    assert "17 of 45 judged" in said
    assert "0 of 3 judged" in said
    assert "PASSED" not in said


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("right.py::mien", "did you mean 'mine'?"),
        ("right.py::step", "lacks state"),
        ("right.py", "has no function that is named like"),
    ],
)
def test_a_function_that_cannot_serve_is_refused(gdnspec: Run, folder: Path, file: str, says: str) -> None:
    done = gdnspec("check", file, "gdn_decode_k_last", cwd=folder)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_words_are_definitions_or_kernels() -> None:
    words = ["gdn_decode_k_last", "a/kernel.py", "kernel.py::f", "b/kernel.py:f", "module.of:f", "gdn_decode"]
    kernels = ["a/kernel.py", "kernel.py::f", "b/kernel.py::f", "module.of:f"]
    assert split(words) == (["gdn_decode_k_last", "gdn_decode"], kernels)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("empty", ["Empty_first"]),
        ("not empty", ["one_row", "length-64"]),
        ("(one or 64) and not row", ["length-64"]),
    ],
)
def test_words_choose_workloads_as_in_pytest(words: str, names: list[str]) -> None:
    assert [name for name in ("Empty_first", "one_row", "length-64") if matching(words)(name)] == names


@pytest.mark.parametrize("words", ["one and", "", "not", "one two", "(one"])
def test_words_that_do_not_combine_are_refused(words: str) -> None:
    with pytest.raises(SpecError, match="combine words with"):
        matching(words)


def test_watch_judges_again_after_a_change(gdnspec: Run, tmp_path: Path) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(UNWRITTEN)
    kernel.with_suffix(".next").write_text(RIGHT.replace("def mine", "def gdn_decode_k_last"))
    command = ("check", kernel, "--watch", "--workload", "one_row", "--device", "cpu")
    done = gdnspec(*command, env={NAME: str(kernel)}, before=write_while_it_waits)
    assert done.returncode == 0, "that of the last round"
    assert done.stderr.count("watching 2 files") == 2
    assert done.stderr.index("NotImplementedError") < done.stderr.index("watching")
    assert done.stdout.index("RUNTIME_ERROR") < done.stdout.index("1 of 1")


# --- workloads generate ----------------------------------------------------------------------------------------------

MADE: dict[str, Any] = {
    "name": "gdn_decode_k_last", "preset": "qwen3-next-80b-a3b-tp4", "regime": None, "lengths": None, "batch": "1",
    "drafts": None, "scalar": None, "count": 4, "seed": 3, "freeze": False, "device": "cpu",
}  # fmt: skip


def test_an_interrupted_generate_leaves_whole_lines_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    generate.generate(**MADE, output=whole)
    drawn: list[str] = []

    def interrupted(found: object, line: object) -> object:
        drawn.append("")
        if len(drawn) == 3:
            raise KeyboardInterrupt
        return with_hash(found, line)

    with_hash: Any = generate._with_hash
    with monkeypatch.context() as patched:
        patched.setattr(generate, "_with_hash", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate.generate(**MADE, output=part)
    assert "2 of 4 workloads" in capsys.readouterr().err
    assert part.read_text().splitlines() == whole.read_text().splitlines()[:2]
    part.write_text(part.read_text() + whole.read_text().splitlines()[2][:40])  # killed in the middle of a line
    generate.generate(**MADE, output=part)
    assert part.read_bytes() == whole.read_bytes()
    for other in ({**MADE, "seed": 4}, MADE):
        part.write_text("".join(whole.read_text().splitlines(keepends=True)[: 4 if other is MADE else 2]))
        with pytest.raises(SpecError, match="exists already"):
            generate.generate(**other, output=part)


def test_a_count_on_no_terminal_is_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gdnspec.cli import progress

    monkeypatch.setattr(progress, "SECONDS", 0.0)
    with progress.counted("workloads", 3) as tick:
        tick(1)
    assert capsys.readouterr().err == "1 of 3 workloads\n"


@pytest.mark.parametrize(("content", "says"), [(b"", "is empty"), (b"\n\n", "is empty"), (b"\xff\x00", "binary data")])
def test_a_file_of_workloads_without_text_is_an_error_about_its_content(
    tmp_path: Path, content: bytes, says: str
) -> None:
    file = tmp_path / "x.jsonl"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=says):
        load_workloads(file, definition("gdn_decode_k_last"))
    with pytest.raises(SpecError, match=says):  # and not about the definition that it belongs to
        validate([file], None, None)


# --- help ------------------------------------------------------------------------------------------------------------


OFFERED = {
    "gdnspec che": ["check"],
    "gdnspec check --suite s": ["smoke", "strict"],
    "gdnspec check gdn_decode_k_last --workload head_size_6": ["head_size_64"],
    "gdnspec which gdn_prefill_k_last --preset qwen3-next-80b-a3b-tp4": ["qwen3-next-80b-a3b-tp4"],
}


def test_a_shell_is_offered_commands_and_names(gdnspec: Run) -> None:
    for words, names in OFFERED.items():
        told = {"_GDNSPEC_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert gdnspec(env=told).stdout.split() == names, words


def test_names_that_a_command_takes_are_offered() -> None:
    assert offered.definitions("gdn_decode_k_f") == ["gdn_decode_k_first", "gdn_decode_k_first_bf16_state"]
    assert offered.everything("strict_") == ["strict_keys"]
    assert offered.exports("hopper_prefill:") == ["hopper_prefill:strict", "hopper_prefill:invariant"]
    peers = ("flash_qla", "flash_qla_backward", "flashinfer")
    assert offered.baselines("torch_layer,flash") == [f"torch_layer,{peer}" for peer in peers]

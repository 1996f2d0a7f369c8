"""What becomes of a solution that is wrong, breaks, or lies: one status each, and the next workload still runs."""

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import command_lines
from gdnspec import paths
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import plan
from gdnspec.check.run import Checker, Options
from gdnspec.model.errors import SpecError
from gdnspec.model.result import CheckResult
from gdnspec.sandbox.child import landlock
from gdnspec.sandbox.parent.process import Child
from patience import PATIENCE, until

HEAD = "def run(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):\n"
OUT_HEAD = HEAD.replace("):", ", output, new_state):")
ARGS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"


def check(folder: Path, *names: str, timeout: float = PATIENCE, device: str = "cpu") -> list[CheckResult]:
    """The verdicts of one solution on the named smoke workloads of gdn_decode_k_last."""
    found = definition("gdn_decode_k_last")
    lines = [line for line in workloads(found) if line.name in (names or ("one_row",))]
    where = machine.device(device)
    assert where is not None
    warnings: list[str] = []
    checker = Checker(device, Options(timeout=timeout), warnings.append)
    return list(checker.run(list(plan([load_solution(folder)], [(found, lines)], where))))


def body(text: str, head: str = HEAD) -> str:
    return head + textwrap.indent(textwrap.dedent(text), "    ")


RIGHT = f"return decode_k_last{ARGS}"

CASES: dict[str, tuple[str, str, str]] = {
    # name: (code, status, what the message says)
    "right": (body(RIGHT), "PASSED", ""),
    "raises": (body('raise ValueError("no such luck")'), "RUNTIME_ERROR", "ValueError: no such luck"),
    "exits": (body("raise SystemExit(0)"), "RUNTIME_ERROR", "SystemExit"),
    "kills_itself": (
        body("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
        "RUNTIME_ERROR",
        "ended by SIGKILL before it answered",
    ),
    "leaves": (body("import os\nos._exit(0)"), "RUNTIME_ERROR", "ended with exit code 0 before it answered"),
    "crashes": (body("import ctypes\nctypes.string_at(0)"), "RUNTIME_ERROR", "SIGSEGV"),
    "does_not_import": ("import no_such_module\n" + body(RIGHT), "COMPILE_ERROR", "No module named 'no_such_module'"),
    "too_few_outputs": (body(f"return decode_k_last{ARGS}[0]"), "INCORRECT_SHAPE", "returned 1 output instead of 2"),
    "too_many_outputs": (body(f"return *decode_k_last{ARGS}, q"), "INCORRECT_SHAPE", "returned 3 outputs instead of 2"),
    "returns_nothing": (body("pass"), "INCORRECT_SHAPE", "returned a NoneType"),
    "returns_a_list_of_floats": (body(f"o, s = decode_k_last{ARGS}\nreturn o, s.tolist()"), "INCORRECT_SHAPE", "list"),
    "wrong_shape": (
        body(f"o, s = decode_k_last{ARGS}\nreturn o[:, 0], s"),
        "INCORRECT_SHAPE",
        "output has shape [1, 2, 64], not [1, 1, 2, 64]",
    ),
    "wrong_dtype": (
        body(f"o, s = decode_k_last{ARGS}\nreturn o.float(), s"),
        "INCORRECT_DTYPE",
        "output is float32, not bfloat16",
    ),
    "wrong_number": (
        body(f"o, s = decode_k_last{ARGS}\nreturn o, s * 1.01"),
        "INCORRECT_NUMERICAL",
        "new_state: relative_l2 0.01",
    ),
    "not_a_number": (
        body(f"o, s = decode_k_last{ARGS}\ns[0, 1, 3, 5] = float('nan')\nreturn o, s"),
        "NON_FINITE",
        "head 1, row 3",
    ),
    "writes_into_an_input": (
        body(f"r = decode_k_last{ARGS}\nk.zero_()\nreturn r"),
        "MUTATED_INPUT",
        "the call wrote to the input k",
    ),
    "tensor_subclass": (
        body(f"class Lazy(torch.Tensor): pass\no, s = decode_k_last{ARGS}\nreturn o.as_subclass(Lazy), s"),
        "TAMPERED",
        "output is a Lazy",
    ),
    "sparse": (
        body(f"o, s = decode_k_last{ARGS}\nreturn o.to_sparse(), s"),
        "TAMPERED",
        "output is a sparse_coo tensor instead of a plain strided one",
    ),
    "without_values": (
        body(f"o, s = decode_k_last{ARGS}\nreturn o, s.to('meta')"),
        "TAMPERED",
        "new_state is a meta tensor instead of a plain strided one",
    ),
    "nested": (
        body(f"o, s = decode_k_last{ARGS}\nreturn torch.nested.nested_tensor([*o]), s"),
        "TAMPERED",
        "output is a nested tensor instead of a plain strided one",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_fault_has_its_status(make_solution: Callable[..., Path], name: str) -> None:
    code, status, says = CASES[name]
    (result,) = check(make_solution(code, name=name))
    assert result.status == status, result.message
    assert says in result.message
    if name != "crashes":  # there the interpreter itself dumps its stack
        assert "loop.py" not in result.message, "frames of the runner say nothing to the author"


def test_a_failure_carries_all_that_a_person_needs(make_solution: Callable[..., Path]) -> None:
    code = body(f"o, s = decode_k_last{ARGS}\ns[0, 1, 7, 3] += 5.0\nreturn o, s")
    (result,) = check(make_solution(code))
    state = next(output for output in result.outputs if output.output == "new_state")
    assert state.worst is not None
    assert (state.worst.sequence, state.worst.head, state.worst.vector, state.worst.element) == (0, 1, 7, 3)
    assert state.worst.got == pytest.approx(state.worst.expected + 5.0, rel=1e-4)
    assert state.budget == {"relative_l2": 5e-4, "worst_vector": 1e-3, "max_over_rms": 5e-3}
    assert "sequence 0, head 1, row 7, element 3: got" in result.message
    assert result.repeat.startswith("gdnspec check gdn_decode_k_last --solution under_test --workload one_row")


def test_outputs_never_written_are_found(make_solution: Callable[..., Path]) -> None:
    (result,) = check(make_solution(body("pass", OUT_HEAD), call="out"))
    assert result.status == "NON_FINITE"
    assert "never written" in result.message


def test_a_writer_that_finishes_later_is_found(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        import threading
        o, s = decode_k_last{ARGS}
        def later():
            written_later.wait()  # for ever: the judge looks before that
            output.copy_(o); new_state.copy_(s)
        written_later = threading.Event()
        threading.Thread(target=later, daemon=True).start()
        """,
        OUT_HEAD,
    )
    (result,) = check(make_solution(code, call="out"))
    assert result.status == "NON_FINITE"


def test_a_hang_ends_and_the_next_workload_runs(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, asked = Child.call, []

    def first_in_half_a_second(self: Child, timeout: float) -> dict[str, Any]:
        asked.append(timeout)
        return call(self, 0.5 if len(asked) == 1 else timeout)

    monkeypatch.setattr(Child, "call", first_in_half_a_second)
    code = body(f"import time\nif q.shape[0] != 1: time.sleep(9600)\n{RIGHT}")
    first, second = check(make_solution(code), "one_row", "scale_zero")
    assert (first.workload, first.status) == ("scale_zero", "TIMEOUT"), first.message
    assert "no answer within 0.5 s" in first.message
    assert (second.workload, second.status) == ("one_row", "PASSED"), second.message


def test_a_solution_that_always_dies_is_given_up(make_solution: Callable[..., Path]) -> None:
    names = ("batch_8", "resets", "no_l2norm", "scale_zero", "one_row")
    results = check(make_solution(body("import os\nos._exit(3)")), *names)
    assert [r.status for r in results] == ["RUNTIME_ERROR"] * 5
    assert "died 3 times in a row" in results[-1].message


def test_a_gigabyte_of_output_does_no_harm(make_solution: Callable[..., Path]) -> None:
    code = body(f"import os\nfor _ in range(1024): os.write(1, b'x' * 2**20)\n{RIGHT}")
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message


def test_what_a_dying_process_said_is_shown(make_solution: Callable[..., Path]) -> None:
    (result,) = check(make_solution(body("import os\nos.write(2, b'out of luck\\n')\nos._exit(7)")))
    assert "exit code 7" in result.message
    assert "out of luck" in result.message


FIND_SOCKET = """
import os, socket, stat
for fd in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            break
    except OSError:
        pass
"""


def test_a_forged_success_is_judged_by_the_outputs(make_solution: Callable[..., Path]) -> None:
    # Request 1 loads the entry point, request 2 maps the memory, request 3 calls.
    forged = b'{"op": "done", "id": 3, "returned": null, "seconds": 0.001, "prepare_seconds": null}\n'
    (result,) = check(
        make_solution(body(f"{FIND_SOCKET}\nos.write(fd, {forged!r})\nos._exit(0)", OUT_HEAD), call="out")
    )
    assert result.status == "NON_FINITE"


# No message, and a message that means nothing; of the first kind more in a thorough run, and in test_fuzz_protocol.py.
MORE = [pytest.param(line, marks=pytest.mark.thorough) for line in (b"[1, 2]\n", b'{"op": 3}\n', b"\xff\xfe\n")]


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"op": "surprise"}\n', *MORE])
def test_what_is_no_message_is_a_protocol_error(make_solution: Callable[..., Path], line: bytes) -> None:
    (result,) = check(make_solution(body(f"{FIND_SOCKET}\nos.write(fd, {line!r})\n{RIGHT}")))
    assert result.status == "PROTOCOL_ERROR"


LYING = [
    "[1, 2]",
    '[{"shape": "x", "dtype": []}, {}]',
    '[{"shape": [1, 1, 2, 64], "dtype": "bfloat16"}]',
    '{"shape": NaN}',
]


@pytest.mark.parametrize("returned", LYING)
def test_a_lie_about_what_was_returned_hurts_nobody(make_solution: Callable[..., Path], returned: str) -> None:
    line = f'{{"op": "done", "id": 3, "returned": {returned}, "seconds": 1e400, "prepare_seconds": "soon"}}\n'.encode()
    (result,) = check(make_solution(body(f"{FIND_SOCKET}\nos.write(fd, {line!r})\nos._exit(0)")))
    assert result.status in ("PROTOCOL_ERROR", "INCORRECT_SHAPE", "NON_FINITE")
    assert result.seconds == 0.0


def test_shared_memory_cannot_be_shrunk_under_the_judge(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        import os
        for fd in os.listdir("/proc/self/fd"):
            try:
                if "memfd:gdnspec" in os.readlink(f"/proc/self/fd/{{fd}}"):
                    os.ftruncate(int(fd), 0)
            except OSError:
                pass
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message


def test_a_process_left_behind_does_not_hold_up_the_judge(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        import subprocess
        subprocess.Popen(["sleep", "9600"], start_new_session=True)  # who waited for it would wait too long
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message


def test_replies_sent_ahead_are_out_of_turn(make_solution: Callable[..., Path]) -> None:
    flood = b'{"op": "done", "returned": null, "seconds": 0, "prepare_seconds": null}\n'
    code = body(f"{FIND_SOCKET}\nfor _ in range(3000): os.write(fd, {flood!r})\n{RIGHT}")
    results = check(make_solution(code), "one_row", "scale_zero", timeout=10.0)
    assert {result.status for result in results} <= {"PROTOCOL_ERROR", "TIMEOUT"}


def test_a_socket_held_by_a_grandchild_hides_no_death(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        {FIND_SOCKET.strip().replace(chr(10), chr(10) + "        ")}
        import subprocess
        subprocess.Popen(["sleep", "9600"], start_new_session=True, pass_fds=[fd])
        os._exit(3)
        """
    )
    (result,) = check(make_solution(code), timeout=10 * PATIENCE)  # who waited for an answer would wait too long
    assert result.status == "RUNTIME_ERROR"
    assert "exit code 3" in result.message


def test_what_a_solution_starts_ends_with_it(make_solution: Callable[..., Path], tmp_path: Path) -> None:
    marker = f"{tmp_path.name}-left-behind"
    start = f"subprocess.Popen(['sh', '-c', 'sleep 9600; : {marker}'], start_new_session=True)"
    (result,) = check(make_solution(body(f"import subprocess\n{start}\n{RIGHT}")))
    assert result.status == "PASSED", result.message
    until(lambda: not any(marker.encode() in line for line in command_lines()))  # what is killed may take a moment


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os\nos.kill(os.getpid(), 40)", "signal 40"),
        ("raise ValueError('\\ud800 \\x1b[31mred')", "[31mred"),
        ("raise ValueError('x' * 3_000_000)", "xxx"),
    ],
    ids=["a signal without a name", "no text for a terminal", "a novel"],
)
def test_odd_failures_are_told_plainly(make_solution: Callable[..., Path], text: str, says: str) -> None:
    (result,) = check(make_solution(body(text)))
    assert result.status == "RUNTIME_ERROR"
    assert says in result.message
    assert "\x1b" not in result.message
    assert len(result.message) < 30_000
    result.model_dump_json()


def test_folders_nested_beyond_measure_are_cleared_away(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        import os
        os.chdir(os.environ["TMPDIR"])
        for _ in range(3000):
            os.makedirs("d", exist_ok=True); os.chdir("d")
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message


def test_a_write_past_an_output_is_found(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        o, s = decode_k_last{ARGS}
        output.copy_(o)
        beyond = torch.as_strided(output, (output.numel() + 4096,), (1,), output.storage_offset())
        beyond[output.numel():] = 1.0
        new_state.copy_(s)
        """,
        OUT_HEAD,
    )
    (result,) = check(make_solution(code, call="out"))
    assert result.status == "RUNTIME_ERROR"
    assert "the call wrote outside its tensors, behind output" in result.message


def test_one_entry_that_dies_condemns_no_other(make_solution: Callable[..., Path]) -> None:
    args = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
    code = body(RIGHT) + f"\ndef dies{args}:\n    import os\n    os._exit(3)\n"
    entry = {"call": "return", "prepare": None, "supports": []}
    entries = {
        "gdn_decode_k_first": {**entry, "entry": "kernel.py::dies"},
        "gdn_decode_k_last": {**entry, "entry": "kernel.py::run"},
    }
    solution = load_solution(make_solution(code, entries=entries))
    names = ("batch_8", "resets", "no_l2norm", "scale_zero", "one_row")
    selected = [
        (found, [line for line in workloads(found) if line.name in names])
        for found in (definition("gdn_decode_k_first"), definition("gdn_decode_k_last"))
    ]
    where = machine.device("cpu")
    assert where is not None
    results = list(Checker("cpu", Options(), print).run(list(plan([solution], selected, where))))
    assert {r.status for r in results if r.definition == "gdn_decode_k_first"} == {"RUNTIME_ERROR"}
    assert {r.status for r in results if r.definition == "gdn_decode_k_last"} == {"PASSED"}


def test_an_expected_value_of_another_shape_is_computed_again(
    make_solution: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gdnspec.catalog import kept
    from safetensors.torch import load, save

    cache = tmp_path / "cache"
    monkeypatch.setenv("GDNSPEC_CACHE", str(cache))  # the other tests share one, and would find broken entries
    folder = make_solution(body(f"o, s = decode_k_last{ARGS}\nreturn o * 2, s"))
    (before,) = check(folder)
    for file in (cache / "expected").glob("*.values"):
        content = kept.kept(file, print, "")
        assert content is not None
        kept.keep(file, save({name: value[:0].clone() for name, value in load(content).items()}))
    (after,) = check(folder)
    assert before.status == after.status == "INCORRECT_NUMERICAL"


def test_a_workload_that_does_not_fit_says_what_it_needs(make_solution: Callable[..., Path]) -> None:
    found = definition("gdn_decode_k_last")
    line = next(line for line in workloads(found) if line.name == "one_row")
    huge = line.model_copy(update={"axes": {"batch_size": 1 << 36}, "sha256": None})
    where = machine.device("cpu")
    assert where is not None
    jobs = list(plan([load_solution(make_solution(body(RIGHT)))], [(found, [huge])], where))
    (result,) = Checker("cpu", Options(), print).run(jobs)
    assert result.status == "UNSUPPORTED"
    assert "GiB" in result.message


def test_expected_values_outside_the_output_type_are_an_invalid_workload(make_solution: Callable[..., Path]) -> None:
    found = definition("gdn_decode_k_last")
    line = next(line for line in workloads(found) if line.name == "one_row")
    loud = line.model_copy(update={"scalars": {"scale": 1e300}})
    where = machine.device("cpu")
    assert where is not None
    jobs = list(plan([load_solution(make_solution(body(RIGHT)))], [(found, [loud])], where))
    (result,) = Checker("cpu", Options(), print).run(jobs)
    assert result.status == "INVALID_WORKLOAD"
    assert "output" in result.message


def test_two_calls_must_agree_when_the_manifest_says_so(make_solution: Callable[..., Path]) -> None:
    call = f"calls.append(1)\no, s = decode_k_last{ARGS}\nreturn o, s * (1 + 1e-6 * len(calls))"
    code = "calls = []\n" + body(call)
    (declared,) = check(make_solution(code, name="declared", deterministic=True))
    assert declared.status == "NOT_REPRODUCIBLE"
    assert "new_state" in declared.message
    (undeclared,) = check(make_solution(code, name="undeclared", deterministic=False))
    assert undeclared.status == "PASSED"


def test_only_listed_sources_exist_for_the_solution(make_solution: Callable[..., Path]) -> None:
    folder = make_solution("import helper\n" + body(RIGHT))
    (folder / "helper.py").write_text("x = 1\n")
    (hidden,) = check(folder)
    assert hidden.status == "COMPILE_ERROR"
    folder = make_solution("import helper\n" + body(RIGHT), sources=["kernel.py", "helper.py"])
    (listed,) = check(folder)
    assert listed.status == "PASSED", listed.message


def test_no_key_of_the_person_who_checks_reaches_a_solution(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vendors' keys begin like the settings of their libraries."""
    private = ("NVIDIA_API_KEY", "TORCH_TOKEN", "LANGCHAIN_API_KEY", "TRITON_SECRET", "FLA_PASSWORD", "OPENAI_API_KEY")
    for name in private:
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "0")
    code = f"""
    import os
    raise ValueError(sorted(x for x in os.environ if x in {private} or x == "TRITON_PRINT_AUTOTUNING"))
    """
    (result,) = check(make_solution(body(code)))
    assert "ValueError: ['TRITON_PRINT_AUTOTUNING']" in result.message


COMPILERS = (
    "TRITON_CACHE_DIR",
    "TVM_FFI_CACHE_DIR",
    "TILELANG_CACHE_DIR",
    "CUTE_DSL_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
)


def test_what_compilers_make_is_kept_for_the_next_process(make_solution: Callable[..., Path]) -> None:
    head = f"import os, pathlib\n\nPLACES = [pathlib.Path(os.environ[name]) for name in {COMPILERS}]\n"
    left = make_solution(head + "[(place / 'made').touch() for place in PLACES]\n" + body(RIGHT))
    assert [result.status for result in check(left)] == ["PASSED"]
    folders = list(paths.build_cache(load_solution(left).source_hash).glob("*/made"))
    assert len(folders) == len(COMPILERS)


def test_prepare_runs_before_the_calls(make_solution: Callable[..., Path]) -> None:
    code = (
        "def ready(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):\n    return state.shape\n\n"
        + HEAD.replace("):", ", prepared):")
        + f"    assert state.shape == prepared\n    {RIGHT}\n"
    )
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": "kernel.py::ready", "supports": []}
    (result,) = check(make_solution(code, entries={"gdn_decode_k_last": entry}))
    assert result.status == "PASSED", result.message
    assert result.prepare_seconds is not None


def test_unsupported_is_said_and_is_no_failure(make_solution: Callable[..., Path]) -> None:
    entry = {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": ["head_size in (128, 256)"]}
    (result,) = check(make_solution(body(RIGHT), entries={"gdn_decode_k_last": entry}))
    assert (result.status, result.failed) == ("UNSUPPORTED", False)
    assert "head_size in (128, 256)" in result.message
    missing = {"device": "any", "compute_capability": None, "packages": ["no-such-package>=1"]}
    (result,) = check(make_solution(body(RIGHT), requires=missing))
    assert result.message == 'needs no-such-package>=1: pip install "no-such-package>=1"'


def test_the_child_can_read_neither_expected_values_nor_the_parent(
    make_solution: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if landlock.abi() == 0:
        pytest.skip("this Linux has no Landlock")
    monkeypatch.setenv("MY_SECRET", "known to the parent")
    (warm_up,) = check(make_solution(body(RIGHT), name="warm_up"))
    assert list((cache / "expected").iterdir()), "expected values are cached on disk"
    assert warm_up.isolation.startswith("landlock ")
    code = body(
        f"""
        import os
        caught = []
        parent = os.getppid()
        private = ["/proc/%d/%s" % (parent, name) for name in ("mem", "environ", "maps", "cmdline")]
        for path in ({str(cache / "expected")!r}, *private, "/proc", "/dev/shm", os.path.expanduser("~root")):
            try:
                os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
                caught.append(path)
            except OSError:
                pass
        for path in ("/tmp/gdnspec-escaped", "/dev/shm/gdnspec-escaped"):
            try:
                open(path, "w")
                caught.append(path)
            except OSError:
                pass
        caught += [name for name in os.environ if "SECRET" in name]
        try:
            os.kill(os.getppid(), 0)
            caught.append("signals")
        except OSError:
            pass
        assert not caught, caught
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code, name="spy"))
    assert result.status == "PASSED", result.message


@pytest.mark.gpu
class TestOnAGpu:
    """The same promises where memory is shared through CUDA IPC."""

    def test_right_and_wrong(self, make_solution: Callable[..., Path]) -> None:
        (right,) = check(make_solution(body(RIGHT), name="right"), device="cuda")
        assert right.status == "PASSED", right.message
        # Threads of the CUDA driver that were there before would be named here: they would be outside of the walls.
        assert right.isolation in (f"landlock {landlock.abi()}", "none (this Linux has no Landlock)")
        code = body(f"o, s = decode_k_last{ARGS}\nreturn o, s * 1.01")
        (wrong,) = check(make_solution(code, name="wrong"), device="cuda")
        assert wrong.status == "INCORRECT_NUMERICAL"

    def test_a_lost_device_costs_one_workload(self, make_solution: Callable[..., Path]) -> None:
        code = body(
            f"""
            if q.shape[0] == 1:
                torch.zeros(4, device="cuda")[torch.tensor([1 << 40], device="cuda")].cpu()
            {RIGHT}
            """
        )
        results = {r.workload: r for r in check(make_solution(code), "one_row", "scale_zero", device="cuda")}
        assert results["one_row"].status == "RUNTIME_ERROR"
        assert results["scale_zero"].status == "PASSED", results["scale_zero"].message

    def test_work_on_another_stream_still_counts_only_when_done(self, make_solution: Callable[..., Path]) -> None:
        code = body(
            f"""
            import threading
            o, s = decode_k_last{ARGS}
            def later():
                written_later.wait()  # for ever: the judge looks before that
                output.copy_(o); new_state.copy_(s)
            written_later = threading.Event()
            threading.Thread(target=later, daemon=True).start()
            """,
            OUT_HEAD,
        )
        (result,) = check(make_solution(code, call="out"), device="cuda")
        assert result.status == "NON_FINITE"

    def test_mutation_is_seen(self, make_solution: Callable[..., Path]) -> None:
        (result,) = check(make_solution(body(f"r = decode_k_last{ARGS}\nk.zero_()\nreturn r")), device="cuda")
        assert result.status == "MUTATED_INPUT"


def test_no_thread_is_older_than_the_walls(make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Landlock binds the thread that asks for it: one that a library had started before could be sent anywhere."""
    if landlock.abi() == 0:
        pytest.skip("this Linux has no Landlock")
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "4")
    code = body(
        f"""
        import os
        def memory_of_the_judge():
            try:
                os.close(os.open(f"/proc/{{os.getppid()}}/mem", os.O_RDONLY))
                return True
            except OSError:
                return False
        assert not memory_of_the_judge()
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message
    assert result.isolation == f"landlock {landlock.abi()}"  # it would name threads that were there before


def test_the_limits_of_the_judge_are_its_own(make_solution: Callable[..., Path]) -> None:
    code = body(
        f"""
        import os, resource
        for pid in (os.getppid(), 1):
            try:
                resource.prlimit(pid, resource.RLIMIT_AS)  # to ask is refused as well, and harms nobody if it is not
            except PermissionError:
                continue
            raise AssertionError("may be asked, so may be set")
        assert resource.getrlimit(resource.RLIMIT_AS)
        {RIGHT}
        """
    )
    (result,) = check(make_solution(code))
    assert result.status == "PASSED", result.message


def test_a_full_memory_is_asked_again_with_a_fresh_child(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a child hoards is no reason to let it off: only what fails without it is UNSUPPORTED."""
    from gdnspec.check import run as module

    real, calls = module.Session.__enter__, []

    def full_at_first(self: module.Session) -> module.Session:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(self)

    monkeypatch.setattr(module.Session, "__enter__", full_at_first)
    (result,) = check(make_solution(body(RIGHT)))
    assert result.status == "PASSED", result.message
    monkeypatch.setattr(module.Session, "__enter__", lambda self: (_ for _ in ()).throw(MemoryError("full")))
    (result,) = check(make_solution(body(RIGHT), name="again"))
    assert (result.status, result.message) == ("UNSUPPORTED", "out of memory in the judge: full")


def test_whose_memory_ran_out_decides_on_the_status(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full GPU, with PyTorch's own exception: what a kernel allocates itself is its own affair."""
    import torch
    from gdnspec.check import run as module

    said = "CUDA out of memory. Tried to allocate 80.00 GiB."
    (result,) = check(make_solution(body(f"raise torch.OutOfMemoryError({said!r})")))
    assert result.status == "RUNTIME_ERROR"
    assert result.message.startswith(f"out of memory in the kernel: {said}\n")

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError(said)

    monkeypatch.setattr(module.Session, "__enter__", full)
    (result,) = check(make_solution(body(RIGHT), name="again"))
    assert (result.status, result.message) == ("UNSUPPORTED", f"out of memory in the judge: {said}")


def test_what_follows_a_full_memory_is_called_on_memory_of_its_own(
    make_solution: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the judge's memory is full in the middle of a workload, the child has that workload open."""
    from gdnspec.check import run as module

    real = module.judge_all

    def full(outputs: Any, expected: Any, found: Any, workload: Any, *more: Any) -> Any:
        if workload.name == "batch_8":
            raise MemoryError("full")
        return real(outputs, expected, found, workload, *more)

    monkeypatch.setattr(module, "judge_all", full)
    first, second = check(make_solution(body(RIGHT)), "batch_8", "resets")
    assert (first.workload, first.status) == ("batch_8", "UNSUPPORTED")
    assert second.status == "PASSED", second.message


def test_who_says_triton_has_a_kernel_of_it(make_solution: Callable[..., Path]) -> None:
    """Without a GPU it is let off what takes an interpreter minutes: plain PyTorch is not."""
    with pytest.raises(SpecError, match='the language is "triton", but no source has a Triton kernel'):
        load_solution(make_solution(body(RIGHT), language="triton"))

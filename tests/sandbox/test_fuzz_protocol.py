"""A child that lies: whatever it answers, the judge goes on with a verdict that says what was wrong.

A live process speaks in place of the worker. What the channel makes of bytes is in test_fuzz_channel.py.
"""

import random
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gdnspec import paths
from gdnspec.build import machine
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.solutions import Solution, load_solution
from gdnspec.catalog.workloads import workloads
from gdnspec.check.plan import plan
from gdnspec.check.record import Recorder, earlier
from gdnspec.check.run import Checker, Options
from gdnspec.model.result import CheckResult
from gdnspec.sandbox.parent import process as child_module
from gdnspec.sandbox.parent.process import Child, ChildFailed
from helpers_fuzz import CHILDREN, SEED, open_descriptors, soon
from helpers_mutations import ODD, Raw, places, replaced, text_of
from patience import PATIENCE

# --- a process that speaks in the worker's place -----------------------------------------------------------------

# Answers each request of the judge with the next of its parts: bytes to send (ID is the request's), a pause, or an end.
FAKE = """#!{python} -ISB
import os, sys, time
fd, buffer = int(sys.argv[4]), b""

def send(data):
    while data:
        data = data[os.write(fd, data):]

def request():
    global buffer
    while b"\\n" not in buffer:
        data = os.read(fd, 1 << 16)
        if not data:
            sys.exit(0)
        buffer += data
    line, _, buffer = buffer.partition(b"\\n")
    return line

answers = eval(open({script!r}).read())
at = dict.fromkeys(answers, 0)
while True:
    line = request()
    op = line.partition(b'"op": "')[2].partition(b'"')[0].decode() if b'"op": "' in line else ""
    id = line.rpartition(b'"id": ')[2].rstrip(b"}}")
    if op == "stop":
        break
    parts = answers[op][min(at[op], len(answers[op]) - 1)]
    at[op] += 1
    for part in parts:
        if isinstance(part, bytes):
            send(part.replace(b"ID", id))
        elif isinstance(part, float):
            time.sleep(part)
        elif part == "descriptors":
            import _socket
            _socket.socket(fileno=os.dup(fd)).sendmsg([b" "], [(1, 1, b"\\0\\0\\0\\0\\1\\0\\0\\0\\2\\0\\0\\0")])
        elif part == "close":
            os.close(fd)
        elif part == "leave":
            if os.fork() == 0:
                time.sleep(60)
            os._exit(3)
        else:
            exec(part)
"""
GOOD: dict[str, Any] = {
    "hello": [[b'{"op": "ready", "isolation": "none"}\n']],
    "load": [[b'{"op": "loaded", "id": ID}\n']],
    "open": [[b'{"op": "opened", "id": ID, "prepare_seconds": null}\n']],
    "call": [[b'{"op": "done", "id": ID, "returned": [], "seconds": 0.1}\n']],
    "close": [[b'{"op": "closed", "id": ID}\n']],
}


@cache
def solution() -> Solution:
    return load_solution(paths.solutions_dir() / "torch_recurrent")


@dataclass(frozen=True)
class Stage:
    """Where children of the judge are fakes, and all that they leave behind would lie."""

    folder: Path
    patch: pytest.MonkeyPatch

    def play(self, **answers: Any) -> None:
        """From now on a new child answers like this."""
        (self.folder / "script").write_text(repr({**GOOD, **answers}))

    def child(self) -> Child:
        return Child(solution(), "cpu", interpret=False)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    fake = tmp_path / "fake"
    fake.write_text(FAKE.format(python=sys.executable, script=str(tmp_path / "script")))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    before = open_descriptors()
    yield Stage(tmp_path, monkeypatch)
    assert open_descriptors() == before
    assert list(scratch.iterdir()) == []


def entry(i: int = 0) -> dict[str, Any]:
    """An entry point of its own: what failed once to load is not asked for again."""
    return {"entry": f"kernel.py::f{i}", "call": "return", "prepare": None, "supports": []}


def failure(child: Child, i: int = 0) -> ChildFailed | None:
    """How loading fails, if it does: soon, and in words that can be shown."""
    try:
        with soon(f"entry point {i}"):
            child.load(entry(i))
    except ChildFailed as failed:
        assert all(c.isprintable() or c in "\n\t" for c in failed.message), failed.message
        assert len(failed.message) < 12_000
        CheckResult.model_validate({**RESULT, "status": failed.status, "message": failed.message})
        return failed
    return None


RESULT = {"definition": "d", "workload": "w", "suite": "smoke", "solution": "s", "device": "cpu"}


def test_the_fake_is_taken_for_a_worker(stage: Stage) -> None:
    stage.play()
    with stage.child() as child:
        assert [failure(child, i) for i in range(3)] == [None] * 3
        assert child.deaths == 0


def line(message: Any) -> bytes:
    """A message as bytes; the text "ID" becomes the request's own."""
    return text_of(message).encode().replace(b'"ID"', b"ID") + b"\n"


def test_whatever_a_failing_child_says_is_shown_and_nothing_else(stage: Stage) -> None:
    """An error with odd things in every field ends no child: one process says thousands of them."""
    good = {"op": "error", "id": "ID", "kind": "compile", "message": "m", "trace": "t", "more": [{"a": 1}]}
    spots = [place for place, _ in places(good) if place and place[0] not in ("op", "id")]
    values = [*ODD, "\x1b]0;title\x07", "\r\n\t\v", "\ud800\udfff", "a" * 100_000, "tampered", "shape", Raw("1" * 4300)]
    said = [replaced(good, place, value) for place in spots for value in values]
    said += [{**good, "fatal": value} for value in (0, "", [], {}, None, False)]
    rng = random.Random(SEED)
    while len(said) < CHILDREN["errors"]:
        said.append(replaced(rng.choice(said), (rng.choice(["kind", "message", "trace"]),), rng.choice(values)))
    said += [{key: good[key] for key in good if key != dropped} for dropped in good if dropped not in ("op", "id")]
    stage.play(load=[[line(message)] for message in said])
    known = {"compile": "COMPILE_ERROR", "tampered": "TAMPERED", "shape": "INCORRECT_SHAPE"}
    with stage.child() as child:
        for i, message in enumerate(said):
            failed = failure(child, i)
            assert failed is not None, message
            kind = message.get("kind")
            assert failed.status == (known.get(kind, "PROTOCOL_ERROR") if isinstance(kind, str) else "PROTOCOL_ERROR")
        assert child.deaths == 0
    assert len(said) >= CHILDREN["errors"]


def garbage() -> Iterator[tuple[str, list[Any], str]]:
    """What a child may send in place of an answer, and the status of it."""
    good = {"op": "loaded", "id": "ID"}
    rng = random.Random(SEED)
    for i in range(15):
        yield (
            f"random bytes {i}",
            [rng.randbytes(rng.choice([1, 9, 400])).replace(b"ID", b"") + b"\n"],
            "PROTOCOL_ERROR",
        )
    texts = [
        b"\n",
        b"\x00\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'"op"\n',
        b'{"op": 1}\n',
        b"\xff\xfe\n",
        b'{"op": "loaded"}\n',
    ]
    texts += [b'{"op": "loaded", "id": ID}}\n', b"Traceback (most recent call last):\n", b"\xef\xbb\xbf" + line(good)]
    texts += [b"[" * 100_000 + b"\n", b'{"op":' * 50_000 + b"\n", b'{"op": "loaded", "id": ' + b"9" * 5000 + b"}\n"]
    texts += [line({**good, "seconds": Raw(token)}) for token in ("NaN", "Infinity", "01", "'a'")]
    texts += [
        line({**good, "id": id}) for id in (0, -1, 2, 99, None, "1", [1], {"id": 1}, 1.5, 10**30, "x" * 9999, "\ud800")
    ]
    texts += [
        line({**good, "op": op})
        for op in ("", "done", "ready", "LOADED", "loaded\x00", "\ud800", "\x1b[2J", "e" * 99_999)
    ]
    texts += [line({**good, "op": op}) for op in (None, 1, True, [], {}, ["loaded"])]
    for i, text in enumerate(texts):
        yield f"text {i}: {text[:40]!r}", [text], "PROTOCOL_ERROR"
    yield "a huge line", [b"x" * (5 << 20) + b"\n"], "PROTOCOL_ERROR"
    yield "a huge message", [line({**good, "pad": "x" * (5 << 20)})], "PROTOCOL_ERROR"
    yield "a fatal error", [line({"op": "error", "id": "ID", "kind": "runtime", "fatal": True})], "RUNTIME_ERROR"
    yield (
        "fatal in another word",
        [line({"op": "error", "id": "ID", "kind": "\ud800", "fatal": "no"})],
        "PROTOCOL_ERROR",
    )
    for cut in (0, 1, 9, 20):
        yield f"{cut} bytes and an end", [line(good)[:cut], "sys.exit(0)"], "RUNTIME_ERROR"
    yield "an end", ["sys.exit(7)"], "RUNTIME_ERROR"
    yield "a kill", ["os.kill(os.getpid(), 9)"], "RUNTIME_ERROR"
    yield (
        "noise on stdout",
        ["os.write(1, os.urandom(100000) + b'\\x1b[2J\\xed\\xa0\\x80'); sys.exit(1)"],
        "RUNTIME_ERROR",
    )
    yield "an heir", ["leave"], "RUNTIME_ERROR"
    yield "a closed channel", ["close", 0.1, "sys.exit(0)"], "RUNTIME_ERROR"


SLOW = [
    ("silence", [b"", 10 * PATIENCE]),
    ("half a line", [b'{"op": "loaded", ', 10 * PATIENCE]),
    ("a trickle", ["while True: send(b'x'), time.sleep(0.02)"]),
]


def test_a_child_that_sends_garbage_is_ended_with_its_status(stage: Stage) -> None:
    """In answer to a request and in place of its greeting; the next request finds a new child."""
    count = 0
    for what, parts, status in garbage():
        for op in ("load", "hello")[: 1 + (count % 3 == 0)]:
            stage.play(**{op: [parts]})
            with stage.child() as child:
                failed = failure(child)
                if op == "hello" and "fatal" in what:
                    status = "PROTOCOL_ERROR"  # nothing was asked yet
                if op == "hello" and failed is None:
                    assert parts[0].startswith(b'{"op": "ready"'), what
                    continue
                assert failed is not None, f"{op}: {what}"
                assert failed.status == status, f"{op}: {what}: {failed.message}"
                assert child.deaths == 1, what
                if count % 4 == 0:
                    stage.play()
                    assert failure(child, 1) is None, f"{op}: {what}: no new child"
            count += 1
    assert count >= CHILDREN["ends"]


@pytest.mark.parametrize(("what", "parts"), SLOW, ids=[what for what, _ in SLOW])
@pytest.mark.parametrize("op", ["hello", "load"])
def test_a_child_that_keeps_the_judge_waiting_is_ended_in_time(
    stage: Stage, op: str, what: str, parts: list[Any]
) -> None:
    stage.patch.setattr(child_module, {"hello": "START_SECONDS", "load": "BUILD_SECONDS"}[op], 0.5)
    stage.play(**{op: [parts]})
    with stage.child() as child:
        failed = failure(child)
        assert failed is not None
        assert (failed.status, child.deaths) == ("TIMEOUT", 1)
        assert "no answer within 0.5 s" in failed.message


def test_answers_that_come_before_they_are_asked_for_are_out_of_turn(stage: Stage) -> None:
    stage.play(load=[[b'{"op": "loaded", "id": ID}\n{"op": "loaded", "id": ID}\n']])
    with stage.child() as child:
        assert failure(child, 0) is None
        failed = failure(child, 1)
        assert failed is not None
        assert (failed.status, child.deaths) == ("PROTOCOL_ERROR", 1)


def test_descriptors_of_a_child_are_not_kept(stage: Stage) -> None:
    stage.play(load=[["descriptors", b'{"op": "loaded", "id": ID}\n']])
    with stage.child() as child:
        assert failure(child, 0) is None
        before = open_descriptors()
        assert [failure(child, i) for i in range(1, 30)] == [None] * 29
        assert open_descriptors() == before


# --- the whole way to a result -----------------------------------------------------------------------------------


def results(count: int) -> list[CheckResult]:
    """Verdicts on one workload asked for again and again."""
    found = definition("gdn_decode_k_last")
    lines = [workload for workload in workloads(found) if workload.name == "one_row"]
    where = machine.device("cpu")
    assert where is not None
    jobs = list(plan([solution()], [(found, lines)], where)) * count
    return list(Checker("cpu", Options(timeout=PATIENCE), lambda _: None).run(jobs))


def recorded(rows: list[CheckResult], file: Path) -> None:
    """A result of whatever a child said can be written, read again and shown."""
    with Recorder(file) as recorder:
        for row in rows:
            recorder.write(row)
    warnings: list[str] = []
    earlier(file, warnings.append)
    assert warnings == []
    for row in rows:
        assert all(c.isprintable() or c in "\n\t" for c in row.message + row.isolation), row
        assert len(row.message + row.isolation) < 12_000


FORM = [{"shape": [1, 1, 2, 64], "dtype": "bfloat16"}, {"shape": [1, 2, 64, 64], "dtype": "float32"}]
DONE = {"op": "done", "id": "ID", "seconds": 0.25, "returned": FORM}


def answers(values: list[Any]) -> list[tuple[dict[str, Any], str]]:
    """Right answers of one call but for one thing each, and the verdict that follows: no output was ever written."""
    spots = [(place, old) for place, old in places(DONE) if place and place[0] not in ("op", "id")]
    return [(replaced(DONE, place, new), verdict(place, old, new)) for place, old in spots for new in values]


def verdict(place: tuple[str | int, ...], old: Any, new: Any) -> str:
    if place == ("returned",) or (len(place) == 2 and not isinstance(new, dict)):
        return "PROTOCOL_ERROR"
    if "dtype" in place:
        return "INCORRECT_DTYPE"
    return "NON_FINITE" if place == ("seconds",) or new == old else "INCORRECT_SHAPE"


def test_whatever_is_said_of_a_call_there_is_a_verdict(stage: Stage, tmp_path: Path) -> None:
    said = answers([value for value in ODD if value not in UNSHOWABLE])
    opened = [{"op": "opened", "id": "ID", "prepare_seconds": value} for value in ODD]
    stage.play(call=[[line(message)] for message, _ in said], open=[[line(message)] for message in opened])
    rows = results(len(said))
    for row, (message, status) in zip(rows, said, strict=True):
        assert row.status == status, (str(message)[:300], row.message)
        assert 0 <= row.seconds < 1e9
        assert row.prepare_seconds is None or 0 <= row.prepare_seconds < 1e9
    recorded(rows, tmp_path / "results.jsonl")
    assert len(said) >= CHILDREN["calls"]


# Halves of surrogate pairs, and what a terminal does not show but obeys.
UNSHOWABLE = ["\ud800", "\x00", "\ufeff", "\u202e", "\x1b[2J"]


@pytest.mark.parametrize("value", UNSHOWABLE, ids=ascii)
def test_a_form_that_cannot_be_shown_is_quoted_as_what_can(stage: Stage, tmp_path: Path, value: str) -> None:
    said = answers([value])
    stage.play(call=[[line(message)] for message, _ in said])
    recorded(results(len(said)), tmp_path / "results.jsonl")


@pytest.mark.parametrize("value", [*UNSHOWABLE, "x" * 100_000], ids=lambda value: ascii(value)[:12])
def test_isolation_that_cannot_be_shown_is_quoted_as_what_can(stage: Stage, tmp_path: Path, value: str) -> None:
    stage.play(hello=[[line({"op": "ready", "isolation": value})]])
    recorded(results(1), tmp_path / "results.jsonl")


@pytest.mark.parametrize("id", ["true", "1.0", "1e0"])
def test_an_id_of_another_type_is_another_id(stage: Stage, id: str) -> None:
    stage.play(load=[[line({"op": "loaded", "id": Raw(id)})]])
    with stage.child() as child:
        failed = failure(child)
        assert failed is not None
        assert failed.status == "PROTOCOL_ERROR"

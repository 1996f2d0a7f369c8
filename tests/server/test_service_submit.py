"""gdnspec submit --to: what is said of a server that is down, slow, another's or of another version; and one that
works, with bundles that mean well and bundles that mean harm."""

import http.server
import json
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from gdnspec.catalog.solutions import load_solution
from gdnspec.server.api import ROOT
from gdnspec.server.client import Client, ServiceError
from gdnspec.submission.evidence import EVIDENCE, folder_of
from helpers_bundles import DECODE, bundle_of, claimed
from helpers_service import Box, served
from patience import until

Make = Callable[..., Path]
ARGUMENTS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
RIGHT = f"def run{ARGUMENTS}:\n    return decode_k_last{ARGUMENTS}\n"
FEW = ["batch_size == 1 and num_v_heads <= 4"]
ENTRIES = {DECODE: {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": FEW}}


def with_evidence(folder: Path) -> Path:
    """As if `gdnspec submit` had recorded it before, and nothing since: other tests have solutions of this name."""
    solution = load_solution(folder)
    recorded = claimed(solution)
    target = folder_of(solution)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name, data in recorded.files.items():
        (target / name).write_bytes(data)
    (target / EVIDENCE).write_text(recorded.evidence.model_dump_json())
    return folder.parent


class Fake(http.server.BaseHTTPRequestHandler):
    """Answers every request alike, or not at all; keeps what it was sent."""

    body = b""
    status = 200
    silent: threading.Event | None = None  # until it is set
    location = ""
    seen: list[dict[str, str]]

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        if self.silent is not None:
            self.silent.wait()
        self.send_response(self.status)
        if self.location:
            self.send_header("Location", self.location)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def fake() -> Iterator[Callable[..., Any]]:
    servers, silent = [], []

    def make(**fields: Any) -> Any:
        if "silent" in fields:
            silent.append(fields["silent"])
        handler = type("Handler", (Fake,), {"seen": [], **fields})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield make
    for event in silent:
        event.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def url(server: Any) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def service(**changes: Any) -> bytes:
    """What a server says of itself."""
    content = {"service": "gdnspec", "api": 1, "gdnspec": "9.9", "device": "cpu", "slots": 1, "upload_limit": 1,
               "queue_limit": 1, "rate": 1.0, "burst": 1}  # fmt: skip
    return json.dumps({**content, **changes}).encode()


def asked(address: str, **more: Any) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        Client(address, "t", lambda _: None, **{"patience": 0.5, **more}).service()
    assert str(error.value).isprintable()
    return error.value


def test_a_server_that_is_down_slow_or_another_is_told_in_a_line(fake: Callable[..., Any]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}"  # taken, so that no other test listens there
        for address, more, says, code in (
            (gone, {}, "Connection refused; gave up after 0.5 s", 3),
            (url(fake(silent=threading.Event())), {"slow": 0.2}, "no answer in time", 3),
            (url(fake(status=503, body=b"{}")), {}, "HTTP 503", 3),
            (url(fake(status=500, body=b"\x1b[2J")), {}, "HTTP 500", 3),
            (url(fake(status=404, body=b"<html>")), {}, "is this the address of a gdnspec server?", 2),
            (url(fake(body=b"<html>hello")), {}, ": not a gdnspec server", 2),
            (url(fake(body=b"[1]")), {}, ": not a gdnspec server", 2),
            (url(fake(body=service(api=2))), {}, "gdnspec 9.9 has version 2 of the interface, and this gdnspec", 2),
            (url(fake(body=service(slots="many"))), {}, "has the server another version?", 2),
            ("ftp://here", {}, "is not a server's address", 2),
            ("nonsense", {}, "is not a server's address", 2),
            ("http://example.org", {}, "a token is not sent unencrypted: use https, or a tunnel (ssh -L", 2),
        ):
            error = asked(address, **more)
            assert says in str(error), address
            assert error.exit_code == code, says


def test_a_token_goes_to_no_other_server(fake: Callable[..., Any]) -> None:
    other = fake(body=service())
    here = fake(status=302, location=f"{url(other)}{ROOT}", body=b"")
    error = asked(url(here))
    assert "HTTP 302" in str(error)
    assert here.RequestHandlerClass.seen[0]["Authorization"] == "Bearer t"
    assert other.RequestHandlerClass.seen == []


def test_the_token_comes_from_a_file_or_the_environment(gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    root = with_evidence(make_solution(RIGHT, entries=ENTRIES))
    submit = ("submit", "under_test", "--solutions-dir", root, "--reuse-evidence", "--to")
    with Box(tmp_path / "data") as box:
        token = tmp_path / "token"
        for words, env, says in (
            ((), {}, "no token: use --token-file FILE, or set GDNSPEC_TOKEN"),
            (("--token-file", tmp_path / "none"), {}, "none: no such file"),
            (("--token-file", token), {}, "token: is empty"),
            ((), {"GDNSPEC_TOKEN": "gdnspec_wrong"}, "the token is wrong, expired or revoked"),
        ):
            token.write_text("\n")
            done = gdnspec(*submit, box.url, *words, env={"GDNSPEC_TOKEN": "", **env})
            assert (done.returncode, says in done.stderr) == (2, True), done.stderr
        token.write_text(box.user("ann") + "\n")
        done = gdnspec(*submit, box.url, "--token-file", token)  # what is sent is no JSON: the process falls over
        assert done.returncode == 3, done.stderr
        assert "lost: " in done.stdout
        assert "its process failed 3 times" in done.stdout
        assert not list(Path.cwd().glob("*.bundle.tar"))
        assert token.read_text().strip() not in done.stdout + done.stderr


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """`gdnspec serve` itself."""
    with served(tmp_path_factory.mktemp("real") / "data", "--device", "cpu") as box:
        yield box
        assert box.stop(signal.SIGINT) == 0


@pytest.mark.slow
def test_a_solution_is_submitted_judged_and_shown(real: Box, gdnspec: Run, make_solution: Make, tmp_path: Path) -> None:
    root = with_evidence(make_solution(RIGHT, entries=ENTRIES))
    token = real.user("ann")
    submit = ("submit", "under_test", "--solutions-dir", root, "--reuse-evidence", "--to", real.url)
    done = gdnspec(*submit, env={"GDNSPEC_TOKEN": token}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "the server checks it on" in done.stderr
    assert f"{DECODE}  under_test  PASSED" in done.stdout
    assert "accepted: under_test" in done.stdout
    assert not (tmp_path / "under_test.bundle.tar").exists()
    (job,) = real.client(token).service() and real.ask("GET", "jobs", token).json["jobs"]
    verdicts = real.client(token).result(job["id"]).verdicts
    assert {verdict.status for verdict in verdicts} == {"PASSED", "UNSUPPORTED"}
    assert str(real.data) not in real.ask("GET", f"jobs/{job['id']}/result", token).body.decode()
    page = real.ask("GET", f"jobs/{job['id']}/report", token)
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "under_test" in page.body.decode()
    assert "Content-Security-Policy" in page.body.decode()


# By a way that the audit, which reads what is written plainly, notes and does not refuse.
EVALUATE = "vars(torch)['builtins'].eval"
HARM = {
    "the token store": "open({data!r} + '/service.db', 'rb').read(1)",
    "a slot": "open({data!r} + '/slot-0.lock', 'w')",
    "the server's memory": "open('/proc/{pid}/mem', 'rb').read(1)",
    "the server's environment": "open('/proc/{pid}/environ', 'rb').read(1)",
    "the service": "__import__('socket').create_connection(('127.0.0.1', {port}), 2)",
    "other jobs": "__import__('os').listdir({data!r} + '/work')",
    "the server itself": "__import__('os').kill({pid}, 9)",
}
CONTROL = "open('/proc/self/status').read(1)"  # which it may


@pytest.mark.slow
def test_a_bundle_that_means_harm_reaches_nothing(real: Box, make_solution: Make, tmp_path: Path) -> None:
    token = real.user("eve")
    assert real.process is not None
    facts = {"data": str(real.data), "pid": real.process.pid, "port": real.port}
    tries = {**{what: harm.format(**facts) for what, harm in HARM.items()}, "control": CONTROL}
    body = "".join(
        f"    try:\n        {EVALUATE}({expression!r})\n        done.append({what!r})\n"
        "    except BaseException:\n        pass\n"
        for what, expression in tries.items()
    )
    last = f"    assert done == ['control'], done\n    return decode_k_last{ARGUMENTS}\n"
    code = f"def run{ARGUMENTS}:\n    done = []\n{body}{last}"
    folder = make_solution(f"import torch\n{code}", name="harm", entries=ENTRIES)
    before = sorted(path.name for path in real.data.iterdir())
    sent = real.client(token).submit(bundle_of(folder, tmp_path / "a.tar").read_bytes())
    ended = real.ended(token, sent.id)
    assert ended.state == "accepted", ended.reasons  # a right kernel, which has reached nothing but what it may
    assert sorted(path.name for path in real.data.iterdir()) == sorted({*before, "slot-0.lock"})
    until(lambda: not list((real.data / "work").iterdir()))

    broken = real.client(token).submit(b"no archive" * 100)
    ended = real.ended(token, broken.id)
    assert (ended.state, ended.attempt) == ("invalid", 1)
    assert ended.reasons[0].startswith("bundle.tar: ")

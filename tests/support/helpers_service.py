"""A server in a process of its own, and who asks it."""

import contextlib
import http.client
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import forked_command
from gdnspec.server.api import ROOT, TAR, Job
from gdnspec.server.client import Client
from gdnspec.server.data_folder import opened
from gdnspec.server.database import Database
from gdnspec.server.jobs import Jobs
from gdnspec.server.settings import Settings
from gdnspec.server.tokens import Tokens
from patience import PATIENCE, until

HERE = Path(__file__).resolve().parent
SERVER = HERE / "server_process.py"
RUNNER = [sys.executable, "-I", "-S", str(HERE / "server_runner.py")]


class Answer(NamedTuple):
    """Of a request, read whole."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Of an error, whose body has this form and no other."""
        said = self.json
        assert set(said) == {"error"}, said
        assert set(said["error"]) == {"code", "message"}, said
        assert said["error"]["message"]
        return str(said["error"]["code"])


class Box:
    """A server on a data folder; `start` again after a kill keeps the port."""

    def __init__(self, data: Path, log: Path | None = None, **settings: Any) -> None:
        self.log = log or data.parent / "log"
        # Without limits that a slow machine could meet: a test that is about one sets it.
        none = {"rate": 60000.0, "burst": 1000, "lease": 10 * PATIENCE, "upload_seconds": PATIENCE}
        self.data, self.settings = data, {"runner": RUNNER, **none, **settings}
        self.database: Database = opened(Settings(data))
        self.port = 0
        self.process: subprocess.Popen[str] | forked_command.Forked | None = None

    def start(self) -> "Box":
        arguments = [str(self.data), json.dumps({**self.settings, "port": self.port})]
        self.port = int(self._said_first(arguments))
        return self

    def _said_first(self, arguments: list[str]) -> str:
        self.process = forked_command.Forked(SERVER, arguments, self.log)
        return self.process.first_line()

    def __enter__(self) -> "Box":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        if isinstance(self.process, subprocess.Popen) and self.process.stdout is not None:
            self.process.stdout.close()
        return code

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def said(self) -> str:
        return self.log.read_text()

    def user(self, name: str, days: float = 1.0) -> str:
        """A token."""
        return Tokens(self.database).add(name, days)

    def client(self, token: str, **more: Any) -> Client:
        return Client(self.url, token, lambda _: None, **{"patience": PATIENCE, "slow": PATIENCE, **more})

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        body: Any = None,
        timeout: float = PATIENCE,
        **headers: str,
    ) -> Answer:
        """One request; `path` below /v1 where it does not begin with a slash."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        try:
            connection.request(method, path if path.startswith("/") else f"{ROOT}/{path}", body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def send(self, token: str, key: str | None = None, **what: Any) -> Answer:
        """A bundle that says what `server_runner` is to do. `until`: a file that must be there before it goes on from
        its first verdict."""
        headers = {"Content_Type": TAR, **({"Idempotency_Key": key} if key else {})}
        return self.ask("POST", "jobs", token, bundle(**what), **headers)

    def job(self, token: str, **what: Any) -> str:
        sent = self.send(token, **what)
        assert sent.status == 201, sent
        return str(sent.json["id"])

    def ended(self, token: str, name: str) -> Job:
        ended = until(lambda: (job := self.client(token).job(name)).ended and job)
        assert isinstance(ended, Job)
        return ended

    def processes(self, inner: bool = True) -> dict[int, str]:
        """The job's folder of each process that works below it; without `inner` those alone that run a job."""
        found, work = {}, self.data / "work"
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    cwd = (folder / "cwd").readlink()
                except OSError:
                    continue
                if cwd.parent == work or (inner and work in cwd.parents):
                    found[int(folder.name)] = cwd.relative_to(work).parts[0]
        return found


class BoxFromNothing(Box):
    """For a process that can have no server of forks: one in a file system of its own."""

    def _said_first(self, arguments: list[str]) -> str:
        with self.log.open("a") as log:
            command = [sys.executable, str(SERVER), *arguments]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextlib.contextmanager
def served(data: Path, *options: str) -> Iterator[Box]:
    """`gdnspec serve` itself, as it starts on a free port; ended where the caller has not done so."""
    data.parent.mkdir(exist_ok=True)
    box = Box(data)
    command = [sys.executable, "-m", "gdnspec", "serve", "--data", str(data), "--port", "0", *options]
    with box.log.open("a") as log:
        box.process = process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    says = process.stdout.readline()
    assert says.startswith("serving on http://127.0.0.1:"), box.said
    box.port = int(says.split(":")[2])
    try:
        yield box
        assert "Traceback" not in box.said
    finally:
        if process.poll() is None:
            box.stop()


def begun(journal: Path) -> list[str]:
    """Attempts that the processes of jobs have noted, in order."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [line.split()[1] for line in lines if line.startswith("start ")]


def set_clock(file: Path, ahead: float) -> None:
    """The file that the `ahead` of a `Box` names: seconds that its clock is wrong by."""
    new = file.with_name("new")
    new.write_text(str(ahead))
    new.rename(file)  # in one step: the server reads it at any time


def bundle(**what: Any) -> bytes:
    return json.dumps(what).encode()


def accept(jobs: Jobs, user: str, **what: Any) -> Job:
    """As the service does, without one."""
    data = bundle(**what)
    return jobs.accept(user, io.BytesIO(data), len(data), sha256(data).hexdigest(), None)[0]

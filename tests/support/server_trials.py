"""Trials of the service, in full or in part: python tests/support/server_trials.py load|kills.

`load`: many clients that send, poll and fetch at a time. `kills`: servers and jobs that end by SIGKILL at random
moments, with one server on a database or two. Jobs judge nothing, unless `--bundle` gives a real one.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from gdnspec.server.api import ROOT, TAR
from gdnspec.server.tokens import Tokens
from helpers_service import Box, bundle
from patience import PATIENCE

LEAST = 3  # jobs, however soon the kills are over
GREEDY = 10  # one client of so many asks without a pause


# --- load -------------------------------------------------------------------------------------------------------


class Asker(threading.Thread):
    """One user's client, on one connection: sends a bundle, polls it to its end, fetches its result, and again."""

    def __init__(self, port: int, token: str, until: float, jobs: int, greedy: bool) -> None:
        super().__init__(daemon=True)
        self._port, self._token, self._until, self._least = port, token, until, jobs
        self._pause = 0.0 if greedy else 0.5
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        self.answers: Counter[str] = Counter()
        self.problems: list[str] = []
        self.seconds: list[float] = []
        self.jobs: list[str] = []
        self.ended = 0

    def run(self) -> None:
        try:
            while self._goes_on:
                self._one()
        except Exception as error:  # whatever it is, it is what the trial looks for
            self.problems.append(f"{type(error).__name__}: {error}")
        finally:
            self._connection.close()

    @property
    def _goes_on(self) -> bool:
        return time.monotonic() < self._until or (self.ended < self._least and not self.problems)

    def _one(self) -> None:
        headers = {"Content-Type": TAR}
        sent = self._asked("POST", "/jobs", 201, bundle(seconds=0.02, total=1), headers)
        if sent is None:
            return
        self.jobs.append(sent["id"])
        while self._goes_on:
            job = self._asked("GET", f"/jobs/{sent['id']}", 200)
            if job is not None and job["ended"]:
                result = self._asked("GET", f"/jobs/{sent['id']}/result", 200)
                if result is not None and len(result["verdicts"]) != 1:
                    self.problems.append(f"{len(result['verdicts'])} verdicts")
                self.ended += 1
                return
            time.sleep(self._pause)

    def _asked(self, method: str, path: str, wanted: int, body: bytes | None = None, headers: Any = None) -> Any:
        """What is answered; None for the documented 429, after the time that it says."""
        began = time.monotonic()
        self._connection.request(
            method, ROOT + path, body, {**(headers or {}), "Authorization": f"Bearer {self._token}"}
        )
        answer = self._connection.getresponse()
        data = json.loads(answer.read())
        self.seconds.append(time.monotonic() - began)
        if answer.status == 429:
            self.answers[f"429 {data['error']['code']}"] += 1
            seconds = int(answer.headers["Retry-After"])
            time.sleep(seconds if self._least else min(seconds, max(0.0, self._until - time.monotonic())))
            return None
        self.answers[str(answer.status)] += 1
        if answer.status != wanted:
            self.problems.append(f"{method} {path}: {answer.status} {data}")
            return None
        return data


def load(folder: Path, clients: int, seconds: float = 0.0, slots: int = 2, jobs: int = 0) -> dict[str, Any]:
    """Each client has a user of its own, and goes on for so many seconds and until so many jobs of its own have ended.
    What was answered, how long it took, and whether every job that was accepted came to an end."""
    with Box(folder / "data", devices=[""] * slots, rate=240.0, burst=20) as box:
        tokens = [box.user(f"user{number}") for number in range(clients)]
        began = time.monotonic()
        until = began + seconds
        askers = [Asker(box.port, token, until, jobs, i % GREEDY == 0) for i, token in enumerate(tokens)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(seconds + PATIENCE)
        took_all = time.monotonic() - began
        sent = {job for asker in askers for job in asker.jobs}
        states = settled(box, PATIENCE)
    took = sorted(second for asker in askers for second in asker.seconds)
    answers = sum((asker.answers for asker in askers), Counter[str]())
    return {
        "clients": clients, "seconds": seconds, "requests": len(took), "answers": dict(answers),
        "problems": [problem for asker in askers for problem in asker.problems],
        "requests_per_second": round(len(took) / took_all, 1), "median_ms": round(1e3 * statistics.median(took), 1),
        "p99_ms": round(1e3 * took[int(0.99 * (len(took) - 1))], 1), "largest_ms": round(1e3 * took[-1], 1),
        "jobs": len(sent), "followed_to_the_end": sum(asker.ended for asker in askers),
        "lost": len(sent - set(states)), "states": dict(Counter(states.values())),
    }  # fmt: skip


def settled(box: Box, seconds: float) -> dict[str, str]:
    """The state of every job, once none waits or runs, or the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        with box.database.read() as connection:
            states = {row["id"]: row["state"] for row in connection.execute("SELECT id, state FROM jobs")}
        if time.monotonic() > deadline or not {"queued", "running"} & set(states.values()):
            return states
        time.sleep(0.1)


# --- kills ------------------------------------------------------------------------------------------------------


class Sender(threading.Thread):
    """Sends jobs as `gdnspec submit --to` does, one after the other, whatever becomes of the server meanwhile."""

    def __init__(self, box: Box, token: str, what: list[bytes], deadline: float) -> None:
        super().__init__(daemon=True)
        self._box, self._token, self._what, self._deadline = box, token, what, deadline
        self.accepted: list[str] = []
        self.problems: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        client = self._box.client(self._token)
        number = 0
        while not (self.stop.is_set() and number >= LEAST) and time.monotonic() < self._deadline:
            try:
                self.accepted.append(client.submit(self._what[number % len(self._what)]).id)
            except Exception as error:  # whatever it is, it is what the trial looks for
                self.problems.append(str(error))
                return
            number += 1
            self.stop.wait(0.2)


def kills(
    folder: Path, count: int, servers: int = 1, slots: int = 2, seed: int = 0, pause: float = 1.0, real: bytes = b"",
    **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """That many kills of a server or of a job's process, each at a random moment within `pause` seconds of the last."""
    chance, journal = random.Random(seed), folder / "journal"
    more = {"devices": [""] * slots, "lease": 1.0, "queue_limit": 1000, **settings}
    boxes = [Box(folder / "data", **more).start() for _ in range(servers)]
    token = Tokens(boxes[0].database).add("ann", 1.0)
    what = [real] if real else [bundle(seconds=s, total=3, journal=str(journal)) for s in (0.1, 0.4, 0.8)]
    sender = Sender(boxes[0], token, what, time.monotonic() + PATIENCE + 2 * pause * count)
    sender.start()
    hit: Counter[str] = Counter()
    killed: Counter[str] = Counter()  # jobs, by how often: three times, and a job is given up
    try:
        while hit.total() < count:
            time.sleep(chance.uniform(0, pause))
            jobs = [(pid, name) for pid, name in boxes[0].processes(False).items() if killed[name.split("-")[1]] < 2]
            if jobs and chance.random() < 0.3:
                pid, name = chance.choice(jobs)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed[name.split("-")[1]] += 1
                    hit["job"] += 1
            else:
                box = chance.choice(boxes)
                box.stop(signal.SIGKILL)
                hit["server"] += 1
                box.start()
        sender.stop.set()
        sender.join(PATIENCE)
        states = settled(boxes[0], PATIENCE)
        with boxes[0].database.read() as connection:
            results = Counter(row["job"] for row in connection.execute("SELECT job FROM results"))
            attempts = [row["attempt"] for row in connection.execute("SELECT attempt FROM jobs")]
            ends = Counter(row["job"] for row in connection.execute("SELECT job FROM events WHERE kind = 'ended'"))
    finally:
        for box in boxes:
            box.stop()
    accepted = set(sender.accepted)
    return {
        "kills": dict(hit), "servers": servers, "sent": len(sender.accepted), "problems": sender.problems,
        "lost": len(accepted - set(states)), "not_asked_for": len(set(states) - accepted),
        "states": dict(Counter(states.values())), "most_attempts": max(attempts), "attempts": sum(attempts),
        "without_one_result": [job for job in states if results[job] != 1 or ends[job] != 1],
        "attempts_begun_twice": twice(journal), "left_running": len(boxes[0].processes()),
    }  # fmt: skip


def twice(journal: Path) -> list[str]:
    """Attempts that were begun more than once: what a claim by one server, and a number for each, is to prevent."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    begun = Counter(line.split()[1] for line in lines if line.startswith("start"))
    return [attempt for attempt, times in begun.items() if times > 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trial", choices=("load", "kills"))
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=2.0)
    parser.add_argument("--bundle", type=Path, help="a real one, judged for real")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if given.trial == "load":
            found = load(folder, given.clients, given.seconds, given.slots)
        elif given.bundle is None:
            found = kills(folder, given.count, given.servers, given.slots, given.seed, given.pause)
        else:
            from gdnspec.server.settings import Settings

            real, runner = given.bundle.read_bytes(), list(Settings(folder).runner)
            found = kills(folder, given.count, given.servers, given.slots, given.seed, given.pause, real, runner=runner)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

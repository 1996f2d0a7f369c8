"""What the service answers: to whom, to nobody, and to whom it does not know."""

import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gdnspec.server.api import ROOT, TAR, Result
from gdnspec.server.client import Client, ServiceError
from gdnspec.server.data_folder import opened
from gdnspec.server.jobs import Jobs
from gdnspec.server.limits import Rate
from gdnspec.server.queue import Queue
from gdnspec.server.retention import AT_ONCE, prune
from gdnspec.server.settings import Settings
from gdnspec.server.tokens import Tokens
from helpers_service import Answer, Box, accept, bundle
from patience import PATIENCE, until

SELDOM = 1e-3  # requests a minute: none in the time of a test
ROUTES = [
    ("GET", "jobs"), ("POST", "jobs"), ("GET", "jobs/{job}"), ("DELETE", "jobs/{job}"), ("GET", "jobs/{job}/events"),
    ("GET", "jobs/{job}/result"), ("GET", "jobs/{job}/report"), ("GET", "jobs/{job}/bundle"), ("GET", "/"),
]  # fmt: skip


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder = tmp_path_factory.mktemp("box")
    with Box(folder / "data", upload_limit=100_000, queue_limit=4, devices=["", ""]) as found:
        yield found


@pytest.fixture(scope="module")
def ann(box: Box) -> str:
    return box.user("ann")


@pytest.fixture(scope="module")
def bob(box: Box) -> str:
    return box.user("bob")


def test_a_job_from_sending_to_result(box: Box, ann: str) -> None:
    sent = box.send(ann, name="first", total=3)
    assert sent.status == 201
    name = sent.json["id"]
    assert sent.headers["location"] == f"{ROOT}/jobs/{name}"
    job = box.ended(ann, name)
    assert (job.state, job.solution, job.done, job.total, job.attempt) == ("accepted", "first", 3, 3, 1)
    assert job.reasons == ["as it was told"]
    result = Result.model_validate_json(box.ask("GET", f"jobs/{name}/result", ann).body)
    assert [verdict.workload for verdict in result.verdicts] == ["w0", "w1", "w2"]
    assert result.job == job
    assert name in [row["id"] for row in box.ask("GET", "jobs", ann).json["jobs"]]


def test_lists_go_on_where_they_ended(box: Box) -> None:
    eve = box.user("eve")
    names = []
    for _ in range(5):
        names.append(box.job(eve))
        box.ended(eve, names[-1])
    first = box.ask("GET", "jobs?most=3", eve).json
    assert [row["id"] for row in first["jobs"]] == names[:1:-1]
    rest = box.ask("GET", f"jobs?most=3&before={first['next']}", eve).json
    assert [row["id"] for row in rest["jobs"]] == names[1::-1]
    assert rest["next"] is None


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_a_valid_token_nothing_is_said(box: Box, ann: str, method: str, path: str) -> None:
    name = box.send(ann, key="one job for all routes").json["id"]
    expired, revoked = box.user(f"late{hash((method, path)) % 10**9}", days=0.0), "gdnspec_" + "x" * 43
    for token in (None, "", "wrong", ann[:-1], ann + "x", expired, revoked, "gdnspec_' OR 1=1 --"):
        answer = box.ask(method, path.format(job=name), token, Content_Type=TAR)
        assert (answer.status, answer.code) == (401, "unauthorised"), token
        assert "www-authenticate" in answer.headers
        assert name not in answer.body.decode()
    for given in ("Basic", "Basic x", "Bearer", f"Token {ann}"):
        assert box.ask(method, path.format(job=name), None, Authorization=given).status == 401


def test_a_token_ends_when_it_is_revoked(box: Box) -> None:
    from gdnspec.server.tokens import Tokens, UserExists

    tokens = Tokens(box.database)
    token = box.user("carl")
    assert box.ask("GET", "jobs", token).status == 200
    with pytest.raises(UserExists):
        tokens.add("carl", 1.0)
    assert tokens.revoke("carl") == 1
    assert box.ask("GET", "jobs", token).code == "unauthorised"
    assert tokens.revoke("carl") == 0
    new = tokens.add("carl", 1.0)
    assert box.ask("GET", "jobs", new).status == 200
    assert [row.state(time.time()) for row in tokens.listed() if row.user == "carl"] == ["revoked", "valid"]


def test_a_token_is_kept_as_its_hash_alone(box: Box, ann: str) -> None:
    assert box.ask("GET", "jobs", ann).status == 200
    kept = b"".join(file.read_bytes() for file in box.data.rglob("*") if file.is_file())
    assert len(kept) > 10_000
    assert ann.removeprefix("gdnspec_").encode() not in kept
    assert ann not in box.said


def test_others_jobs_are_not_there(box: Box, ann: str, bob: str, tmp_path: Path) -> None:
    name = box.job(ann, until=str(tmp_path / "goes on"))
    for method, path in ROUTES:
        if "{job}" in path:
            theirs, none = (box.ask(method, path.format(job=job), bob) for job in (name, "0" * 16))
            assert (theirs.status, theirs.code) == (none.status, none.code) == (404, "not_found"), path
            assert theirs.body.replace(name.encode(), b"0" * 16) == none.body
    assert name not in box.ask("GET", "jobs", bob).body.decode()
    (tmp_path / "goes on").touch()
    assert box.ended(ann, name).state == "accepted"  # nobody has cancelled it


def read_events(box: Box, token: str, name: str, **headers: str) -> list[dict[str, Any]]:
    answer = box.ask("GET", f"jobs/{name}/events", token, **headers)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "data" in fields:
            event = json.loads(fields["data"])
            assert (fields["id"], fields["event"]) == (str(event["id"]), event["kind"])
            found.append(event)
    return found


def test_events_come_as_they_happen_and_go_on_where_they_were_cut_off(box: Box, ann: str, tmp_path: Path) -> None:
    name = box.job(ann, total=4, until=str(tmp_path / "goes on"))
    seen = []
    for event in box.client(ann).events(name):
        seen.append(event.id)
        if event.kind == "verdict":
            break  # cut off here
    assert box.client(ann).job(name).state == "running"
    (tmp_path / "goes on").touch()
    rest = read_events(box, ann, name, Last_Event_ID=str(seen[-1]))
    every = read_events(box, ann, name)
    kinds = ["queued", "started", "opened", "workloads", *["verdict"] * 4, "ended"]
    assert [event["kind"] for event in every] == kinds
    assert seen + [event["id"] for event in rest] == [event["id"] for event in every]
    assert every[-1]["status"] == "accepted"
    # Who has seen the end does not wait for another: a stream that did would never end.
    assert read_events(box, ann, name, Last_Event_ID=str(every[-1]["id"])) == []
    assert read_events(box, ann, name, Last_Event_ID=str((1 << 63) - 1)) == []
    for wrong in ("-1", "x", "1e3", str(1 << 63), "9" * 30):  # the database's numbers end at 2^63
        assert box.ask("GET", f"jobs/{name}/events", ann, Last_Event_ID=wrong).code == "bad_request"


def test_too_many_streams_at_a_time(box: Box, tmp_path: Path) -> None:
    gus = box.user("gus")
    name = box.job(gus, until=str(tmp_path / "never"))
    streams = [http.client.HTTPConnection("127.0.0.1", box.port) for _ in range(16)]
    for stream in streams:
        stream.request("GET", f"{ROOT}/jobs/{name}/events", headers={"Authorization": f"Bearer {gus}"})
        assert stream.getresponse().read(5) == b"retry"
    answer = box.ask("GET", f"jobs/{name}/events", gus)
    assert (answer.status, answer.code) == (429, "too_many_streams")
    for stream in streams:
        stream.close()
    box.ask("DELETE", f"jobs/{name}", gus)
    until(lambda: box.ask("GET", f"jobs/{name}/events", gus).status == 200)


def test_a_waiting_job_is_cancelled_at_once(box: Box, tmp_path: Path) -> None:
    dan, journal = box.user("dan"), tmp_path / "journal"
    before = [box.job(dan, until=str(tmp_path / "goes on")) for _ in range(2)]  # both slots
    until(lambda: all(box.client(dan).job(name).state == "running" for name in before))
    name = box.job(dan, journal=str(journal))
    assert box.client(dan).job(name).ahead == 0
    answer = box.ask("DELETE", f"jobs/{name}", dan)
    assert (answer.status, answer.json["state"]) == (202, "cancelled")
    assert box.ask("DELETE", f"jobs/{name}", dan).json["state"] == "cancelled"  # it stays so
    assert [event["kind"] for event in read_events(box, dan, name)] == ["queued", "ended"]
    (tmp_path / "goes on").touch()
    assert [box.ended(dan, other).state for other in before] == ["accepted"] * 2
    assert box.ask("DELETE", f"jobs/{before[0]}", dan).code == "conflict"
    assert not journal.exists()  # it was never run


def test_a_running_job_is_cancelled_with_all_that_it_has_started(box: Box, ann: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    name = box.job(ann, until=str(tmp_path / "never"), orphan=True, journal=str(journal))
    until(lambda: "orphan" in (journal.read_text() if journal.exists() else ""))
    running = {int(line.split()[2]) for line in journal.read_text().splitlines()}
    assert len(running) == 2
    assert box.ask("GET", f"jobs/{name}/result", ann).code == "conflict"
    assert box.ask("DELETE", f"jobs/{name}", ann).status == 202
    assert box.ended(ann, name).state == "cancelled"  # of a job that would not end
    assert not [pid for pid in running if alive(pid)]
    assert box.ask("GET", f"jobs/{name}/result", ann).json["verdicts"] == []
    until(lambda: not list((box.data / "work").glob(f"job-{name}-*")))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_process_that_falls_over_is_tried_three_times(box: Box, ann: str) -> None:
    for how, says in (("crash", f"{signal.SIGSEGV.name}: it fell over"), ("garble", "not a line of a job")):
        name = box.job(ann, **{how: True})
        job = box.ended(ann, name)
        assert (job.state, job.attempt) == ("lost", 3)
        assert "failed 3 times" in job.reasons[0]
        assert says in job.reasons[0]
        assert [e["kind"] for e in read_events(box, ann, name)].count("again") == 2


def test_a_request_that_is_sent_again_is_one_job(box: Box, ann: str, bob: str) -> None:
    first = box.send(ann, key="k1", name="again")
    again = box.send(ann, key="k1", name="again")
    assert (first.status, again.status) == (201, 200)
    assert first.json["id"] == again.json["id"]
    other = box.send(ann, key="k1", name="another")
    assert (other.status, other.code) == (409, "conflict")
    assert box.send(bob, key="k1", name="bobs").json["id"] != first.json["id"]
    for token in (ann, bob):
        until(lambda token=token: all(row["ended"] for row in box.ask("GET", "jobs", token).json["jobs"]))


def test_a_name_is_its_first_users(box: Box, ann: str, bob: str, tmp_path: Path) -> None:
    box.ended(ann, box.job(ann, name="claimed"))
    theirs = box.ended(bob, box.job(bob, name="claimed", until=str(tmp_path / "never")))
    assert theirs.state == "refused"
    assert "'claimed' is taken by another user" in theirs.reasons[0]
    assert box.ended(ann, box.job(ann, name="claimed")).state == "accepted"


def test_too_many_jobs_of_one_user(box: Box, tmp_path: Path) -> None:
    fay = box.user("fay")
    for _ in range(4):
        box.job(fay, until=str(tmp_path / "goes on"))
    answer = box.send(fay)
    assert (answer.status, answer.code) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    (tmp_path / "goes on").touch()
    until(lambda: box.send(fay).status == 201)


def chunked(box: Box, token: str, chunks: Iterator[bytes]) -> Answer:
    return box.ask("POST", "jobs", token, chunks, Content_Type=TAR)


def test_what_is_no_bundle_is_not_taken(box: Box, ann: str) -> None:
    before = len(box.ask("GET", "jobs?most=200", ann).json["jobs"])
    kinds = {"Content_Type": TAR}
    for answer, status, code in (
        (box.ask("POST", "jobs", ann, b"x"), 415, "media_type"),
        (box.ask("POST", "jobs", ann, b"x", Content_Type="text/plain"), 415, "media_type"),
        (box.ask("POST", "jobs", ann, b"", **kinds), 400, "bad_request"),
        (box.ask("POST", "jobs", ann, b"x" * 100_001, **kinds), 413, "too_large"),
        (chunked(box, ann, (b"x" * 10_000 for _ in range(11))), 413, "too_large"),
        (box.ask("POST", "jobs", ann, b"x", Idempotency_Key="k" * 101, **kinds), 400, "bad_request"),
    ):
        assert (answer.status, answer.code) == (status, code)
    # The length told is over the limit: refused before any of it is sent.
    connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=PATIENCE)
    connection.putrequest("POST", f"{ROOT}/jobs")
    for header in (("Content-Length", str(10 << 30)), ("Content-Type", TAR), ("Authorization", f"Bearer {ann}")):
        connection.putheader(*header)
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert len(box.ask("GET", "jobs?most=200", ann).json["jobs"]) == before


def test_a_bundle_that_never_comes_whole_is_not_waited_for(tmp_path: Path) -> None:
    with Box(tmp_path / "data", upload_seconds=0.2) as box:
        ann = box.user("ann")
        connection = http.client.HTTPConnection("127.0.0.1", box.port, timeout=PATIENCE)
        connection.putrequest("POST", f"{ROOT}/jobs")
        for header in (("Transfer-Encoding", "chunked"), ("Content-Type", TAR), ("Authorization", f"Bearer {ann}")):
            connection.putheader(*header)
        connection.endheaders()
        connection.send(b"1\r\nx\r\n")  # a first byte, and nothing after it
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (408, "too_slow")
        connection.close()
        assert box.ask("GET", "jobs", ann).json["jobs"] == []


def test_every_error_has_one_form(box: Box, ann: str) -> None:
    for method, path, status, code in (
        ("GET", "nothing", 404, "not_found"),
        ("GET", "/etc/passwd", 404, "not_found"),
        ("PUT", "jobs", 405, "method"),
        ("GET", "jobs?most=0", 400, "bad_request"),
        ("GET", "jobs?most=x", 400, "bad_request"),
        ("GET", "jobs/..%2F..%2Fservice.db", 404, "not_found"),
        ("GET", "jobs/" + "%0a%1b[2J" * 20, 404, "not_found"),
    ):
        answer = box.ask(method, path, ann)
        assert (answer.status, answer.code) == (status, code), path
        assert answer.json["error"]["message"].isprintable()
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_documentation_says_what_may_be_answered(box: Box) -> None:
    document = box.ask("GET", "/openapi.json").json
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    wanted = {(m, "/" if p == "/" else f"{ROOT}/{p.replace('{job}', '{name}')}") for m, p in ROUTES}
    assert set(operations) == {*wanted, ("GET", ROOT)}
    error = {"$ref": "#/components/schemas/ErrorBody"}
    for (_method, path), operation in operations.items():
        answers = operation["responses"]
        assert operation["description"], path
        assert "422" not in answers or path == ROOT, path
        for status, answer in answers.items():
            if int(status) >= 400:
                assert answer["content"]["application/json"]["schema"] == error, (path, status)
        good = next(answer for status, answer in answers.items() if int(status) < 300)
        (media,) = [kind for kind in good["content"] if not (kind == "application/json" and len(good["content"]) > 1)]
        assert media != "application/json" or "$ref" in good["content"][media]["schema"], path
        if path != ROOT:
            assert {"401", "429"} <= set(answers), path
            assert "Retry-After" in answers["429"]["headers"], path
        assert "404" in answers or "{name}" not in path, path
    assert {"413", "415", "507"} <= set(operations["POST", f"{ROOT}/jobs"]["responses"])


def test_a_bundle_comes_back_as_it_was_sent(box: Box, ann: str) -> None:
    sent = bundle(name="kept", padding="\x00x" * 5000)
    name = box.ask("POST", "jobs", ann, sent, Content_Type=TAR).json["id"]
    for _ in range(2):  # while it waits or runs, and then
        answer = box.ask("GET", f"jobs/{name}/bundle", ann)
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, TAR, sent)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.bundle.tar"'
        box.ended(ann, name)


def test_old_bundles_are_deleted_and_nothing_else(tmp_path: Path) -> None:
    with Box(tmp_path / "data") as box:
        ann = box.user("ann")
        refused, first, last = (
            box.ended(ann, box.job(ann, **what)).id for what in ({"state": "refused"}, {"name": "x"}, {"name": "x"})
        )
    assert prune(box.database, 86400.0) == 0  # none is a day old
    box.settings["keep_bundles"] = 1.0
    with box:
        assert [box.ask("GET", f"jobs/{job}/bundle", ann).status for job in (refused, first, last)] == [200] * 3
    box.settings["keep_bundles"] = 0.0
    with box:
        waiting = box.job(ann, until=str(tmp_path / "never"))
        for job in (refused, first):
            gone = until(lambda job=job: (a := box.ask("GET", f"jobs/{job}/bundle", ann)).status == 410 and a)
            assert gone.code == "gone"
            assert "keeps bundles for 0 days; its result is kept" in gone.json["error"]["message"]
            assert box.ask("GET", f"jobs/{job}/report", ann).code == "gone"
            assert len(box.client(ann).result(job).verdicts) == 2
            assert read_events(box, ann, job)[-1]["kind"] == "ended"
        # What the page of all is made of, and what is still to be judged.
        assert box.ask("GET", f"jobs/{last}/bundle", ann).status == 200
        assert box.ask("GET", f"jobs/{waiting}/bundle", ann).status == 200


def test_many_old_bundles_are_deleted_a_few_at_a_time(tmp_path: Path) -> None:
    database = opened(Settings(tmp_path / "data"))
    Tokens(database).add("ann", 1.0)
    jobs, queue = Jobs(database, 100), Queue(database, 60.0)
    for _ in range(AT_ONCE + 3):
        accept(jobs, "ann")
        claim = queue.claim()
        assert claim is not None
        queue.finish(claim, "refused", [], [], [])
    assert prune(database, 86400.0) == 0
    assert [prune(database, 0.0) for _ in range(3)] == [AT_ONCE, 3, 0]


def test_too_many_requests(tmp_path: Path) -> None:
    with Box(tmp_path / "data", rate=SELDOM, burst=5) as box:
        ann, bob = box.user("ann"), box.user("bob")
        answers = [box.ask("GET", "jobs", ann) for _ in range(8)]
        assert [answer.status for answer in answers] == [200] * 5 + [429] * 3
        refused = answers[5:]
        assert {answer.code for answer in refused} == {"rate_limit"}
        assert 50_000 < int(refused[-1].headers["retry-after"]) <= 60_000
        assert box.ask("GET", "jobs", bob).status == 200  # another's patience is not tried


def test_who_has_asked_too_often_may_ask_again_later() -> None:
    now = [100.0]
    rate = Rate(60.0, 5, lambda: now[0])
    assert [rate.wait("ann") for _ in range(7)] == [0.0] * 5 + [1.0] * 2
    assert rate.wait("bob") == 0.0
    now[0] += 0.75
    assert rate.wait("ann") == pytest.approx(0.25)
    now[0] += 0.25
    assert [rate.wait("ann") for _ in range(2)] == [0.0, 1.0]
    now[0] += 3600.0
    assert [rate.wait("ann") for _ in range(6)] == [0.0] * 5 + [1.0], "no more than at first"


def test_the_client_waits_as_it_is_told(tmp_path: Path) -> None:
    with Box(tmp_path / "data", rate=SELDOM, burst=1) as box:
        said: list[str] = []
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            box.stop()
            box.start()  # one that has just started has counted no request

        client = Client(box.url, box.user("ann"), said.append, patience=1e6, slow=PATIENCE, sleep=sleep)
        assert client.job(client.submit(bundle()).id).state in ("queued", "running", "accepted")
        (seconds,) = slept
        assert 50_000 < seconds <= 60_000
        assert said == [f"{box.url}: too many requests: try again in {seconds:g} s; trying again in {seconds:g} s"]


def test_a_client_gives_up_when_its_patience_is_over(tmp_path: Path) -> None:
    with Box(tmp_path / "data", rate=SELDOM, burst=1) as box:
        now, slept = [0.0], [0.0]

        def sleep(seconds: float) -> None:
            now[0] += seconds
            slept[0] += seconds

        client = Client(
            box.url, box.user("ann"), lambda _: None, patience=150_000.0, slow=PATIENCE, clock=lambda: now[0],
            sleep=sleep,
        )  # fmt: skip
        client.jobs()
        with pytest.raises(ServiceError, match=r"too many requests: .*; gave up after 150000 s"):
            client.jobs()
        assert 100_000 < slept[0] <= 120_000, "twice as long as it was told, for a third time would be too long"

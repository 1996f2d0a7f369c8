"""What a server holds against connections that ask for nothing, slow ones, and too much of one user. Where a clock
decides, the test moves it."""

import asyncio
import http.client
import json
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from gdnspec.server.api import ROOT, TAR
from gdnspec.server.connections import LINGER, Connections, neighbourhood, protocol
from gdnspec.server.limits import Full, InProgress
from helpers_service import Answer, Box, bundle
from uvicorn.server import ServerState

SECONDS = 10.0  # in which a request must have come
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = 64 << 20  # bytes, more than kernels keep for two ends of a connection


# --- who makes room ---------------------------------------------------------------------------------------------


class Guest:
    def __init__(self, all_: Connections, owed: bool = False) -> None:
        self.all, self.owed, self.told = all_, owed, ""

    def make_room(self, why: str) -> None:
        self.told = why
        self.all.leave(self)


def test_who_has_waited_longest_makes_room() -> None:
    found = Connections(most=4, each=3)
    a, b, c = (Guest(found) for _ in range(3))
    assert [found.enter(guest, "one") for guest in (a, b, c)] == [None] * 3
    found.work(a)
    found.wait(b)  # it had an answer: now it is behind c
    assert found.enter(Guest(found), "one") is None
    assert (a.told, b.told, c.told) == ("", "", "more than 3 connections from one address")
    assert found.enter(Guest(found), "two") is None
    other = Guest(found)
    assert found.enter(other, "three") is None  # the fifth of all
    assert (b.told, other.told, len(found)) == ("more than 4 connections", "", 4)


def test_nobody_makes_room_while_being_answered() -> None:
    found = Connections(most=4, each=2)
    one, owed = Guest(found), Guest(found, owed=True)
    for guest in (one, owed):
        assert found.enter(guest, "here") is None
    found.work(one)
    assert found.enter(Guest(found), "here") == "more than 2 connections from one address"
    assert found.enter(Guest(found), "there") is None
    found.leave(one)
    assert found.enter(Guest(found), "here") is None
    assert not one.told + owed.told


def test_what_counts_as_one_address() -> None:
    assert neighbourhood("192.0.2.1") == neighbourhood("::ffff:192.0.2.1") != neighbourhood("192.0.2.2")
    assert neighbourhood("2001:db8::1") == neighbourhood("2001:db8::ffff:2") != neighbourhood("2001:db8:0:1::1")
    assert neighbourhood("fe80::1%eth0") == neighbourhood("fe80::2%eth0")
    assert neighbourhood("") == ""


def test_each_user_has_so_many_in_progress() -> None:
    found = InProgress(1)
    with found.one("ann"), found.one("bob"), pytest.raises(Full), found.one("ann"):
        pass
    with found.one("ann"):
        pass


# --- time -------------------------------------------------------------------------------------------------------


class Loop(asyncio.SelectorEventLoop):
    """Its clock stands still until the test moves it."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Place:
    """The server's side of connections to an application that answers at once, or when it is let."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.guests, self.let = loop, Connections(8, 8), asyncio.Event()
        self.port = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            await self.let.wait()
        body = bytes(LARGE) if scope["path"] == "/large" else b"ok"
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.guests)
        found = await asyncio.open_connection("127.0.0.1", self.port)
        await self.until(lambda: len(self.guests) > before)
        return found

    async def pass_(self, seconds: float) -> None:
        self.loop.now += seconds
        for _ in range(5):
            await asyncio.sleep(0)

    async def until(self, found: Callable[[], bool]) -> None:
        while not found():
            await asyncio.sleep(0)


def run(test: Callable[[Place], Awaitable[None]]) -> None:
    async def all_() -> None:
        place = Place(loop)
        config = uvicorn.Config(place, lifespan="off", log_level="critical", timeout_keep_alive=10**6, ws="none")
        config.load()
        made, state = protocol(place.guests, SECONDS), ServerState()
        server = await loop.create_server(lambda: made(config, state, {}), "127.0.0.1", 0)
        place.port = server.sockets[0].getsockname()[1]
        await test(place)
        server.close()

    loop = Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(all_())


def error(data: bytes, status: int, code: str) -> None:
    """What came is one whole answer, the documented error."""
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0].split()[:2] == ["HTTP/1.1", str(status)]
    assert {"connection: close", "content-type: application/json", "cache-control: no-store"} <= set(lines)
    assert json.loads(body)["error"]["code"] == code


@pytest.mark.parametrize("sent", [b"", b"G", ASK[:-2]])
def test_a_connection_that_asks_for_nothing_is_closed(sent: bytes) -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.open()
        for byte in sent:
            await place.pass_(SECONDS / 2 / len(sent))  # a byte now and then is no reason to wait longer
            writer.write(bytes([byte]))
            await writer.drain()
        await place.pass_(SECONDS / 2)
        if sent:
            assert len(place.guests) == 0
        else:
            assert len(place.guests) == 1
            await place.pass_(SECONDS / 2)
        error(await reader.read(), 408, "too_slow")
        writer.close()

    run(test)


def test_a_connection_is_kept_for_the_next_request_and_then_closed_without_a_word() -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.open()
        for _ in range(3):
            await place.pass_(SECONDS - 1)
            writer.write(ASK)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        await place.pass_(SECONDS)
        assert await reader.read() == b""
        writer.close()

    run(test)


def test_a_body_that_nobody_reads_is_no_reason_to_stay() -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.open()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
        await reader.readuntil(b"ok")
        for _ in range(3):
            await place.pass_(SECONDS / 2)
            writer.write(b"x")
        await place.until(lambda: len(place.guests) == 0)
        await place.pass_(SECONDS)
        with pytest.raises(ConnectionResetError):  # it had its answer
            while await reader.read() or True:
                writer.write(b"x")
                await writer.drain()

    run(test)


def test_what_is_being_answered_may_take_its_time() -> None:
    async def test(place: Place) -> None:
        reader, writer = await place.open()
        writer.write(ASK.replace(b"/ ", b"/wait "))
        await place.until(lambda: not place.guests._waiting)
        await place.pass_(1000 * SECONDS)
        place.let.set()
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()

    run(test)


def test_an_answer_that_is_not_read_is_given_up_and_one_that_is_read_slowly_is_not() -> None:
    async def test(place: Place) -> None:
        for reads in (True, False):
            with socket.socket() as client:
                client.setblocking(False)
                await place.loop.sock_connect(client, ("127.0.0.1", place.port))
                await place.loop.sock_sendall(client, ASK.replace(b"/ ", b"/large "))
                await place.until(lambda: any(guest.owed for guest in place.guests._address))
                (guest,) = place.guests._address
                for _ in range(4):
                    left = guest.transport.get_write_buffer_size()  # type: ignore[attr-defined]
                    while reads and guest.transport.get_write_buffer_size() > left - (1 << 20):  # type: ignore[attr-defined]
                        await place.loop.sock_recv(client, 1 << 20)
                        await asyncio.sleep(0)
                    await place.pass_(SECONDS)
                assert len(place.guests) == reads
            await place.until(lambda: len(place.guests) == 0)

    run(test)


def test_who_is_refused_may_read_why_and_then_is_gone() -> None:
    async def test(place: Place) -> None:
        writers = []
        for _ in range(8):
            _, writer = await place.open()
            writer.write(ASK.replace(b"/ ", b"/wait "))
            writers.append(writer)
        await place.until(lambda: not place.guests._waiting)
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(ASK)
        await place.until(lambda: len(place.guests.lingering) == 1)
        error(await reader.readuntil(b"}}"), 503, "too_many_connections")
        assert await reader.read() == b""
        await place.pass_(LINGER)
        await place.until(lambda: not place.guests.lingering)
        assert len(place.guests) == 8
        for each in (*writers, writer):
            each.close()

    run(test)


# --- a server ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    folder, most = tmp_path_factory.mktemp("limits"), {"connections": 40, "address_connections": 16}
    with Box(folder / "data", upload_limit=100_000, uploads=1, request_seconds=3600.0, **most) as found:
        yield found


def raw(box: Box, data: bytes = b"") -> socket.socket:
    found = socket.create_connection(("127.0.0.1", box.port), timeout=120)
    found.sendall(data)
    return found


def whole(connection: socket.socket) -> bytes:
    """Until the server ends it."""
    with connection, connection.makefile("rb") as file:
        return file.read()


@pytest.mark.parametrize("sent", [b"", ASK[:20]])
def test_connections_that_ask_for_nothing_keep_nobody_away(box: Box, sent: bytes) -> None:
    idle = [raw(box, sent) for _ in range(60)]
    answer = box.ask("GET", ROOT)
    assert (answer.status, answer.json["service"]) == (200, "gdnspec")
    ann = box.user(f"ann{len(sent)}")
    assert box.ended(ann, box.job(ann)).state == "accepted"
    for connection in idle[:44]:
        try:
            data = whole(connection)
        except ConnectionResetError:  # more were refused at a time than may read why
            continue
        error(data, 503, "too_many_connections")
    for connection in idle[44:]:
        connection.close()


def uploading(box: Box, token: str) -> http.client.HTTPConnection:
    """A bundle that the server waits for."""
    found = http.client.HTTPConnection("127.0.0.1", box.port, timeout=120)
    found.putrequest("POST", f"{ROOT}/jobs")
    length = str(len(bundle()))
    for header in (("Authorization", f"Bearer {token}"), ("Content-Type", TAR), ("Content-Length", length)):
        found.putheader(*header)
    found.putheader("Expect", "100-continue")
    found.endheaders()
    assert found.sock.recv(1000).startswith(b"HTTP/1.1 100 ")
    return found


def test_bundles_of_one_user_on_their_way(box: Box) -> None:
    eve, bob = box.user("eve"), box.user("bob")
    first = uploading(box, eve)
    second = box.send(eve)
    assert (second.status, second.code, second.headers["retry-after"]) == (429, "too_many_uploads", "5")
    assert box.send(bob).status == 201
    first.send(bundle())
    assert first.getresponse().status == 201
    first.close()
    assert box.send(eve).status == 201


def test_where_every_connection_is_being_answered_a_new_one_is_told_so(box: Box) -> None:
    busy = [uploading(box, box.user(f"busy{number}")) for number in range(16)]
    answer = box.ask("GET", ROOT)
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_connections", "5")
    assert "more than 16 connections from one address" in answer.json["error"]["message"]
    for connection in busy:
        connection.send(bundle())
        assert connection.getresponse().status == 201
        connection.close()
    assert box.ask("GET", ROOT).status == 200


def test_what_is_no_http_is_answered_as_all_else(box: Box) -> None:
    for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 70_000):
        error(whole(raw(box, sent)), 400, "bad_request")
    upgrade = b"GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert whole(raw(box, upgrade)).startswith(b"HTTP/1.1 200 ")


def test_why_a_bundle_is_refused_is_read_after_all_of_it_was_sent(box: Box) -> None:
    """By a client that closes its connections, as `gdnspec submit` does."""
    ann, large = box.user("liz"), b"x" * (8 << 20)
    for token, status, code in ((ann, 413, "too_large"), ("wrong", 401, "unauthorised")):
        answer: Answer = box.ask("POST", "jobs", token, large, timeout=120, Content_Type=TAR, Connection="close")
        assert (answer.status, answer.code) == (status, code)


def test_who_still_sends_a_bundle_when_the_server_ends_is_told_to_send_it_to_the_next(tmp_path: Path) -> None:
    box = Box(tmp_path / "data").start()
    connection = uploading(box, box.user("ann"))
    assert box.stop() == 0
    answer = connection.getresponse()
    found = Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    assert (found.status, found.code, found.headers["retry-after"]) == (503, "ending", "5")
    connection.close()


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2000, reason="too few open files (ulimit -Hn)")
def test_jobs_run_beside_more_than_a_thousand_connections(tmp_path: Path) -> None:
    """Whose descriptors are the lowest 1,024, which is as many as select() knows."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Box(tmp_path / "data", connections=1100, address_connections=1100, request_seconds=3600.0) as box:
        ann = box.user("ann")
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
        idle = [raw(box) for _ in range(1050)]
        assert box.ended(ann, box.job(ann)).state == "accepted"
        for connection in idle:
            connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "Traceback" not in box.said


def test_limits_of_the_command_line(tmp_path: Path) -> None:
    from helpers_service import served

    more = ("--connections", "16", "--address-connections", "4", "--uploads", "2", "--request-seconds", "3600")
    with served(tmp_path / "data", "--device", "cpu", *more) as box:
        idle = [raw(box) for _ in range(9)]
        assert box.ask("GET", ROOT).status == 200
        error(whole(idle[0]), 503, "too_many_connections")
        for connection in idle:
            connection.close()

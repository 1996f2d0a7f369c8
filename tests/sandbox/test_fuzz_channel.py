"""What arrives on a channel that is no message: changed, cut, damaged, endless or late, it has one of three ends."""

import json
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gdnspec.sandbox.wire.arena import GUARD, HostArena, Slot, lay_out, zones
from gdnspec.sandbox.wire.channel import MAX_LINE, Channel, ChannelClosed, ChannelTimeout, ProtocolError
from helpers_fuzz import MESSAGES, SEED, open_descriptors, soon
from helpers_mutations import NO_JSON, ODD, Raw, places, replaced, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE

MESSAGE = {
    "op": "done",
    "id": 7,
    "returned": [{"shape": [1, 1, 2, 64], "dtype": "bfloat16"}, {"shape": [1, 2, 64, 64], "dtype": "float32"}],
    "seconds": 0.25,
    "prepare_seconds": None,
    "trace": "kernel.py, line 3",
}


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        yield Channel(ours), theirs


def outcome(content: bytes) -> dict[str, Any] | type[Exception]:
    """What becomes of bytes after which the other side closes: a message, or one of the documented exceptions."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        theirs.sendall(content)
        theirs.shutdown(socket.SHUT_WR)
        try:
            with soon(content[:200]):
                message, fds = Channel(ours).receive(PATIENCE)
        except (ProtocolError, ChannelClosed) as error:
            assert len(str(error)) < 400
            assert str(error).isprintable()
            return type(error)
        assert fds == []
        return message


def test_a_message_arrives_as_it_was_sent() -> None:
    assert outcome(json.dumps(MESSAGE).encode() + b"\n") == MESSAGE


def test_a_changed_message_is_no_message_or_arrives_to_the_letter() -> None:
    """Every field with every odd value and with tokens that are not JSON; a message has a text as its op."""
    refused = 0
    for place, _ in places(MESSAGE):
        for new in ODD:
            tree = replaced(MESSAGE, place, new)
            got = outcome(text_of(tree).encode() + b"\n")
            right = isinstance(tree, dict) and isinstance(tree.get("op"), str)
            assert got == (json.loads(text_of(tree)) if right else ProtocolError), (place, str(new)[:60])
            refused += got is ProtocolError
        for token in NO_JSON:
            if "\n" not in token and "1e999" not in token:
                assert outcome(text_of(replaced(MESSAGE, place, Raw(token))).encode() + b"\n") is ProtocolError, token
                refused += 1
    for key in MESSAGE:
        got = outcome(json.dumps({k: v for k, v in MESSAGE.items() if k != key}).encode() + b"\n")
        assert (got is ProtocolError) == (key == "op")
    assert refused >= MESSAGES["changed"]


def test_a_message_cut_anywhere_is_none() -> None:
    whole = json.dumps(MESSAGE).encode()
    for length in range(len(whole)):
        assert outcome(whole[:length]) is ChannelClosed
        assert outcome(whole[:length] + b"\n") is ProtocolError
    assert outcome(whole) is ChannelClosed
    assert 2 * len(whole) >= MESSAGES["cut"]


def test_damaged_messages_are_none_or_arrive_as_json_reads_them() -> None:
    rng, refused, whole = random.Random(SEED), 0, json.dumps(MESSAGE).encode()
    for _ in range(MESSAGES["damaged"] * 6 // 5):
        content = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(len(content))
            match rng.randrange(4):
                case 0:
                    content[at] = rng.randrange(256)
                case 1:
                    del content[at : at + rng.choice([1, 1, 5])]
                case 2:
                    content[at:at] = rng.choice(
                        [b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"{", b'"', b"\\", b"\x1b"]
                    )
                case 3:
                    content[at:at] = content[: rng.randrange(1, 30)]
        content = content.replace(b"\n", b" ")
        got = outcome(bytes(content) + b"\n")
        if isinstance(got, dict):
            assert got == json.loads(content.decode())
        else:
            refused += 1
            with pytest.raises((ValueError, AssertionError, RecursionError)):
                tree = json.loads(content.decode(), parse_constant=lambda text: [][0])
                assert isinstance(tree, dict) and isinstance(tree.get("op"), str)
    assert refused >= MESSAGES["damaged"]


@settings(max_examples=400, derandomize=True, database=None, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_no_message(content: bytes) -> None:
    wanted = ProtocolError if b"\n" in content else ChannelClosed
    assert outcome(content) is wanted or b'"op"' in content


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
def test_a_message_in_another_encoding_is_none(code: str) -> None:
    """The bytes of a newline do not end a line there, so that it is what comes before that counts."""
    assert outcome(json.dumps(MESSAGE).encode(code).replace(b"\n", b"") + b"\n") is ProtocolError


def test_depths_that_one_reader_follows_and_another_does_not() -> None:
    for depth in [*range(200, 1100, 11), 50_000]:
        for inner in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
            content = b'{"op": "done", "kind": ' + inner + b"}\n"
            if len(content) < 150_000:
                got = outcome(content)
                assert got is ProtocolError or isinstance(got, dict)
                assert depth < 50_000 or got is ProtocolError


def test_messages_that_arrive_together_or_in_pieces_are_told_apart(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    lines = [json.dumps({**MESSAGE, "id": i}).encode() + b"\n" for i in range(40)]
    theirs.sendall(b"".join(lines))
    assert [channel.receive(PATIENCE)[0]["id"] for _ in lines] == list(range(40))
    rng, whole = random.Random(SEED), b"".join(lines)

    def dribble() -> None:
        at = 0
        while at < len(whole):
            step = rng.choice([1, 2, 3, 50, 400])
            theirs.sendall(whole[at : at + step])
            at += step

    thread = threading.Thread(target=dribble)
    thread.start()
    assert [channel.receive(PATIENCE)[0]["id"] for _ in lines] == list(range(40))
    thread.join()
    theirs.sendall(b"nonsense\n" + lines[3])
    with pytest.raises(ProtocolError):
        channel.receive(PATIENCE)
    assert channel.receive(PATIENCE)[0]["id"] == 3  # what follows is not lost with it


def sending(theirs: socket.socket, make: Callable[[], bytes]) -> tuple[threading.Event, threading.Thread]:
    """Sends until it is told to stop or nobody listens."""
    stop = threading.Event()

    def send() -> None:
        try:
            while not stop.is_set():
                theirs.sendall(make())
        except OSError:
            pass

    thread = threading.Thread(target=send)
    thread.start()
    return stop, thread


def test_an_endless_line_is_refused(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    stop, thread = sending(theirs, lambda: b"x" * 60_000)
    with pytest.raises(ProtocolError, match="4 MiB"):
        channel.receive(PATIENCE)
    assert len(channel._buffer) < MAX_LINE + (1 << 17)
    stop.set()
    channel.close()
    thread.join()


class Trickle:
    """A socket from which there is always one more byte to be read, a hundred of them in each second of its clock."""

    def __init__(self, readable: socket.socket) -> None:
        self.fileno = readable.fileno
        self.read = 0

    def recv(self, _: int) -> bytes:
        self.read += 1
        return b"x"

    def clock(self) -> float:
        return self.read / 100


def test_a_trickle_does_not_hold_the_deadline_up() -> None:
    """Bytes that keep coming are no message: waiting for each of them anew would be waiting for ever."""
    ours, readable = socket.socketpair()
    with ours, readable:
        ours.sendall(b"x")
        trickle = Trickle(readable)
        with pytest.raises(ChannelTimeout):
            Channel(trickle, clock=trickle.clock).receive(0.3)  # type: ignore[arg-type]
        assert trickle.read == 31


def test_silence_ends_at_the_deadline_and_a_full_pipe_as_well(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    for timeout in (0.0, 0.05):
        with pytest.raises(ChannelTimeout):
            channel.receive(timeout)
    with pytest.raises(ChannelTimeout):
        channel.send({"op": "call", "text": "x" * 3_000_000}, timeout=0.1)


def test_descriptors_that_nobody_asked_for_are_not_kept(pair: tuple[Channel, socket.socket]) -> None:
    channel, theirs = pair
    before = open_descriptors()
    for _ in range(20):
        socket.send_fds(theirs, [json.dumps(MESSAGE).encode() + b"\n"], [0, 1, 2] * 8)
        assert channel.receive(PATIENCE) == (MESSAGE, [])
    assert open_descriptors() == before


# --- memory ------------------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
TENSORS = st.lists(st.tuples(st.text(max_size=3), st.sampled_from(["bool", "bfloat16", "float32", "int64"]), SHAPES))


@settings(max_examples=60, derandomize=True, database=None, deadline=None)
@given(TENSORS)
def test_every_byte_is_a_tensors_or_guarded(tensors: list[tuple[str, str, tuple[int, ...]]]) -> None:
    slots, nbytes = lay_out(tensors)
    owner = bytearray(nbytes)
    for slot in slots:
        assert Slot.from_json(json.loads(json.dumps(slot.to_json()))) == slot
        owner[slot.offset : slot.offset + slot.nbytes] = b"\x01" * slot.nbytes
    for _, zone in zones(slots, nbytes):
        assert not any(owner[zone])
        assert zone.stop - zone.start >= GUARD
        owner[zone] = b"\x02" * (zone.stop - zone.start)
    assert 0 not in owner
    assert len(owner) == nbytes


def test_a_child_cannot_take_the_memory_away_from_under_the_judge() -> None:
    arena = HostArena(100_000)
    for size in (0, 1, 99_999, 100_001, 1 << 30):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.fd, size)
    arena.close()

"""The simulated engine: every token once, as a simulator that takes no shortcuts has it, and the same everywhere."""

import hashlib
import os
from collections.abc import Callable, Iterator

import pytest
from gdnspec.model.errors import SpecError
from gdnspec.traffic.engine import Engine, Limits, Step
from gdnspec.traffic.prefix_cache import PrefixCache
from gdnspec.traffic.request import Request
from gdnspec.traffic.speculation import Speculation
from hypothesis import given, settings
from hypothesis import strategies as st

Cost = Callable[[tuple[int, ...], int], int]


def linear(step: int, token: int) -> Cost:
    return lambda lengths, rows: step + token * (sum(lengths) + rows)


@st.composite
def logs(draw: st.DrawFn) -> list[Request]:
    gaps = draw(st.lists(st.integers(0, 3000), min_size=1, max_size=25))
    arrival, requests = 0, []
    for gap in [0, *gaps[1:]]:
        arrival += gap
        prompt = draw(st.integers(1, 300))
        names = draw(st.lists(st.integers(0, 6), max_size=-(-prompt // 64)))
        # As a log hashes them: a block's name tells all that comes before it.
        blocks = tuple(hash(tuple(names[: i + 1])) for i in range(len(names)))
        requests.append(Request(arrival, prompt, draw(st.integers(0, 40)), blocks))
    return requests


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    drafts, running = draw(st.integers(0, 3)), draw(st.integers(1, 8))
    chunked = draw(st.booleans())
    least = running * (drafts + 1) if chunked else max(300, running * (drafts + 1))
    return Limits(
        step_tokens=draw(st.integers(least, least + 400)), running=running, chunked=chunked, drafts=drafts,
        acceptance=draw(st.floats(0, 1)), cached_states=draw(st.sampled_from([0, 2, 100])), block=64,
        seed=draw(st.integers(0, 9)),
    )  # fmt: skip


def expanded(steps: Iterator[Step]) -> Iterator[Step]:
    """Steps that are alike, one by one."""
    for step in steps:
        for i in range(step.times):
            yield step._replace(start=step.start + i * step.duration, times=1)


def naively(requests: list[Request], limits: Limits, cost: Cost) -> Iterator[Step]:
    """The same engine with no event of its own: everything is looked at before every step."""
    cache = PrefixCache(limits.cached_states, limits.block)
    speculation = Speculation(limits.drafts, limits.acceptance, limits.seed)
    to_come, waiting = list(enumerate(requests)), []
    prefilling: list[list[int]] = []  # [request, tokens left, has a state]
    decoding: list[int] = []  # rows left
    clock = 0
    while to_come or waiting or prefilling or decoding:
        while to_come and to_come[0][1].arrival <= clock:
            waiting.append(to_come.pop(0))
        if not (waiting or prefilling or decoding):
            clock = to_come[0][1].arrival
            continue
        left = limits.step_tokens - (len(decoding) * (limits.drafts + 1) if limits.chunked else 0)
        chosen = []
        for sequence in prefilling:
            chosen.append((sequence, min(sequence[1], left)))
            left -= chosen[-1][1]
        chosen = [(sequence, length) for sequence, length in chosen if length]
        stuck = len(chosen) < len(prefilling)
        while not stuck and waiting and left and len(prefilling) + len(decoding) < limits.running:
            index, request = waiting[0]
            found = cache.hit(request.blocks, request.prompt)
            if not limits.chunked and request.prompt - found > left:
                break
            waiting.pop(0)
            prefilling.append([index, request.prompt - found, found > 0])
            chosen.append((prefilling[-1], min(request.prompt - found, left)))
            left -= chosen[-1][1]
        rows = len(decoding) if limits.chunked or not chosen else 0
        lengths = tuple(length for _, length in chosen)
        duration = cost(lengths, rows)
        yield Step(clock, duration, 1, lengths, tuple(bool(sequence[2]) for sequence, _ in chosen), rows)
        clock += duration
        if rows:
            decoding = [more - 1 for more in decoding if more > 1]
        for sequence, length in chosen:
            sequence[1] -= length
            sequence[2] = 1
            if not sequence[1]:
                request = requests[sequence[0]]
                cache.keep(request.blocks, request.prompt)
                prefilling.remove(sequence)
                if more := speculation.steps(sequence[0], request.output - 1):
                    decoding.append(more)


@settings(max_examples=200, deadline=None)
@given(logs(), limits(), st.integers(1, 500), st.integers(0, 5))
def test_it_does_what_a_simulator_without_shortcuts_does(
    requests: list[Request], limits: Limits, step: int, token: int
) -> None:
    cost = linear(step, token)
    assert list(expanded(Engine(limits, cost).run(requests))) == list(naively(requests, limits, cost))


@settings(max_examples=200, deadline=None)
@given(logs(), limits(), st.integers(1, 500), st.integers(0, 5))
def test_every_token_is_prefilled_or_cached_and_decoded_once(
    requests: list[Request], limits: Limits, step: int, token: int
) -> None:
    engine = Engine(limits, linear(step, token))
    steps = list(engine.run(requests))
    totals = engine.totals
    assert totals.requests == len(requests)
    assert totals.prompts == sum(r.prompt for r in requests)
    assert sum(s.times * sum(s.lengths) for s in steps) == totals.prefilled == totals.prompts - totals.cached
    answered = [r.output for r in requests if r.output]
    assert totals.first == len(answered), "the last token of a prompt yields the first of its answer"
    rows = sum(s.times * s.rows for s in steps)
    assert rows == totals.rows
    if limits.drafts == 0:
        assert rows == sum(answered) - len(answered), "all others are decoded, each in one row"
    else:
        most = sum(answered) - len(answered)
        assert most / (limits.drafts + 1) <= rows <= most, "a row yields one token to one more than its guesses"
    clock = 0
    for s in steps:
        assert s.start >= clock, "no two steps at once"
        clock = s.start + s.times * s.duration
        assert sum(s.lengths) + s.rows * (limits.drafts + 1) <= limits.step_tokens
        assert len(s.lengths) + s.rows <= limits.running
        assert all(s.lengths)
        assert limits.chunked or not (s.lengths and s.rows), "whole prompts have steps of their own"
    assert clock == totals.latest


def test_no_request_is_served_before_it_comes() -> None:
    requests = [Request(0, 10, 3), Request(1_000_000, 20, 2)]
    steps = list(Engine(Limits(), linear(100, 0)).run(requests))
    assert [(s.start, s.lengths, s.rows, s.times) for s in steps] == [
        (0, (10,), 0, 1), (100, (), 1, 2), (1_000_000, (20,), 0, 1), (1_000_100, (), 1, 1),
    ]  # fmt: skip


def test_a_request_joins_those_that_decode_at_the_next_step() -> None:
    requests = [Request(0, 10, 100), Request(450, 20, 2)]
    steps = list(Engine(Limits(), linear(100, 0)).run(requests))
    assert [(s.start, s.lengths, s.rows, s.times) for s in steps[:4]] == [
        (0, (10,), 0, 1), (100, (), 1, 4), (500, (20,), 1, 1), (600, (), 2, 1),
    ]  # fmt: skip


def test_a_long_prompt_is_cut_and_goes_on_from_its_state() -> None:
    steps = list(Engine(Limits(step_tokens=64, running=4), linear(1, 0)).run([Request(0, 150, 1)]))
    assert [(s.lengths, s.carried) for s in steps] == [((64,), (False,)), ((64,), (True,)), ((22,), (True,))]


def test_a_prefix_that_was_seen_is_not_computed_again() -> None:
    limits = Limits(cached_states=4, block=64)
    requests = [
        Request(0, 200, 1, (1, 2, 3, 4)),
        Request(10**6, 200, 1, (1, 2, 9, 10)),
        Request(2 * 10**6, 128, 1, (1, 2)),
    ]
    engine = Engine(limits, linear(1, 0))
    steps = list(engine.run(requests))
    # Whole blocks; and never all of a prompt, whose last token is wanted.
    assert [(s.lengths, s.carried) for s in steps] == [((200,), (False,)), ((72,), (True,)), ((64,), (True,))]
    assert engine.totals.cached == 128 + 64


def test_a_cache_forgets_what_was_used_least() -> None:
    cache = PrefixCache(capacity=2, block=64)
    cache.keep((1, 2, 3), 192)
    assert cache.hit((1, 2, 3), 193) == 128, "the last block of a prompt goes first: without the others it is nothing"
    cache.keep((7,), 64)
    assert cache.hit((1, 2, 3), 193) == 64
    assert cache.hit((7,), 65) == 64


def test_a_prompt_that_fits_no_step_is_an_error_where_prompts_go_whole() -> None:
    with pytest.raises(SpecError, match="a prompt of 100 tokens does not fit into a step of 64"):
        list(Engine(Limits(step_tokens=64, running=4, chunked=False), linear(1, 0)).run([Request(0, 100, 1)]))


def test_a_step_must_hold_all_that_decodes() -> None:
    with pytest.raises(SpecError, match="a step of 100 tokens is too small for 64 requests of 4 tokens each"):
        Limits(step_tokens=100, running=64, drafts=3)


def test_what_is_accepted_follows_its_chance() -> None:
    always, never = Speculation(3, 1.0, 0), Speculation(3, 0.0, 0)
    assert always.steps(0, 400) == 100
    assert never.steps(0, 400) == 400
    # 1 + a + a^2 + a^3 tokens a row.
    rows = sum(Speculation(3, 0.7, 5).steps(i, 1000) for i in range(50))
    assert rows == pytest.approx(50 * 1000 / (1 + 0.7 + 0.49 + 0.343), rel=0.01)


def test_what_is_accepted_of_a_request_does_not_depend_on_the_others() -> None:
    together = [Speculation(3, 0.7, 5).steps(i, 100) for i in range(10)]
    assert [Speculation(3, 0.7, 5).steps(i, 100) for i in reversed(range(10))] == together[::-1]
    assert [Speculation(3, 0.7, 6).steps(i, 100) for i in range(10)] != together


@pytest.mark.slow
def test_a_hundred_thousand_requests_take_seconds() -> None:
    def requests() -> Iterator[Request]:
        for i in range(100_000):
            yield Request(i * 120_000_000, 200 + i * 7919 % 3000, 1 + i * 104_729 % 400)

    before = os.times()  # of the processor, whatever others do meanwhile
    engine = Engine(Limits(), lambda lengths, rows: 5_000_000 + 10_000 * (sum(lengths) + rows))
    steps = sum(1 for _ in engine.run(requests()))
    after = os.times()
    assert engine.totals.requests == 100_000
    assert steps > 100_000
    assert after.user - before.user < 30


def test_the_same_log_is_the_same_steps_on_any_machine() -> None:
    """Whole numbers, products and Philox alone: this digest was taken elsewhere."""
    limits = Limits(step_tokens=2048, running=32, drafts=2, acceptance=0.6, cached_states=50, block=64, seed=11)
    requests = [
        Request(i * 37_000_003, 50 + i * 7919 % 3000, 1 + i * 104_729 % 300, tuple(range(i % 5, i % 5 + i % 3)))
        for i in range(2000)
    ]
    digest = hashlib.sha256()
    for step in Engine(limits, linear(3_000_000, 9_001)).run(requests):
        digest.update(repr(tuple(step)).encode())
    assert digest.hexdigest()[:16] == "818d2bf275e329a4"

"""A session in which a step cannot happen is an error with the number of the step and a place in it."""

from pathlib import Path
from typing import Any

import pytest
from gdnspec.model.errors import SpecError
from gdnspec.model.ledger import walk
from gdnspec.model.loading import build
from gdnspec.model.session_line import SessionLine

Step = dict[str, Any]


def admit(request: str, slot: int) -> Step:
    return {"do": "admit", "request": request, "slot": slot}


def prefill(request: str, tokens: int = 3, **more: Any) -> Step:
    return {"do": "prefill", "rows": [{"request": request, "tokens": tokens, **more}]}


def verify(request: str, slots: list[int], accept: int, drafts: int = 2) -> Step:
    return {"do": "verify", "drafts": drafts, "rows": [{"request": request, "slots": slots, "accept": accept}]}


def decode(*rows: Step | None) -> Step:
    return {"do": "decode", "rows": list(rows)}


def step(do: str, **more: Any) -> Step:
    return {"do": do, **more}


BEGUN = [admit("a", 1), prefill("a")]
ROW = {"request": "a"}
KEEP = {"at": 64, "checkpoint": "c", "slot": 3}


def session(steps: list[Step], **more: Any) -> SessionLine:
    data = {"name": "s", "suite": "smoke", "preset": "p", "regime": "typical", "seed": 1, "slots": 6, "steps": steps}
    return build(SessionLine, data | more, Path("s.jsonl"), 7)


WRONG: list[tuple[list[Step], str, str]] = [
    ([*BEGUN, admit("b", 1)], "/steps/2/slot: step 2 (admit): slot 1 belongs to request 'a'", "(free: 0, 2, 3, 4, 5)"),
    ([*BEGUN, admit("a", 2)], "/steps/2/request: step 2 (admit): request 'a' is open already", ""),
    ([*BEGUN, step("finish", request="a"), admit("a", 2)], "/steps/3/request: step 3 (admit)", "finished in step 2"),
    ([admit("a", 6)], "/steps/0/slot: step 0 (admit): there is no slot 6", "(free: 0, 1, 2, 3, 4, 5)"),
    ([*(admit(f"r{slot}", slot) for slot in range(6)), admit("a", 0)], "/steps/6/slot", "all are taken: raise `slots`"),
    ([*BEGUN, admit("b", 2), step("restore", request="b", checkpoint="c")], "/steps/3/checkpoint", "(take it first"),
    (
        [*BEGUN, step("take", request="a", checkpoint="c", slot=2), step("drop", checkpoint="c"), admit("b", 3),
         step("restore", request="b", checkpoint="c")],
        "/steps/5/checkpoint: step 5 (restore)", "dropped in step 3 (use it before, or take it again)",
    ),
    (
        [*BEGUN, step("take", request="a", checkpoint="c", slot=2), step("restore", request="a", checkpoint="c")],
        "/steps/3/request", "has taken 3 tokens",
    ),
    ([*BEGUN, step("take", request="a", checkpoint="c", slot=1)], "/steps/2/slot", "belongs to request 'a'"),
    ([admit("a", 1), step("take", request="a", checkpoint="c", slot=2)], "/steps/1/request", "has no token yet"),
    ([*BEGUN, verify("a", [2, 3], 3)], "/steps/2/rows/0/accept", "only 2 are drafted (accept at most 2)"),
    ([*BEGUN, verify("a", [2], 2, 1)], "/steps/2/rows/0/accept", "only 1 is drafted (accept at most 1)"),
    ([*BEGUN, verify("a", [2], 1)], "/steps/2/rows/0/slots", "each draft needs a slot: drafts 2, slots 1"),
    ([*BEGUN, verify("a", [2, 2], 1)], "/steps/2/rows/0/slots/1", "belongs to the drafts of 'a'"),
    ([*BEGUN, verify("a", [2, 1], 1)], "/steps/2/rows/0/slots/1", "belongs to request 'a'"),
    ([*BEGUN, verify("a", [2, 3], 1), verify("a", [4, 5], 1)], "/steps/3/rows/0/slots", "not committed"),
    ([*BEGUN, verify("a", [2, 3], 1), verify("a", [2, 3], 0)], "/steps/3/rows/0/accept", "overwrites the state"),
    ([*BEGUN, step("commit", request="a")], "/steps/2/request", "no drafts to commit"),
    ([*BEGUN, step("roll_back", request="a", accept=0)], "/steps/2/request", "no drafts to roll back"),
    (
        [*BEGUN, verify("a", [2, 3], 1), step("roll_back", request="a", accept=2)],
        "/steps/3/accept", "the verify accepted only 1 (accept at most 1)",
    ),
    (
        [*BEGUN, verify("a", [2, 3], 1), verify("a", [2, 3], 1), step("roll_back", request="a", accept=0)],
        "/steps/4/accept", "before its last verify is overwritten",
    ),
    ([*BEGUN, verify("a", [2, 3], 1), prefill("a")], "/steps/3/rows/0/request", "drafts that are not committed"),
    ([*BEGUN, verify("a", [2, 3], 1), step("evict", request="a")], "/steps/3/request", "commit first"),
    ([*BEGUN, step("finish", request="a"), step("fork", request="a", new="b", slot=2)], "/steps/3/request", "(use it"),
    ([decode(ROW)], "/steps/0/rows/0/request", "was never admitted (admit it first)"),
    ([*BEGUN, step("fork", request="a", new="b", slot=1)], "/steps/2/slot", "belongs to request 'a'"),
    ([*BEGUN, step("fork", request="a", new="a", slot=2)], "/steps/2/new", "is open already"),
    ([*BEGUN, decode(ROW, ROW)], "/steps/2/rows: step 2 (decode)", "has two rows"),
    ([*BEGUN, decode({"request": "b"})], "/steps/2/rows/0/request", "was never admitted"),
    ([*BEGUN, decode({"request": "a", "to": 1})], "/steps/2/rows/0/to", "slot 1 belongs to request 'a'"),
    ([*BEGUN, step("evict", request="a"), decode(ROW)], "/steps/3/rows/0/request", "is evicted"),
    ([*BEGUN, step("evict", request="a"), step("evict", request="a")], "/steps/3/request", "is evicted"),
    ([*BEGUN, step("resume", request="a", slot=2)], "/steps/2/request", "only an evicted request"),
    (
        [admit("a", 1), step("evict", request="a"), step("resume", request="a", slot=2, recompute=True)],
        "/steps/2/recompute", "no token to compute again",
    ),
    ([*BEGUN, step("finish", request="a"), step("finish", request="a")], "/steps/3/request", "finished in step 2"),
    ([*BEGUN, step("move", request="a", slot=1)], "/steps/2/slot", "belongs to request 'a'"),
    ([admit("a", 1), prefill("a", 0)], "/steps/1/rows", "calls nothing"),
    ([admit("a", 1), prefill("a", 65, keep=[KEEP])], "/steps/1/rows/0/keep/0/at", "give the session one, such as 64"),
    (BEGUN, "/steps/1: step 1 (prefill): the session ends with open requests: a", "finish each of them"),
    ([admit("a", 1), step("finish", request="a")], "/steps/1: step 1 (finish)", "no step calls a kernel"),
    (
        [admit("a", 1), decode(None, None), step("finish", request="a")],
        "/steps/2: step 2 (finish)", "no request takes a token: give one a row",
    ),
    ([*BEGUN, step("forget", request="a")], "/steps/2/do", "not \"forget\""),
    ([*BEGUN, step("finnish", request="a")], "/steps/2/do", "(did you mean 'finish'?)"),
    ([*BEGUN, {"request": "a"}], "/steps/2", "missing key 'do'"),
    ([*BEGUN, step("move", request="a", slots=2)], "/steps/2/slots", "unknown key 'slots' (did you mean 'slot'?)"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "place", "message"), WRONG)
def test_a_wrong_step_is_placed(steps: list[Step], place: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        session(steps)
    said = str(caught.value)
    assert f"line 7: {place}" in said
    assert message in said


@pytest.mark.parametrize(
    ("at", "interval", "message"),
    [(65, 64, "takes tokens 1 to 64"), (32, 64, "keeps states every 64 tokens"), (64, 64, "")],
)
def test_a_prefill_keeps_states_at_its_own_edges(at: int, interval: int, message: str) -> None:
    steps = [admit("a", 1), prefill("a", 64, keep=[{**KEEP, "at": at}]), step("finish", request="a")]
    if not message:
        assert session(steps, interval=interval).kinds == ["keep"]
        return
    with pytest.raises(SpecError, match=message):
        session(steps, interval=interval)


def test_no_definition_verifies_narrow_states() -> None:
    with pytest.raises(
        SpecError, match=r"step 2 \(verify\): no definition verifies drafts on bfloat16 .*draft and settle"
    ):
        session([*BEGUN, verify("a", [2, 3], 1), step("finish", request="a")], states="bfloat16")


def test_narrow_states_are_drafted_on_the_pool() -> None:
    """What the message above proposes is possible."""
    draft = step("draft", drafts=2, rows=[{"request": "a", "place": 0, "tokens": 2}])
    settle = step("settle", rows=[{"request": "a", "accept": 1}])
    steps = [*BEGUN, draft, settle, step("finish", request="a")]
    assert session(steps, states="bfloat16", pooled=True).kinds == ["draft", "prefill_pool", "settle"]


def test_an_evicted_request_may_finish_and_its_old_slot_is_free() -> None:
    steps = [*BEGUN, step("evict", request="a"), admit("b", 1), step("finish", request="a")]
    ledger = walk(session([*steps, decode({"request": "b"}), step("finish", request="b")]))
    assert ledger.owner == {}
    assert ledger.used == {"a": 3, "b": 1}


def test_rejected_drafts_are_taken_and_do_not_count() -> None:
    steps = [*BEGUN, verify("a", [2, 3], 2), step("roll_back", request="a", accept=1), step("commit", request="a")]
    seen = []
    line = session([*steps, decode(ROW), step("finish", request="a")])
    walk(line, lambda ledger, _: seen.append({name: one.tokens for name, one in ledger.open.items()}))
    assert [one["a"] for one in seen[:-1]] == [0, 3, 5, 4, 4, 5]
    assert walk(line).used == {"a": 6}

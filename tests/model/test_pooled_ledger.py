"""Sessions on the pool: steps that cannot happen, and the account of drafts that are settled later."""

import pytest
from gdnspec.model.errors import SpecError
from gdnspec.model.ledger import walk
from test_session_ledger import BEGUN, KEEP, ROW, Step, admit, decode, prefill, session, step, verify


def draft(request: str, place: int, tokens: int, drafts: int = 3, **more: object) -> Step:
    return {"do": "draft", "drafts": drafts, "rows": [{"request": request, "place": place, "tokens": tokens, **more}]}


def settle(request: str, accept: int) -> Step:
    return {"do": "settle", "rows": [{"request": request, "accept": accept}]}


DRAFTED = [*BEGUN, draft("a", 4, 2)]
PADDED = {"do": "prefill", "rows": [None, {"request": "a", "tokens": 64, "keep": [KEEP]}]}

WRONG: list[tuple[list[Step], str, str]] = [
    ([*BEGUN, verify("a", [2, 3], 1)], "/steps/2/do", "sets drafts aside"),
    ([*BEGUN, draft("a", 4, 4)], "/steps/2/rows/0/tokens", "at most 3"),
    ([*BEGUN, draft("a", 6, 2)], "/steps/2/rows/0/place", "counted from 0 (free: 0, 1, 2, 3, 4, 5)"),
    ([*DRAFTED, draft("a", 4, 2)], "/steps/3/rows/0/request", "drafts that are not settled"),
    ([*DRAFTED, admit("b", 2), draft("b", 4, 1)], "/steps/4/rows/0/place", "belongs to the drafts of 'a' (free: 0,"),
    ([*DRAFTED, settle("a", 1), draft("a", 4, 2, drafts=2)], "/steps/4/drafts", "has 3 tokens for each row, not 2"),
    ([*DRAFTED, settle("a", 3)], "/steps/3/rows/0/accept", "accepts 3 tokens, but only 2 are drafted"),
    ([*DRAFTED, settle("a", 1), settle("a", 1)], "/steps/4/rows/0/request", "nothing to settle"),
    ([*BEGUN, {"do": "settle", "rows": [None]}], "/steps/2/do", "no step drafts before"),
    ([*DRAFTED, decode(ROW)], "/steps/3/rows/0/request", "so it cannot be decoded"),
    ([*DRAFTED, prefill("a")], "/steps/3/rows/0/request", "so it cannot be prefilled"),
    ([*BEGUN, draft("a", 4, 2, parents=[-1])], "/steps/2/rows/0/parents", "1 parents for 2 tokens"),
    ([*BEGUN, draft("a", 4, 2, parents=[-1, 1])], "/steps/2/rows/0/parents/1", "token 1 follows 1"),
    ([admit("a", 1), PADDED], "/steps/1/rows", "does not pad"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "place", "message"), WRONG)
def test_a_wrong_step_is_placed(steps: list[Step], place: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        session(steps, pooled=True, interval=64)
    said = str(caught.value)
    assert f"line 7: {place}" in said
    assert message in said


@pytest.mark.parametrize(
    ("pooled", "wrong", "hint"),
    [
        (True, verify("a", [2, 3], 1), "draft and settle, or leave out `pooled`"),
        (True, step("commit", request="a"), "settle, or leave out `pooled`"),
        (True, step("roll_back", request="a", accept=0), "settle, with what counts, or leave out `pooled`"),
        (False, draft("a", 4, 2), "set `pooled`, or verify"),
        (False, settle("a", 1), "set `pooled`, or commit"),
    ],
)
def test_a_step_of_the_other_scheduler_is_named_before_anything_else_of_it(
    pooled: bool, wrong: Step, hint: str
) -> None:
    """A hint to verify first would send an author of a session on the pool to a step that it refuses as well."""
    with pytest.raises(SpecError) as caught:
        session([*BEGUN, wrong], pooled=pooled)
    assert "/steps/2/do" in str(caught.value)
    assert hint in str(caught.value)


def test_only_a_session_on_the_pool_pads_a_prefill_and_drafts() -> None:
    padded = {"do": "prefill", "rows": [{"request": "a", "tokens": 3}, None]}
    for steps, place in (([admit("a", 1), padded], "/steps/1/rows/1"), (DRAFTED, "/steps/2/do")):
        with pytest.raises(SpecError, match=place):
            session([*steps, step("finish", request="a")])


def test_the_window_of_the_convolution_needs_one_accepted_token() -> None:
    with pytest.raises(SpecError, match="accepts nothing, and the convolution"):
        session([*DRAFTED, settle("a", 0)], pooled=True, convolution=True)


def test_windows_of_a_tree_are_set_aside_so_that_nothing_need_count() -> None:
    """The convolution of all drafts of the session is then that of a tree, chains among them."""
    tree, end = draft("a", 4, 2, parents=[-1, -1]), step("finish", request="a")
    steps = [*DRAFTED, settle("a", 0), tree, settle("a", 0), end]
    line = session(steps, pooled=True, convolution=True)
    wanted = ["convolve", "convolve_tree", "draft", "prefill_pool", "settle", "tree"]
    assert line.kinds == wanted


@pytest.mark.parametrize(("at", "message"), [(64, ""), (61, "keeps states at multiples of 64"), (128, "no state")])
def test_edges_are_absolute(at: int, message: str) -> None:
    kept = prefill("a", 64, keep=[{**KEEP, "at": at}])
    steps = [*BEGUN, kept, step("finish", request="a")]
    if not message:
        assert session(steps, interval=64, pooled=True).kinds == ["keep_absolute", "prefill_pool"]
        return
    with pytest.raises(SpecError, match=message):
        session(steps, interval=64, pooled=True)


def test_a_path_of_a_tree_counts() -> None:
    steps = [*BEGUN, draft("a", 4, 3, parents=[-1, 0, 0]), settle("a", 3), step("finish", request="a")]
    line = session(steps, pooled=True)
    seen = []
    ledger = walk(line, lambda ledger, _: seen.append({name: one.tokens for name, one in ledger.open.items()}))
    assert [one.get("a") for one in seen] == [0, 3, 3, 5, None]
    assert ledger.used == {"a": 6}
    assert ledger.places == {}
    assert (line.kinds, line.drafts) == (["prefill_pool", "settle", "tree"], 3)

"""What holds between a call on slots and the plain operator that it is made of."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import definition
from helpers_unit import arguments, drawn, reference, run_reference
from torch import Tensor

PREFILL, IN_POOL, DRAFTS = (
    definition(f"gdn_{name}_k_last") for name in ("prefill", "prefill_pool", "verify_drafts")
)  # fmt: skip


def test_drafts_of_a_row_are_its_decodes_one_after_the_other() -> None:
    one = definition("gdn_decode_k_last")
    given = arguments(DRAFTS, drawn(DRAFTS, batch=4), torch.float64)
    T = given["q"].shape[1]
    given |= {"slots": torch.tensor([3, 0, -1, 3]), "step_slots": torch.tensor([1, 0, -1, 2])}
    given["drafts"] = torch.tensor([T, 0, 1, T - 1])
    got = run_reference(DRAFTS, given)
    states = given["step_states"].clone()
    for n in (0, 3):
        S = given["pool"][3:4]
        for t in range(T):
            row = {name: given[name][n : n + 1, t : t + 1] for name in ("q", "k", "v", "a", "b")}
            shared = {name: given[name] for name in ("A_log", "dt_bias", "scale", "use_qk_l2norm")}
            if t < given["drafts"][n]:
                want = run_reference(one, row | shared | {"state": S})
                S = want["new_state"]
                states[given["step_slots"][n], t] = S[0]
                assert torch.equal(got["output"][n : n + 1, t : t + 1], want["output"])
            else:
                assert not got["output"][n, t].any()
    assert not got["output"][[1, 2]].any()
    assert torch.equal(got["step_states"], states)


def test_every_branch_of_a_tree_is_a_row_of_its_own() -> None:
    """And a chain is what a verify without parents has."""
    found = definition("gdn_verify_tree_k_last")
    given = arguments(found, drawn(found, batch=1), torch.float64)
    tokens = [torch.cat([given[name]] * 5, 1)[:, :5] for name in ("q", "k", "v", "a", "b")]
    given |= dict(zip(("q", "k", "v", "a", "b"), tokens, strict=True))
    states = given["step_states"]
    given["step_states"] = states.new_zeros(states.shape[0], 5, *states.shape[2:])
    given |= {"slots": torch.tensor([1]), "step_slots": torch.tensor([0]), "drafts": torch.tensor([5])}
    parents = [-1, 0, 0, 1, -1]
    got = run_reference(found, given | {"parents": torch.tensor([parents])})
    for branch in ([0, 1, 3], [0, 2], [4]):
        row = {name: given[name][:, branch] for name in ("q", "k", "v", "a", "b", "step_states")}
        alone = {name: x for name, x in given.items() if name != "parents"} | row
        want = run_reference(DRAFTS, alone | {"drafts": torch.tensor([len(branch)])})
        assert torch.equal(got["output"][:, branch], want["output"])
        assert torch.equal(got["step_states"][0, branch], want["step_states"][0, : len(branch)])


def test_a_commit_leaves_what_a_verify_of_the_accepted_tokens_would() -> None:
    """Verify sets states aside, commit puts one of them back; verify of the accepted tokens alone has it last."""
    commit = definition("gdn_commit_states_k_last")
    given = arguments(DRAFTS, drawn(DRAFTS, batch=3), torch.float64)
    T = given["q"].shape[1]
    slots, accepted = torch.tensor([2, 0, 4]), torch.tensor([T, 0, 1])
    given |= {"slots": slots, "step_slots": torch.tensor([0, 1, 2]), "drafts": torch.full((3,), T)}
    states = run_reference(DRAFTS, given)["step_states"]
    moved = {"pool": given["pool"], "slots": slots, "step_states": states, "step_slots": given["step_slots"]}
    pool = run_reference(commit, moved | {"accepted": accepted})["pool"]
    fewer = run_reference(DRAFTS, given | {"drafts": accepted})["step_states"]
    assert torch.equal(pool[2], fewer[0, T - 1])
    assert torch.equal(pool[4], fewer[2, 0])
    others = [slot for slot in range(len(pool)) if slot not in (2, 4)]
    assert torch.equal(pool[others], given["pool"][others])


def test_steps_of_a_convolution_are_one_prefill_of_what_was_accepted() -> None:
    """Whatever the tokens were that did not count, and steps without a token between them."""
    conv, (W, T, C) = reference("convolution"), (4, 3, 6)
    torch.manual_seed(0)
    weight, bias, x = torch.randn(C, W).double(), torch.randn(C).double(), torch.randn(7, C).double()
    pool = torch.randn(3, C, W - 2 + T).double()
    start = torch.cat([pool[1:2, :, : W - 1]] * 2)
    slot, done, accepted, outputs = torch.tensor([1]), 0, 1, []
    for tokens, count in ((3, 2), (2, 2), (0, 0), (3, 1), (3, 2)):
        given = torch.randn(1, T, C).double()
        given[0, :count] = x[done : done + count]
        output, pool = conv.conv1d_verify(
            given, weight, bias, pool, slot, torch.tensor([accepted]), torch.tensor([tokens])
        )  # fmt: skip
        outputs, done, accepted = [*outputs, output[0, :count]], done + count, count or accepted
    whole, _ = conv.conv1d_prefill(
        x, weight, bias, torch.tensor([0, 7]), start, torch.tensor([0]), torch.tensor([True])
    )  # fmt: skip
    assert torch.equal(torch.cat(outputs), whole)


def test_every_branch_of_a_tree_is_a_prefill_of_its_convolution() -> None:
    conv, C = reference("convolution"), 6
    torch.manual_seed(0)
    weight, bias, x = torch.randn(C, 4).double(), torch.randn(C).double(), torch.randn(1, 5, C).double()
    pool, steps = torch.randn(2, C, 3).double(), torch.zeros(2, 5, C, 3).double()
    one, parents = torch.tensor([1]), torch.tensor([[-1, 0, 0, 1, -1]])
    output, after = conv.conv1d_verify_tree(
        x, weight, bias, pool, one, steps, torch.tensor([0]), torch.tensor([5]), parents
    )  # fmt: skip
    for branch in ([0, 1, 3], [0, 2], [4]):
        bounds = torch.tensor([0, len(branch)])
        want, left = conv.conv1d_prefill(x[0, branch], weight, bias, bounds, pool, one, torch.tensor([True]))
        torch.testing.assert_close(output[0, branch], want, rtol=1e-14, atol=1e-15)  # exp of one number or of several
        assert torch.equal(after[0, branch[-1]], left[1])
    assert not after[1].any()


def test_padding_anywhere_is_no_step() -> None:
    """A row is the packed sequence of its tokens, whatever stands between and around them."""
    found, plain = definition("gdn_prefill_padded_k_first"), definition("gdn_prefill_k_first")
    given = arguments(plain, drawn(plain, lengths=(4,)), torch.float64)
    want = run_reference(plain, given)
    places = torch.tensor([[3, 4, 5, 6], [0, 1, 2, 3], [1, 2, 4, 6]])
    padded = {"attention_mask": torch.zeros(3, 7, dtype=torch.int64).scatter(1, places, 1), "scale": given["scale"]}
    for name in ("q", "k", "v", "g", "beta"):
        x = torch.full((3, 7, *given[name].shape[1:]), -1.0).double()
        for n in range(3):
            x[n, places[n]] = given[name]
        padded[name] = x
    got = run_reference(found, padded | {"initial_state": given["initial_state"].expand(3, -1, -1, -1)})
    for n in range(3):
        assert torch.equal(got["output"][n, places[n]], want["output"])
        assert torch.equal(got["final_state"][n], want["final_state"][0])
    assert not got["output"][padded["attention_mask"] == 0].any()


def test_states_at_edges_do_not_depend_on_how_a_request_is_cut() -> None:
    """Calls that start on an edge, beside one, and between two keep what one call over everything keeps."""
    call = reference("checkpoints")
    given = arguments(PREFILL, drawn(PREFILL, lengths=(200,)), torch.float64)
    windows = {"weight": torch.randn(6, 4).double(), "bias": None, "slots": torch.tensor([0])}
    x, pool = torch.randn(200, 6).double(), torch.randn(1, 6, 3).double()

    def kept(prefill: Any, first: int, stop: int, state: Tensor, pool: Tensor) -> tuple[Tensor, ...]:
        rows = torch.tensor([0, -(-(stop - first) // 64)])
        edges = {
            "cu_seqlens": torch.tensor([0, stop - first]), "start_positions": torch.tensor([first]),
            "checkpoint_cu_starts": rows, "checkpoint_interval": 64,
        }  # fmt: skip
        piece = {name: given[name][first:stop] for name in ("q", "k", "v", "g", "beta")}
        _, state, states = prefill(**piece, **edges, initial_state=state, scale=None)
        _, past, pool = call.conv1d_checkpoints_absolute(
            x[first:stop], **windows, **edges, conv_states=pool, has_initial_state=torch.tensor([True])
        )
        met = stop // 64 - first // 64
        assert not states[met:].any()
        assert not past[met:].any()
        return states[:met], past[:met], state, pool

    in_chunks = call.prefill_checkpoints_absolute_in_chunks
    whole = kept(call.prefill_checkpoints_absolute, 0, 200, given["initial_state"], pool)
    for cuts in ((0, 63, 66, 200), (0, 130, 192, 200)):
        states, past, state, after = [], [], given["initial_state"], pool
        for first, stop in pairwise(cuts):
            more, windows_kept, state, after = kept(in_chunks, first, stop, state, after)
            states, past = [*states, more], [*past, windows_kept]
        for pieces, want in ((torch.cat(states), whole[0]), (torch.cat(past), whole[1]), (state, whole[2])):
            torch.testing.assert_close(pieces, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("function", ["prefill_pool_k_last", "prefill_pool_in_chunks"])
def test_a_prefill_on_a_pool_is_one_of_its_slots(function: str) -> None:
    """Whatever stands in slots that are not read, and behind the last sequence."""
    given = arguments(IN_POOL, drawn(IN_POOL, lengths=(3, 0, 70, 2, 5)), torch.float64)
    flags, slots = torch.tensor([True, False, True, False, True]), torch.tensor([4, 0, 2, 1, -1])
    plain = {name: given[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens", "scale")}
    states = torch.where(flags[:, None, None, None], given["pool"][slots.clamp(min=0)], 0.0)
    want = run_reference(PREFILL, plain | {"initial_state": states})
    pool = given["pool"].clone()
    pool[1] = torch.nan
    rows = {name: torch.cat([given[name], torch.full_like(given[name][:4], torch.nan)]) for name in ("q", "k", "v")}
    gates = {name: torch.cat([given[name], torch.full_like(given[name][:4], torch.nan)]) for name in ("g", "beta")}
    call = getattr(reference("serving"), function)
    output, after = call(**rows, **gates, cu_seqlens=given["cu_seqlens"], pool=pool, slots=slots,
                         has_initial_state=flags, scale=given["scale"])  # fmt: skip
    expected = want["output"].clone()
    expected[-5:] = 0  # of the sequence that is skipped
    torch.testing.assert_close(output[:-4], expected, rtol=1e-12, atol=1e-12)
    assert not output[-4:].any()
    written = torch.tensor([4, 2, 1])
    torch.testing.assert_close(after[written], want["final_state"][[0, 2, 3]], rtol=1e-12, atol=1e-12)
    assert torch.equal(after[[0, 3]], pool[[0, 3]])

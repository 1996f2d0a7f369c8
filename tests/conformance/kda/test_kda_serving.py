"""What holds between a call on packed rows, on slots or with checkpoints, and the plain operator that it is made of."""

from typing import Any

import pytest
import torch
from gdnspec.build import reference as code
from gdnspec.catalog.definitions import Found, definition
from helpers_unit import arguments, drawn, run_reference

ONE, POOL = (definition(f"kda_decode{name}_k_last") for name in ("", "_pool"))
SHARED = ("A_log", "dt_bias", "lower_bound", "scale", "use_qk_l2norm")


def call(found: Found, batch: int) -> dict[str, Any]:
    return arguments(found, drawn(found, batch=batch), torch.float64)


def test_a_row_of_a_pool_is_a_decode_from_its_slot() -> None:
    given = call(POOL, 4)
    given |= {"read_slots": torch.tensor([3, -1, 0, 3]), "write_slots": torch.tensor([1, -1, 0, 2])}
    got, pool = run_reference(POOL, given), given["pool"].clone()
    for n in (0, 2, 3):
        row = {name: given[name][n : n + 1] for name in ("q", "k", "v", "a", "b")}
        state = given["pool"][given["read_slots"][n]][None]
        want = run_reference(ONE, row | {name: given[name] for name in SHARED} | {"state": state})
        pool[given["write_slots"][n]] = want["new_state"][0]
        assert torch.equal(got["output"][n : n + 1], want["output"])
    assert torch.equal(got["pool"], pool)
    assert not got["output"][1].any()


@pytest.mark.parametrize("states", ["", "_bf16_state"])
def test_a_packed_row_is_a_decode_of_its_parts(states: str) -> None:
    """Of queries, keys and values as the definition says where they stand."""
    found = definition(f"kda_decode_packed_k_last{states}")
    given = call(found, 4)
    got, heads = run_reference(found, given), 2  # of queries and keys; four of values
    q, k, v = given["mixed_qkv"].unflatten(1, (4 * heads, 64)).split([heads, heads, 2 * heads], dim=1)
    rows = {name: x[:, None] for name, x in {"q": q, "k": k, "v": v, "a": given["a"], "b": given["b"]}.items()}
    want = run_reference(ONE, rows | {name: given[name] for name in (*SHARED, "state")})
    assert torch.equal(got["output"], want["output"][:, 0])
    assert torch.equal(got["new_state"], want["new_state"])


def test_drafts_of_a_row_are_its_decodes_one_after_the_other() -> None:
    found = definition("kda_verify_k_last")
    given = call(found, 3)
    given |= {"initial_slots": torch.tensor([4, -1, 0]), "accepted": torch.tensor([0, 1, 2])}
    given["state_slots"] = torch.tensor([[1, 2], [-1, -1], [3, 5]])
    got, pool = run_reference(found, given), given["pool"].clone()
    for n, start in ((0, 4), (2, 5)):
        S = given["pool"][start : start + 1]
        for t in range(2):
            row = {name: given[name][n : n + 1, t : t + 1] for name in ("q", "k", "v", "a", "b")}
            want = run_reference(ONE, row | {name: given[name] for name in SHARED} | {"state": S})
            S = want["new_state"]
            pool[given["state_slots"][n, t]] = S[0]
            assert torch.equal(got["output"][n : n + 1, t : t + 1], want["output"])
    assert torch.equal(got["pool"], pool)
    assert not got["output"][1].any()


def test_checkpoints_are_states_on_the_way() -> None:
    """Both derivations, and whatever the chunks of the second are."""
    found, whole = definition("kda_prefill_checkpoints"), definition("kda_prefill_k_last")
    given = arguments(found, drawn(found, lengths=(66, 0, 130)), torch.float64)
    got = run_reference(found, given)
    plain = {name: x for name, x in given.items() if "checkpoint" not in name}
    want = run_reference(whole, plain)
    assert all(torch.equal(got[name], want[name]) for name in want)
    parts = {name: given[name][66:130] for name in ("q", "k", "v", "g", "beta")}
    lengths = {"cu_seqlens": torch.tensor([0, 64]), "initial_state": given["initial_state"][2:]}
    assert torch.equal(got["checkpoints"][1], run_reference(whole, plain | parts | lengths)["final_state"][0])
    second = code.module(found.family, "chunkwise").prefill_checkpoints(**given)
    for x, y in zip(second, got.values(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)

"""What holds between the definitions of the decode family: one recurrence, whatever holds its states."""

from typing import Any

import pytest
import torch
from gdnspec.catalog.definitions import definition
from helpers_unit import arguments, drawn, run_reference
from torch import Tensor

LAST = definition("gdn_decode_k_last")
GATES = ("A_log", "a", "dt_bias", "b", "scale", "use_qk_l2norm")


def dense(keywords: dict[str, Any], **more: Any) -> dict[str, Tensor]:
    """gdn_decode_k_last on these arguments."""
    names = [tensor.name for tensor in LAST.definition.inputs]
    return run_reference(LAST, {name: value for name, value in (keywords | more).items() if name in names})


def of_row(keywords: dict[str, Any], n: int, t: int = 0) -> dict[str, Any]:
    """The arguments of one token of one row; those without a row as they are."""
    per_token = ("q", "k", "v", "a", "b")
    return {name: x[n : n + 1, t : t + 1] if name in per_token else x for name, x in keywords.items()}


def test_a_packed_row_is_its_parts() -> None:
    found = definition("gdn_decode_packed_k_last")
    keywords = arguments(found, drawn(found, batch=3), torch.float64)
    B, H, D, _ = keywords["state"].shape
    keys = H // 2 * D  # two value heads a key head
    mixed = keywords["mixed_qkv"]
    parts = {"q": mixed[:, :keys], "k": mixed[:, keys : 2 * keys], "v": mixed[:, 2 * keys :]}
    split = {name: x.reshape(B, 1, -1, D) for name, x in parts.items()}
    got = run_reference(found, keywords)
    want = dense(keywords, **split, a=keywords["a"][:, None], b=keywords["b"][:, None])
    assert torch.equal(got["output"], want["output"][:, 0])
    assert torch.equal(got["new_state"], want["new_state"])


def test_a_pool_is_a_dense_batch_of_its_slots() -> None:
    found = definition("gdn_decode_pool_k_last")
    keywords = arguments(found, drawn(found, batch=6), torch.float64)
    read, written = torch.tensor([4, 2, -1, 4, 0, 7]), torch.tensor([4, 5, -1, 6, 1, 7])
    pool = keywords["pool"]
    got = run_reference(found, keywords | {"read_slots": read, "write_slots": written})
    want = dense(keywords, state=pool[read.clamp(min=0)])
    for n in range(6):
        if read[n] < 0:
            assert not got["output"][n].any()
        else:
            assert torch.equal(got["output"][n], want["output"][n])
            assert torch.equal(got["pool"][written[n]], want["new_state"][n])
    others = [slot for slot in range(len(pool)) if slot not in written]
    assert torch.equal(got["pool"][others], pool[others])


@pytest.mark.parametrize("accepted", [[0, 0, 0, 0], [3, 0, 1, 2], [3, 3, 3, 3]])
def test_verify_is_decode_token_by_token(accepted: list[int]) -> None:
    found = definition("gdn_verify_k_last")
    keywords = arguments(found, drawn(found, batch=4), torch.float64)
    T = 3
    for name in ("q", "k", "v", "a", "b"):
        keywords[name] = torch.cat([keywords[name], keywords[name][:, :1].flip(0)], dim=1)  # two tokens are drawn
    pool = torch.cat([keywords["pool"]] * 2)
    slots = torch.arange(len(pool) - 1, -1, -1)
    initial, state = slots[:4].clone(), slots[4 : 4 + 4 * T].reshape(4, T).clone()
    initial[1], state[1] = -1, -1
    given = {"pool": pool, "initial_slots": initial, "state_slots": state, "accepted": torch.tensor(accepted)}
    got = run_reference(found, keywords | given)
    want = pool.clone()
    for n in (0, 2, 3):
        S = pool[initial[n] if accepted[n] == 0 else state[n, accepted[n] - 1]][None]
        for t in range(T):
            one = dense(of_row(keywords, n, t), state=S)
            S = one["new_state"]
            assert torch.equal(got["output"][n, t], one["output"][0, 0])
            want[state[n, t]] = S[0]
    assert torch.equal(got["pool"], want), "every other slot stays as it was"
    assert not got["output"][1].any()


def test_a_bf16_state_is_rounded_once_and_the_output_read_before() -> None:
    found = definition("gdn_decode_k_last_bf16_state")
    keywords = arguments(found, drawn(found, batch=3))
    got = run_reference(found, keywords)
    wide = dense(keywords, state=keywords["state"].float())
    assert got["new_state"].dtype == torch.bfloat16
    assert torch.equal(got["new_state"], wide["new_state"].bfloat16())
    assert torch.equal(got["output"], wide["output"])

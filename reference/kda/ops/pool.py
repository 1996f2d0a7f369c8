"""Kimi Delta Attention on states in a pool, which is updated in place: one token per sequence, or drafts to verify."""

from typing import Any

import torch
from gdnspec.family import Asked, checks, register_pool
from torch import Tensor

from . import sizes
from .decode import one_token

STEP, VERIFY = "kimi_delta_attention_step_", "kimi_delta_attention_verify"


# --- one token per sequence -------------------------------------------------------------------------------------


def step_moved(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the states that go to the slots written."""
    output = step_fake(q, k, v, pool, read_slots, write_slots, A_log, a, dt_bias, b, lower_bound)
    checks.slots(STEP, "read_slots", read_slots, len(pool))
    checks.slots(STEP, "write_slots", write_slots, len(pool), once=True)
    checks.skipped(STEP, "read_slots", read_slots, "write_slots", write_slots)
    checks.apart(STEP, "read_slots", read_slots, "write_slots", write_slots, len(pool))
    rows = (read_slots >= 0).nonzero()[:, 0]
    read, written = read_slots[rows].long(), write_slots[rows].long()
    o, S = one_token(
        q[rows, 0], k[rows, 0], v[rows, 0], pool[read], A_log, a[rows, 0], dt_bias, b[rows, 0],
        lower_bound, scale, use_qk_l2norm,
    )  # fmt: skip
    output = torch.zeros_like(output).index_put((rows,), o[:, None].to(v.dtype))
    return output, written, S.to(pool.dtype)


def step_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    *options: Any,
) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    integers = {"read_slots": read_slots, "write_slots": write_slots}
    output = sizes.tokens(STEP, q, k, v, "pool", pool, A_log, a, dt_bias, b, lower_bound, "k_last", **integers)
    checks.shape(STEP, "q", q, (None, 1, None, None), "[B, 1, heads, K]")
    for name, x in integers.items():
        checks.shape(STEP, name, x, (q.shape[0],), "[B]")
    return output


def step_asked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    read_slots: Tensor,
    write_slots: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> Asked:
    """The definition with this type of states."""
    sizes.one_size(STEP, q, v)
    slots = (read_slots.int(), write_slots.int())
    inputs = (q, k, v, pool, *slots, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm)
    return f"kda_decode_pool_k_last{checks.by_type(STEP, 'pool', pool, sizes.STATES)}", inputs, None


STEP_OPERATOR = register_pool(
    STEP,
    "Tensor q, Tensor k, Tensor v, Tensor(a!) pool, Tensor read_slots, Tensor write_slots, Tensor A_log, Tensor a, "
    "Tensor dt_bias, Tensor b, float? lower_bound=None, float? scale=None, bool? use_qk_l2norm=True",
    step_moved,
    step_fake,
    step_asked,
)


# --- drafts -----------------------------------------------------------------------------------------------------


def verify_moved(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, and the state after each token, which goes to a slot of its own."""
    output = verify_fake(q, k, v, pool, initial_slots, state_slots, accepted, A_log, a, dt_bias, b, lower_bound)
    checks.slots(VERIFY, "initial_slots", initial_slots, len(pool))
    checks.slots(VERIFY, "state_slots", state_slots, len(pool), once=True)
    checks.skipped(VERIFY, "initial_slots", initial_slots, "state_slots", state_slots)
    checks.apart(VERIFY, "initial_slots", initial_slots, "state_slots", state_slots, len(pool))
    checks.counts(VERIFY, "accepted", accepted, q.shape[1])
    rows = (initial_slots >= 0).nonzero()[:, 0]
    last = (accepted[rows].long() - 1).clamp(min=0)
    written = state_slots[rows].long()  # [n, T]
    start = torch.where(accepted[rows] > 0, written.gather(1, last[:, None])[:, 0], initial_slots[rows].long())
    S, outputs, states = pool[start], [], []
    for t in range(q.shape[1]):
        o, S = one_token(
            q[rows, t], k[rows, t], v[rows, t], S, A_log, a[rows, t], dt_bias, b[rows, t],
            lower_bound, scale, use_qk_l2norm,
        )  # fmt: skip
        outputs.append(o)
        states.append(S)  # rounded only where it is stored
    output = torch.zeros_like(output).index_put((rows,), torch.stack(outputs, 1).to(v.dtype))
    return output, written.flatten(), torch.stack(states, 1).flatten(0, 1).to(pool.dtype)


def verify_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    *options: Any,
) -> Tensor:
    """The output without values, for a call that is served. Raises `ValueError` and `TypeError` for others."""
    rows = {"initial_slots": initial_slots, "accepted": accepted}
    integers = {**rows, "state_slots": state_slots}
    output = sizes.tokens(VERIFY, q, k, v, "pool", pool, A_log, a, dt_bias, b, lower_bound, "k_last", **integers)
    for name, x in rows.items():
        checks.shape(VERIFY, name, x, (q.shape[0],), "[B]")
    checks.shape(VERIFY, "state_slots", state_slots, tuple(q.shape[:2]), "[B, T]")
    if q.shape[1] < 1:
        raise ValueError(f"{VERIFY}: q has no tokens: one or more per sequence are served")
    return output


def verify_asked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pool: Tensor,
    initial_slots: Tensor,
    state_slots: Tensor,
    accepted: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    lower_bound: float | None = None,
    scale: float | None = None,
    use_qk_l2norm: bool | None = True,
) -> Asked:
    """The one definition of drafts."""
    sizes.one_size(VERIFY, q, v)
    slots = (initial_slots.int(), state_slots.int(), accepted.int())
    inputs = (q, k, v, pool, *slots, A_log, a, dt_bias, b, lower_bound, scale, use_qk_l2norm)
    return "kda_verify_k_last", inputs, None


VERIFY_OPERATOR = register_pool(
    VERIFY,
    "Tensor q, Tensor k, Tensor v, Tensor(a!) pool, Tensor initial_slots, Tensor state_slots, Tensor accepted, "
    "Tensor A_log, Tensor a, Tensor dt_bias, Tensor b, float? lower_bound=None, float? scale=None, "
    "bool? use_qk_l2norm=True",
    verify_moved,
    verify_fake,
    verify_asked,
)

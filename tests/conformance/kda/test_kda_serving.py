"""What holds between a call on slots, or with checkpoints, and the plain operator that it is made of."""

from typing import Any

import torch
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

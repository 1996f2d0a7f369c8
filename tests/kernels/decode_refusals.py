"""Calls decode solutions with what they must refuse; run in a process of its own by test_decode_refusals.py.

python decode_refusals.py SOLUTION DEVICE BUILD_DIR      prints a JSON object: case to what the call raised
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gdnspec.build.loader import load_function

ROOT = Path(__file__).resolve().parents[2]
B, T, HQ, H, D, SLOTS = 3, 2, 1, 2, 64, 9
bf16, f32, i32 = torch.bfloat16, torch.float32, torch.int32


def tensor(*shape: int, dtype: torch.dtype = bf16) -> torch.Tensor:
    return (torch.rand(shape, device=DEVICE) - 0.5).to(dtype)


def slots(values: list[Any]) -> torch.Tensor:
    return torch.tensor(values, dtype=i32, device=DEVICE)


def dense(heads: int = H, size: int = D, q_heads: int = HQ, batch: int = B) -> dict[str, Any]:
    state = tensor(batch, heads, size, size, dtype=f32)
    return {
        **{name: tensor(batch, 1, q_heads, size) for name in "qk"}, "v": tensor(batch, 1, heads, size), "state": state,
        "A_log": tensor(heads, dtype=f32), "a": tensor(batch, 1, heads), "dt_bias": tensor(heads),
        "b": tensor(batch, 1, heads), "scale": None, "use_qk_l2norm": None,
        "output": torch.full((batch, 1, heads, size), torch.nan, dtype=bf16, device=DEVICE),
        "new_state": torch.empty_like(state),
    }  # fmt: skip


def pooled(tokens: int, read: list[int], write: list[Any], accepted: list[int] | None = None) -> dict[str, Any]:
    given = dense()
    names = ("read_slots", "write_slots") if accepted is None else ("initial_slots", "state_slots")
    more = {} if accepted is None else {"accepted": slots(accepted)}
    n = len(read)
    return {
        **{name: tensor(n, tokens, HQ, D) for name in "qk"}, "v": tensor(n, tokens, H, D),
        "pool": tensor(SLOTS, H, D, D, dtype=f32), names[0]: slots(read), names[1]: slots(write), **more,
        "A_log": given["A_log"], "a": tensor(n, tokens, H), "dt_bias": given["dt_bias"], "b": tensor(n, tokens, H),
        "scale": None, "use_qk_l2norm": None,
        "output": torch.full((n, tokens, H, D), torch.nan, dtype=bf16, device=DEVICE),
    }  # fmt: skip


def pool(read: list[int] | None = None, write: list[int] | None = None) -> dict[str, Any]:
    return pooled(1, read or [0, 1, 2], write or [3, 4, 5])


def verify(first: list[int] | None = None, to: list[list[int]] | None = None, accepted: list[int] | None = None,
           tokens: int = T) -> dict[str, Any]:  # fmt: skip
    return pooled(tokens, first or [6, 7, 8], to or [[0, 1], [2, 3], [4, 5]], accepted or [0, 1, 2])


def cases() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name to (definition, arguments). What begins with "debug" is only refused with GDNSPEC_DEBUG=1."""
    made: dict[str, tuple[str, dict[str, Any]]] = {}
    good = dense()
    for definition in ("gdn_decode_k_last", "gdn_decode_k_first"):
        for name, change in {
            "state float16": {"state": good["state"].half()},
            "new_state of another type": {"new_state": good["new_state"].to(bf16)},
            "state's rows and columns swapped": {"state": good["state"].mT},
            "q float32": {"q": good["q"].float()},
            "k of another length": {"k": tensor(B, 1, HQ, D // 2)},
            "v with a head too few": {"v": tensor(B, 1, H - 1, D)},
            "A_log bfloat16": {"A_log": good["A_log"].to(bf16)},
            "a not contiguous": {"a": tensor(B, 1, 2 * H)[..., ::2]},
            "output for one row less": {"output": good["output"][:-1]},
            "b with two dimensions": {"b": good["b"][:, 0]},
        }.items():
            made[f"{definition}: {name}"] = definition, good | change
        made[f"{definition}: q heads that do not divide"] = definition, dense(heads=3, q_heads=2)
        made[f"{definition}: head size 512"] = definition, dense(size=512)
    if DEVICE == "cuda":
        made["gdn_decode_k_last: state on the CPU"] = "gdn_decode_k_last", good | {"state": good["state"].cpu()}
        made["gdn_decode_k_last: q on the CPU"] = "gdn_decode_k_last", good | {"q": good["q"].cpu()}
    p, v = pool(), verify()
    for name, change in {
        "pool not contiguous within a slot": {"pool": p["pool"].mT},
        "pool whose slots overlap": {"pool": p["pool"][:1].expand(SLOTS, -1, -1, -1)},
        "pool float16": {"pool": p["pool"].half()},
        "read_slots int64": {"read_slots": p["read_slots"].long()},
        "write_slots for one row less": {"write_slots": p["write_slots"][:-1]},
        "two tokens a row": {name: v[name] for name in ("q", "k", "v", "a", "b", "output")},
    }.items():
        made[f"pool: {name}"] = "gdn_decode_pool_k_last", p | change
    for name, change in {
        "state_slots of one token": {"state_slots": v["state_slots"][:, :1].contiguous()},
        "accepted int64": {"accepted": v["accepted"].long()},
        "initial_slots with two dimensions": {"initial_slots": v["state_slots"]},
    }.items():
        made[f"verify: {name}"] = "gdn_verify_k_last", v | change
    seventeen = pooled(17, [0], [list(range(17))], [0])
    made["verify: 17 tokens"] = "gdn_verify_k_last", seventeen
    packed = {
        name: x[:, 0].contiguous() if name in ("a", "b", "output") else x
        for name, x in good.items() if name not in ("q", "k", "v")
    }  # fmt: skip
    rows = {"mixed_qkv": tensor(B, (2 * HQ + H) * D)}
    for name, wide in {"a row with half a head more": D // 2, "a row of values alone": -2 * HQ * D}.items():
        row = {"mixed_qkv": tensor(B, (2 * HQ + H) * D + wide)}
        made[f"packed: {name}"] = "gdn_decode_packed_k_last", row | packed
    made["packed: mixed_qkv float32"] = "gdn_decode_packed_k_last", {"mixed_qkv": rows["mixed_qkv"].float()} | packed
    for name, given in {
        "slot past the end": pool(read=[0, 1, SLOTS]),
        "slot -2": pool(write=[3, 4, -2]),
        "slot written twice": pool(write=[3, 4, 3]),
        "slot read that another row writes": pool(write=[3, 0, 5]),
        "row skipped by half": pool(read=[0, 1, -1]),
    }.items():
        made[f"debug pool: {name}"] = "gdn_decode_pool_k_last", given
    for name, given in {
        "slot past the end": verify(to=[[0, 1], [2, 3], [4, SLOTS]]),
        "accepted more than there are": verify(accepted=[0, 1, 3]),
        "accepted negative": verify(accepted=[0, -1, 2]),
        "slot written twice": verify(to=[[0, 1], [2, 1], [4, 5]]),
        "start that another row writes": verify(first=[2, 7, 8], accepted=[0, 1, 2]),
    }.items():
        made[f"debug verify: {name}"] = "gdn_verify_k_last", given
    made["empty batch"] = "gdn_decode_k_last", dense(batch=0)
    return made


def outside_is_skipped(call: Callable[[str, dict[str, Any]], str]) -> bool:
    """Slots that are none, without the debug switch: their rows are zero, and of the pool only slot 3 changes."""
    given = pool(read=[0, SLOTS, 2], write=[3, 4, -7])
    before = given["pool"].clone()
    said = call("gdn_decode_pool_k_last", given)
    same = [bool(torch.equal(given["pool"][n], before[n])) for n in range(SLOTS)]
    zero = [bool((row == 0).all()) for row in given["output"]]
    return said == "nothing" and same == [n != 3 for n in range(SLOTS)] and zero == [False, True, True]


def main(solution: str, build: str) -> None:
    folder = ROOT / "solutions" / solution
    entries = json.loads((folder / "solution.json").read_text())["entries"]

    def call(definition: str, given: dict[str, Any]) -> str:
        spec = entries[definition]["entry"]
        function = load_function(folder, spec, Path(build))
        try:
            function(*given.values()) if spec.startswith("kernel.cu") else function(**given)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    said = {name: call(*case) for name, case in cases().items()}
    said["outside is skipped"] = str(outside_is_skipped(call))
    print(json.dumps(said))


if __name__ == "__main__":
    DEVICE = sys.argv[2]
    main(sys.argv[1], sys.argv[3])

"""cuda_serving on a CPU: its device code, a thread for each lane, on rows of the suites against the reference."""

import ctypes
import shutil
import subprocess
from typing import Any

import pytest
import torch
from conftest import ROOT
from gdnspec.catalog.definitions import definition
from gdnspec.catalog.workloads import workloads
from gdnspec.inputs.materialise import materialise
from helpers_unit import arguments, run_reference
from torch import Tensor

GXX = shutil.which("g++")
KERNEL, EMULATOR = ROOT / "solutions/cuda_serving", ROOT / "tests/kernels/cuda_serving/serving_emulation"
DRAFTS, PREFILL, COMMIT = "gdn_verify_drafts_k_last", "gdn_prefill_pool_k_last", "gdn_commit_states_k_last"
TREE = "gdn_verify_tree_k_last"
ROWS = [
    *((DRAFTS, row) for row in ("mixed", "skips", "shared", "resets", "scale_given_no_l2norm")),
    *((TREE, row) for row in ("mixed", "bushy", "skips", "sixteen", "late_root", "scale_given_no_l2norm")),
    *((PREFILL, row) for row in ("ragged", "behind", "skips", "empty", "gqa", "only_required")),
    *((COMMIT, row) for row in ("mixed", "skips", "none_first")),
    (f"{DRAFTS}_bf16_state", "mixed"), (f"{PREFILL}_bf16_state", "ragged"), (f"{COMMIT}_bf16_state", "mixed"),
    *((f"{TREE}_bf16_state", row) for row in ("mixed", "bushy", "late_root")), (f"{PREFILL}_slot_zero", "skips"),
]  # fmt: skip

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(GXX is None, reason="no g++ here")]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    made = tmp_path_factory.mktemp("serving") / "emulate.so"
    command = [str(GXX), "-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-pthread"]
    folders = [f"-I{EMULATOR}", f"-I{KERNEL}"]
    subprocess.run([*command, *folders, "-o", made, EMULATOR / "emulate.cpp"], check=True)
    return ctypes.CDLL(str(made))


def run(function: Any, tensors: list[Tensor | None], sizes: list[int], *more: Any) -> None:
    pointers = [None if x is None else x.data_ptr() for x in tensors]
    function((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_int64 * len(sizes))(*sizes), *more)


def called(library: ctypes.CDLL, name: str, given: dict[str, Any]) -> Tensor | None:
    """The output of a call, whose pools are updated in place."""
    pool = given["pool"]
    H, D, kind = pool.shape[1], pool.shape[3], str(pool.dtype).removeprefix("torch.")
    inputs = [x for x in given.values() if torch.is_tensor(x) or x is None]
    if name.startswith(COMMIT):
        words = pool[0].numel() * pool.element_size() // 16
        sizes = [len(given["slots"]), len(pool), given["step_states"].shape[1], words, words]
        run(library.commit, list(given.values()), sizes)
        return None
    scale = ctypes.c_float(D**-0.5 if given["scale"] is None else given["scale"])
    if name.startswith((DRAFTS, TREE)):
        output = torch.full_like(given["v"], torch.nan)
        norm = given["use_qk_l2norm"] is None or given["use_qk_l2norm"]
        B, T, heads, _ = given["q"].shape
        names = ("q", "k", "v", "pool", "slots", "step_states", "step_slots", "drafts", "A_log", "a", "dt_bias", "b")
        inputs = [given[name] for name in names]
        sizes = [B, T, H, heads, len(pool), int(norm), pool.stride(0)]
        tree = [given["parents"]] if name.startswith(TREE) else []
        run(getattr(library, f"{'tree' if tree else 'verify'}_{kind}_{D}"), [*inputs, output, *tree], sizes, scale)
        return output
    names = ("q", "k", "v", "g", "beta", "cu_seqlens", "pool", "slots", "has_initial_state")
    inputs = [given[name] for name in names]
    total, heads = len(given["q"]), [given[name].shape[1] for name in ("q", "k", "v")]
    output = torch.full((total, H, D), torch.nan, dtype=torch.bfloat16)
    output[int(given["cu_seqlens"][-1]) :] = 0  # rows of no sequence are not written
    sizes = [len(given["slots"]), total, H, *heads, len(pool), int("slot_zero" in name), pool.stride(0)]
    run(getattr(library, f"prefill_{kind}_{D}"), [*inputs, output], sizes, scale)
    return output


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_the_kernels_are_right(library: ctypes.CDLL, name: str, row: str) -> None:
    found = definition(name)
    (workload,) = (workload for workload in workloads(found) if workload.name == row)
    inputs = materialise(found, workload)
    given = {key: x.clone() if torch.is_tensor(x) else x for key, x in arguments(found, inputs).items()}
    want = run_reference(found, arguments(found, inputs, torch.float64))
    output = called(library, name, given)
    got = {key: output if key == "output" else given[key] for key in want}
    for key, x in got.items():
        assert x is not None
        close = 4e-3 if x.dtype == torch.bfloat16 else 1e-6
        error = (x.double() - want[key].double()).norm() / want[key].double().norm().clamp(min=1e-30)
        assert float(error) < close, key
        assert torch.equal(x == 0, want[key].to(x.dtype) == 0), key


def test_a_tree_is_visited_depth_first(library: ctypes.CDLL) -> None:
    """Each token once, after its parent; a state is read back once for each leaf but the last."""
    random = torch.Generator().manual_seed(7)
    for _ in range(300):
        count = int(torch.randint(1, 17, (), generator=random))
        parents = [int(torch.randint(-1, t, (), generator=random)) if t else -1 for t in range(count)]
        numbers = ctypes.c_int32 * 16
        order, read = numbers(), numbers()
        library.visits(numbers(*parents), count, order, read)
        visited = list(order[:count])
        assert sorted(visited) == list(range(count))
        before = -1
        for n, t in enumerate(visited):
            assert parents[t] == -1 or parents[t] in visited[:n]
            assert bool(read[n]) == (parents[t] != before)
            before = t
        leaves = set(range(count)) - set(parents)
        assert sum(read[:count]) == len(leaves) - 1


def test_a_parent_that_is_none_counts_as_the_pool(library: ctypes.CDLL) -> None:
    numbers = ctypes.c_int32 * 16
    order, read = numbers(), numbers()
    library.visits(numbers(5, -7, 2), 3, order, read)
    assert list(order[:3]) == [0, 1, 2]
    assert list(read[:3]) == [0, 1, 1]

"""Compiled kernels keep their state in registers: none spills, but those that triton_layer's README names. `pytest -s`
prints the table."""

import shutil

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("tvm_ffi")

from gdnspec.build.resources import KernelResources, cuda_resources, parse_ptxas, triton_resources  # noqa: E402
from meta_tensors import meta  # noqa: E402

SOLUTIONS = ROOT / "solutions"
HEAD_SIZES = (64, 120, 128)
HEADS = (16, 16, 32)  # query, key, value


def prefill_arguments(D: int, N: int = 3, T: int = 1000) -> dict[str, object]:
    HQ, HK, HV = HEADS
    H = HV
    q, k, v, output = (meta(T, heads, D, dtype=torch.bfloat16) for heads in (HQ, HK, HV, H))
    return {
        "q": q, "k": k, "v": v, "g": meta(T, H), "beta": meta(T, H), "cu_seqlens": meta(N + 1, dtype=torch.int64),
        "initial_state": meta(N, H, D, D), "scale": None, "output": output, "final_state": meta(N, H, D, D),
    }  # fmt: skip


def decode_arguments(D: int) -> dict[str, object]:
    HQ, HK, HV = HEADS
    B, H = 8, HV
    q, k, v, output = (meta(B, 1, heads, D, dtype=torch.bfloat16) for heads in (HQ, HK, HV, HV))
    a, b = (meta(B, 1, H, dtype=torch.bfloat16) for _ in range(2))
    return {
        "q": q, "k": k, "v": v, "state": meta(B, H, D, D), "A_log": meta(H), "a": a,
        "dt_bias": meta(H, dtype=torch.bfloat16), "b": b, "scale": None, "use_qk_l2norm": True,
        "output": output, "new_state": meta(B, H, D, D),
    }  # fmt: skip


def family_arguments(case: str, D: int, dtype: torch.dtype) -> dict[str, object]:
    """Of triton_decode's entries: `decode_*` as above, or in a pool, or four tokens to verify."""
    arguments = decode_arguments(D)
    B, H = 8, HEADS[2]
    if case.startswith("decode_k"):
        return arguments | {name: meta(B, H, D, D, dtype=dtype) for name in ("state", "new_state")}
    for name in ("state", "new_state"):
        del arguments[name]
    arguments["pool"] = meta(4 * B, H, D, D, dtype=dtype)
    slots = {name: meta(B, dtype=torch.int32) for name in ("read_slots", "write_slots", "initial_slots", "accepted")}
    if case == "decode_pool_k_last":
        return arguments | {name: slots[name] for name in ("read_slots", "write_slots")}
    for name, heads in zip(("q", "k", "v", "output"), (*HEADS, HEADS[2]), strict=True):
        arguments[name] = meta(B, 4, heads, D, dtype=torch.bfloat16)
    arguments |= {name: meta(B, 4, H, dtype=torch.bfloat16) for name in ("a", "b")}
    slots["state_slots"] = meta(B, 4, dtype=torch.int32)
    return arguments | {name: slots[name] for name in ("initial_slots", "state_slots", "accepted")}


def show(title: str, kernels: list[KernelResources]) -> None:
    for x in kernels:
        print(f"\n{title:28} {x.name:40} {x.registers:4} registers, {x.spill_stores} + {x.spill_loads} bytes spilled, "
              f"{x.shared_bytes} bytes shared", end="")  # fmt: skip


def compiled(solution: str, calls: list[tuple[str, dict[str, object]]]) -> list[list[KernelResources]]:
    """Of all calls, in one process: loading torch and Triton takes longer than to compile most kernels."""
    found = triton_resources(SOLUTIONS / solution, [(f"kernel.py::{entry}", inputs) for entry, inputs in calls])
    for (entry, _), kernels in zip(calls, found, strict=True):
        show(f"{solution} {entry}", kernels)
        assert all(kernel.spill_stores == kernel.spill_loads == 0 for kernel in kernels), (entry, kernels)
        assert not any(kernel.refilled for kernel in kernels), (entry, kernels)
    return found


SAMPLED = ("prefill_k_first", "decode_k_last", "decode_k_first")
SIMILAR = [pytest.param(entry, marks=pytest.mark.thorough) for entry in SAMPLED]


@pytest.mark.parametrize("entry", ["prefill_k_last", *SIMILAR])
def test_triton_kernels_do_not_spill(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # must not reach the process that compiles
    make = prefill_arguments if entry.startswith("prefill") else decode_arguments
    for kernels in compiled("triton_recurrent", [(entry, make(head_size)) for head_size in HEAD_SIZES]):
        assert [kernel.name for kernel in kernels] == [entry.split("_")[0] + "_kernel"]
        assert kernels[0].registers <= 128


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(
            [("decode_k_last", D, dtype) for D in (64, 128, 256) for dtype in (torch.float32, torch.bfloat16)],
            id="k_last", marks=pytest.mark.thorough,
        ),
        pytest.param(
            [("decode_k_first", D, dtype) for D in (64, 128, 256) for dtype in (torch.float32, torch.bfloat16)],
            id="k_first", marks=pytest.mark.thorough,
        ),
        pytest.param(
            [
                ("decode_pool_k_last", 128, torch.float32), ("decode_pool_k_last", 128, torch.bfloat16),
                ("verify_k_last", 128, torch.float32), ("verify_k_last", 256, torch.float32),
            ],
            id="pools", marks=pytest.mark.thorough,
        ),
    ],
)  # fmt: skip
def test_the_decode_family_in_triton_does_not_spill(
    cases: list[tuple[str, int, torch.dtype]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    calls = [(entry, family_arguments(entry, head_size, dtype)) for entry, head_size, dtype in cases]
    for kernels in compiled("triton_decode", calls):
        assert [kernel.name for kernel in kernels] == ["decode_kernel"]


WHOLE, SEGMENTS = ["chain_kernel"], ["chain_kernel", "scan_kernel", "chain_kernel"]


@pytest.mark.parametrize(
    ("cases", "walks"),  # entry, head size, sequences, tokens: few sequences have narrow slices, many have wide ones
    [
        pytest.param(
            [("prefill_k_last", 128, 1, 1000), ("prefill_k_last", 128, 2, 1000), ("prefill_k_first", 128, 8, 1000)],
            WHOLE, id="plain", marks=pytest.mark.thorough,
        ),
        pytest.param([("prefill_checkpoints", 128, 8, 1000)], WHOLE, id="checkpoints", marks=pytest.mark.thorough),
        pytest.param([("prefill_checkpoints", 120, 8, 1000)], WHOLE, id="masked", marks=pytest.mark.thorough),
        pytest.param([("prefill_checkpoints", 256, 8, 1000)], WHOLE, id="large", marks=pytest.mark.thorough),
        # One long sequence.
        pytest.param([("prefill_checkpoints", 128, 1, 8192)], SEGMENTS, id="segments", marks=pytest.mark.thorough),
    ],
)  # fmt: skip
def test_chunkwise_prefill_in_triton_does_not_spill(
    cases: list[tuple[str, int, int, int]], walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    calls = []
    for entry, head_size, num_seqs, tokens in cases:
        arguments = prefill_arguments(head_size, num_seqs, tokens)
        if entry == "prefill_checkpoints":
            arguments["checkpoint_cu_starts"] = meta(num_seqs + 1, dtype=torch.int64)
            arguments |= {"checkpoint_interval": 64, "checkpoints": meta(8, HEADS[2], head_size, head_size)}
        calls.append((entry, arguments))
    for kernels in compiled("triton_chunkwise", calls):
        assert [kernel.name for kernel in kernels] == ["prepare_kernel", *walks]
        assert all(kernel.shared_bytes <= 227 * 1024 for kernel in kernels)


def arguments_of_two_sizes(entry: str, K: int, V: int, H: int, N: int, T: int) -> dict[str, object]:
    """Of the entries for two head sizes: N sequences of T tokens in all, or N rows, of four tokens to verify."""
    bf16 = torch.bfloat16
    if entry == "prefill_k_last_kv_dims":
        q, k = (meta(T, H, K, dtype=bf16) for _ in range(2))
        v, output = (meta(T, H, V, dtype=bf16) for _ in range(2))
        return {
            "q": q, "k": k, "v": v, "g": meta(T, H), "beta": meta(T, H), "cu_seqlens": meta(N + 1, dtype=torch.int64),
            "initial_state": meta(N, H, V, K), "scale": None, "output": output, "final_state": meta(N, H, V, K),
        }  # fmt: skip
    tokens = 4 if entry.startswith("verify") else 1
    q, k = (meta(N, tokens, H, K, dtype=bf16) for _ in range(2))
    v, output = (meta(N, tokens, H, V, dtype=bf16) for _ in range(2))
    a, b = (meta(N, tokens, H, dtype=bf16) for _ in range(2))
    given: dict[str, object] = {
        "q": q, "k": k, "v": v, "A_log": meta(H), "a": a, "dt_bias": meta(H, dtype=bf16), "b": b, "scale": None,
        "use_qk_l2norm": True, "allow_neg_eigval": True, "output": output,
    }  # fmt: skip
    if tokens == 1:
        return given | {"state": meta(N, H, V, K), "new_state": meta(N, H, V, K)}
    slots = {name: meta(N, dtype=torch.int32) for name in ("initial_slots", "accepted")}
    return given | slots | {"pool": meta(5 * N, H, V, K), "state_slots": meta(N, 4, dtype=torch.int32)}


OLMO = (96, 192, 30)  # K, V and heads


@pytest.mark.parametrize(
    "entry", ["decode_k_last_kv_dims", pytest.param("verify_k_last_kv_dims", marks=pytest.mark.thorough)]
)
def test_decode_with_the_heads_of_olmo_hybrid_does_not_spill(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    call = (f"two_sizes.py::{entry}", arguments_of_two_sizes(entry, *OLMO, 8, 8))
    (kernels,) = triton_resources(SOLUTIONS / "triton_decode", [call])
    show(f"triton_decode {entry}", kernels)
    assert [kernel.name for kernel in kernels] == ["decode_kernel"]
    assert all(kernel.spill_stores == kernel.spill_loads == 0 for kernel in kernels)


@pytest.mark.parametrize(
    ("sizes", "num_seqs", "tokens", "walks"),
    [
        pytest.param(OLMO, 1, 1000, WHOLE, marks=pytest.mark.thorough),
        pytest.param(OLMO, 8, 1000, WHOLE, marks=pytest.mark.thorough),
        pytest.param(OLMO, 1, 8192, SEGMENTS, marks=pytest.mark.thorough),
        pytest.param((128, 64, 4), 1, 8192, SEGMENTS, marks=pytest.mark.thorough),
        pytest.param((256, 48, 4), 1, 1000, WHOLE, marks=pytest.mark.thorough),
        pytest.param((40, 256, 4), 1, 1000, WHOLE, marks=pytest.mark.thorough),
    ],
)
def test_chunkwise_prefill_of_two_sizes_does_not_spill(
    sizes: tuple[int, int, int], num_seqs: int, tokens: int, walks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    entry = "prefill_k_last_kv_dims"
    (kernels,) = compiled("triton_chunkwise", [(entry, arguments_of_two_sizes(entry, *sizes, num_seqs, tokens))])
    assert [kernel.name for kernel in kernels] == ["prepare_kernel", *walks]
    assert all(kernel.shared_bytes <= 227 * 1024 for kernel in kernels)


def from_conv_arguments(rows: torch.dtype, D: int, num_seqs: int, T: int = 1000) -> dict[str, object]:
    HQ, HK, HV = HEADS
    return {
        "qkv": meta(T, (HQ + HK + HV) * D, dtype=rows), "decay": meta(T, HV), "beta": meta(T, HV),
        "recurrent_state": meta(num_seqs + 1, HV, D, D), "slots": meta(num_seqs, dtype=torch.int32),
        "row_offsets": meta(num_seqs + 1, dtype=torch.int32), "output": meta(T, HV * D),
    }  # fmt: skip


# Chunks on their way in float32 were more than a multiprocessor has, and so were those of large heads in either type.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rows", "head_size", "num_seqs"),
    [
        (torch.float32, 128, 8),
        pytest.param(torch.float32, 128, 1, marks=pytest.mark.thorough),
        pytest.param(torch.float32, 256, 1, marks=pytest.mark.thorough),
        pytest.param(torch.bfloat16, 128, 8, marks=pytest.mark.thorough),
        pytest.param(torch.bfloat16, 256, 1, marks=pytest.mark.thorough),
    ],
)
def test_the_rule_from_rows_has_room(
    rows: torch.dtype, head_size: int, num_seqs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    call = ("from_conv.py::prefill_from_conv", from_conv_arguments(rows, head_size, num_seqs))
    (kernels,) = triton_resources(SOLUTIONS / "triton_layer", [call])
    show(f"triton_layer {rows} {head_size}", kernels)
    assert [kernel.name for kernel in kernels] == ["prepare_kernel", "chain_kernel"]
    assert all(kernel.shared_bytes <= 227 * 1024 for kernel in kernels)


@pytest.mark.parametrize("rows", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.thorough)])
def test_the_convolution_stays_in_registers(rows: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of walks of 8 and 64 tokens, and of one token a row. The pool is bfloat16."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    calls = []
    for tokens in (100, 2048):
        x, N, C, W = meta(tokens, 8192, dtype=rows), 3, 8192, 4
        given = {
            "x": x, "weight": meta(C, W, dtype=torch.bfloat16), "bias": meta(C, dtype=torch.bfloat16),
            "conv_states": meta(N + 1, C, W - 1, dtype=torch.bfloat16), "slots": meta(N, dtype=torch.int32),
        }  # fmt: skip
        batch = {"cu_seqlens": meta(N + 1, dtype=torch.int64), "has_initial_state": meta(N, dtype=torch.bool)}
        calls.append(("conv1d.py::conv1d_prefill", given | batch | {"output": x}))
    row = meta(N, C, dtype=rows)
    calls.append(("conv1d.py::conv1d_decode", given | {"x": row, "output": row}))
    *walks, step = triton_resources(SOLUTIONS / "triton_layer", calls)
    for kernels in (*walks, step):
        show(f"triton_layer {rows}", kernels)
        assert all(kernel.spill_stores == kernel.spill_loads == 0 for kernel in kernels)
    assert all(kernels[0].name == "prefill_kernel" and kernels[0].registers <= 64 for kernels in walks)
    assert [kernel.name for kernel in step] == ["decode_kernel"]


def around_arguments(tokens: int, channels: int = 8192, width: int = 4, count: int = 3) -> dict[str, object]:
    """Of the convolution's gradients, states among them."""
    x, states = meta(tokens, channels, dtype=torch.bfloat16), (count, channels, width - 1)
    parameters = {"dweight": meta(channels, width), "dbias": meta(channels)}
    return {
        "x": x, "weight": meta(channels, width, dtype=torch.bfloat16), "bias": meta(channels, dtype=torch.bfloat16),
        "cu_seqlens": meta(count + 1, dtype=torch.int64), "initial_state": meta(*states, dtype=torch.bfloat16),
        "do": x, "dht": meta(*states), "dx": x, **parameters, "dh0": meta(*states),
    }  # fmt: skip


WALKS = ("short walks", "walks", "walks with gates and norms")


@pytest.mark.parametrize("which", ["norms", *(pytest.param(name, marks=pytest.mark.thorough) for name in WALKS)])
def test_gradients_around_the_rule_stay_in_registers(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of walks of 16 and 128 tokens; of norms, three programs of which fit on a multiprocessor."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    rows = meta(2048, 32, 128, dtype=torch.bfloat16)
    norm = {"x": rows, "z": rows, "weight": meta(128, dtype=torch.bfloat16), "eps": None, "do": rows, "dx": rows,
            "dz": rows, "dweight": meta(128)}  # fmt: skip
    given = around_arguments(8192)
    tokens = {name: meta(8192, n, 128, dtype=torch.bfloat16) for name, n in (("dq", 16), ("dk", 16), ("dv", 32))}
    names = {"weight": "conv_weight", "bias": "conv_bias", "dweight": "dconv_weight", "dbias": "dconv_bias"}
    gates = {name: meta(8192, 32, dtype=torch.bfloat16) for name in ("a", "b", "da", "db")}
    gates |= {"dg": meta(8192, 32), "dbeta": meta(8192, 32)} | {x: meta(32) for x in ("A_log", "dA_log", "ddt_bias")}
    heads = {names.get(name, name): x for name, x in given.items() if name != "do"} | tokens | gates
    heads |= {"dt_bias": meta(32, dtype=torch.bfloat16)}
    call, most = {
        "short walks": (("conv1d.py::conv1d_backward", around_arguments(50)), 152),
        "walks": (("conv1d.py::conv1d_backward", given), 152),
        "walks with gates and norms": (("conv_gates.py::conv_gates_backward", heads), 128),
        "norms": (("gated_norm.py::gated_rms_norm_backward", norm), 168),
    }[which]
    (kernels,) = triton_resources(SOLUTIONS / "triton_layer_backward", [call])
    show("triton_layer_backward", kernels)
    assert all(kernel.spill_stores == kernel.spill_loads == 0 for kernel in kernels)
    assert kernels[0].name == ("tokens_kernel" if which in WALKS else "norm_kernel")
    assert kernels[0].registers <= most


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize(
    ("solution", "count", "most"),
    [
        pytest.param("cuda_recurrent", 2 * len(HEAD_SIZES), 144, marks=pytest.mark.thorough),
        pytest.param("cuda_decode", 37, 144, marks=pytest.mark.thorough),
        pytest.param("fused_decode_step", 33, 144, marks=pytest.mark.thorough), ("cuda_kda_decode", 12, 144),
    ],
)  # fmt: skip
def test_cuda_kernels_do_not_spill(solution: str, count: int, most: int) -> None:
    kernels = cuda_resources(SOLUTIONS / solution / "kernel.cu")
    show("cuda sm_90a", kernels)
    assert len(kernels) == count
    for kernel in kernels:
        assert kernel.spill_stores == kernel.spill_loads == 0
        assert kernel.registers <= most


@pytest.mark.slow
@pytest.mark.thorough  # compiles for a minute
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_prefill_for_hopper_does_not_spill_or_wait_between_products() -> None:
    kernels = cuda_resources(SOLUTIONS / "hopper_prefill" / "kernel.cu")
    show("cuda sm_90a", kernels)
    advance = [kernel for kernel in kernels if kernel.name.startswith("gdn_prefill_kernel")]
    prepare = [kernel for kernel in kernels if kernel.name.startswith("gdn_prepare_kernel")]
    # bfloat16 and float16: one and two slices of a state in a block, without checkpoints and with; one without outputs.
    # Heads of 64 have one slice.
    assert len(advance) == 10 + 6
    assert len(prepare) == 4 + 2  # with P and without
    staying = [kernel for kernel in kernels if kernel.name.startswith("gdn_stay_kernel")]
    assert [kernel.registers for kernel in staying] == [128] * 2
    preparing = [kernel for kernel in kernels if kernel.name.startswith("gdn_short_kernel")]
    assert [kernel.registers for kernel in preparing] == [168] * 2
    of_long = [kernel for kernel in kernels if kernel.name.startswith("gdn_long_kernel")]
    assert [kernel.registers for kernel in of_long] == [168] * 2
    order = [kernel for kernel in kernels if kernel.name.startswith("gdn_order_kernel")]
    few = [kernel for kernel in kernels if kernel.name.startswith("gdn_few_kernel")]
    assert [kernel.registers for kernel in few] == [56] * 2
    assert len(kernels) == sum(map(len, (advance, prepare, staying, preparing, of_long, few, order)))
    for kernel in kernels:
        assert kernel.spill_stores == kernel.spill_loads == 0
        assert not kernel.serialised
    # What warpgroups trade later comes of this: two blocks of two warpgroups a multiprocessor, one of four.
    at_launch = sorted(kernel.registers for kernel in advance)[:12]
    assert at_launch == [128] * 12
    assert max(kernel.registers for kernel in prepare) <= 128  # four blocks a multiprocessor


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
def test_the_backward_pass_for_hopper_does_not_spill_or_wait_between_products() -> None:
    kernels = cuda_resources(SOLUTIONS / "hopper_backward" / "kernel.cu")
    show("cuda sm_90a", kernels)
    # bfloat16 and float16: what precedes the walks; both with one slice of a state in a block or two, and the forward
    # one with two blocks on a multiprocessor; those over segments, short sequences, and the sum of values; where
    # sequences are cut, and states joined; and in bfloat16 what is side by side: both walks with one slice or two; and
    # with two, where all sequences have as many chunks, or beside all that precedes the gradients.
    assert len(kernels) == 2 * (1 + 3 + 2 + 1 + 1 + 1) + 2 + 1 + 4
    for kernel in kernels:
        assert kernel.spill_stores == kernel.spill_loads == 0
        assert not kernel.serialised


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["90a", "80", "100a"])
def test_the_fused_convolution_leaves_room_for_four_blocks(arch: str) -> None:
    kernels = cuda_resources(SOLUTIONS / "fused_conv_prefill" / "kernel.cu", arch)
    show(f"cuda sm_{arch}", kernels)
    assert len(kernels) == 18  # three head sizes, three widths, with a bias and without
    for kernel in kernels:
        assert kernel.spill_stores == kernel.spill_loads == 0
        assert kernel.registers <= 128
        assert kernel.shared_bytes <= 16 * 1024


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.thorough
@pytest.mark.parametrize("arch", ["80", "100a"])
@pytest.mark.parametrize(("solution", "count"), [("cuda_decode", 37), ("fused_decode_step", 33)])
def test_the_decode_family_builds_for_other_gpus(arch: str, solution: str, count: int) -> None:
    kernels = cuda_resources(SOLUTIONS / solution / "kernel.cu", arch)
    assert len(kernels) == count
    assert all(kernel.spill_stores == kernel.spill_loads == 0 for kernel in kernels)


def test_an_entry_that_raises_is_reported() -> None:
    arguments = decode_arguments(64) | {"q": meta(64, 16, 1, 8, dtype=torch.bfloat16), "state": None}
    with pytest.raises(RuntimeError, match="AttributeError"):
        triton_resources(SOLUTIONS / "triton_recurrent", [("kernel.py::decode_k_last", arguments)])


def test_spills_are_read() -> None:
    log = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas info    : Function properties for f
    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
"""
    assert parse_ptxas(log) == [KernelResources("f", 255, 12, 20, 1024)]
    slow = "(C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to this in the"
    assert parse_ptxas(f"{slow} function 'f'\n{log}") == [KernelResources("f", 255, 12, 20, 1024, serialised=True)]
    assert parse_ptxas(f"{slow} function 'g'\n{log}") == [KernelResources("f", 255, 12, 20, 1024)]

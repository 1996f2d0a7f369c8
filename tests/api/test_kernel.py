"""gdnspec.kernel: a solution as a function."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gdnspec
import pytest
import torch
from conftest import ROOT
from gdnspec.api import kernel as api_kernel
from gdnspec.api.allocate import outputs_of, with_axes
from gdnspec.api.call_form import bound, defaults, form
from gdnspec.build.machine import Device
from gdnspec.catalog.solutions import solutions
from gdnspec.choice.choose import choose
from gdnspec.choice.sizes import sizes
from gdnspec.model.errors import SpecError
from sampled import one_in

DECODE, POOL, PREFILL = "gdn_decode_k_last", "gdn_decode_pool_k_last", "gdn_prefill_k_last"


def case(name: str = DECODE, workload: str = "batch_8") -> dict[str, Any]:
    return gdnspec.definition(name).workload(workload).inputs()


def first(name: str) -> dict[str, Any]:
    return gdnspec.definition(name).workloads("smoke")[0].inputs()


NAMES = sorted(gdnspec.definitions())
SAMPLED = one_in(3, NAMES)


@pytest.mark.parametrize("name", SAMPLED)
def test_outputs_are_those_of_the_reference(name: str) -> None:
    spec = gdnspec.definition(name)
    inputs = spec.workloads("smoke")[0].inputs()
    wanted = spec.reference(**{key: x.clone() if torch.is_tensor(x) else x for key, x in inputs.items()})
    kernel = gdnspec.kernel(name, like=inputs)
    assert kernel.solution.startswith("torch_")
    found = kernel(*inputs.values())
    assert isinstance(found, torch.Tensor) == (len(spec.outputs) == 1)
    pairs = zip([found] if isinstance(found, torch.Tensor) else found,
                [wanted] if isinstance(wanted, torch.Tensor) else wanted, strict=False)  # fmt: skip
    for one, other in pairs:
        assert (one.shape, one.dtype) == (other.shape, other.dtype) or one.shape == other.shape
        assert torch.allclose(one.double(), other.double(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", [PREFILL, "gdn_prefill_backward_k_last", "kda_prefill_k_last"])
def test_solutions_in_pytorch_take_no_shorter_products_than_the_specification(name: str) -> None:
    """What a process allows its own products, by autocast or by PyTorch's newer setting, is not for a kernel."""
    inputs = first(name)
    kernel = gdnspec.kernel(name, like=inputs)
    wanted = kernel(*inputs.values())
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        with torch.autocast("cpu", torch.bfloat16):
            found = kernel(*inputs.values())
    finally:
        matmul.fp32_precision = before
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_kernel_passes_the_judge() -> None:
    kernel = gdnspec.kernel(DECODE)

    def judged(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm):
        return kernel(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm=use_qk_l2norm)

    gdnspec.check(judged, DECODE, seed=1).raise_for_status()


def test_inputs_go_by_position_and_by_name() -> None:
    inputs = case()
    kernel = gdnspec.kernel(DECODE, like=(inputs["q"], inputs["k"]))
    by_position = kernel(*inputs.values())
    given = {name: value for name, value in inputs.items() if value is not None}
    for again in (kernel(**given), kernel(inputs["q"], inputs["k"], **{n: given[n] for n in list(given)[2:]})):
        assert all(map(torch.equal, by_position, again))
    assert all(map(torch.equal, by_position, kernel.bind(*inputs.values())(*inputs.values())))
    assert all(map(torch.equal, by_position, kernel.bind(*list(inputs.values())[:8])(*inputs.values())))


def test_outputs_are_allocated_by_sizes_that_the_caller_names() -> None:
    """Without them, the last of the starts says how many checkpoints there are, which waits for a GPU."""
    definition = gdnspec.definition("gdn_prefill_checkpoints")
    given = definition.workload("two_chunks").inputs()
    looks = form(definition.found, given)
    nobody_reads = [None] * len(given)
    named = with_axes(definition.contract, looks.scope, {"num_checkpoints": 5})
    *_, kept = outputs_of(definition.contract, replace(looks, scope=named))(nobody_reads)
    assert kept.shape[0] == 5
    *_, counted = outputs_of(definition.contract, looks)(list(given.values()))
    assert counted.shape[0] == int(given["checkpoint_cu_starts"][-1])
    kernel = gdnspec.kernel("gdn_prefill_checkpoints", like=given)  # whose solution returns its outputs
    kernel(**given)
    wrong: list[tuple[Any, str]] = [
        ({"checkpoints": 5}, r"has no axis 'checkpoints' \(did you mean 'num_checkpoints'"),
        ({"num_seqs": 9}, "axes say num_seqs = 9, and the inputs"),
        ({"num_checkpoints": "5"}, "axes: num_checkpoints='5': it is a whole number from 0"),
        ({"num_checkpoints": -1}, "axes: num_checkpoints=-1: it is a whole number from 0"),
        ({"num_checkpoints": [5]}, r"axes: num_checkpoints=\[5\]: it is a whole number from 0"),
        (["num_checkpoints"], "axes is of type list instead of a dict"),
    ]
    for axes, said in wrong:
        with pytest.raises(SpecError, match=said):
            kernel.bind(*given.values(), axes=axes)


def test_it_says_what_it_is() -> None:
    kernel = gdnspec.kernel(DECODE, device="cpu", solution="torch_recurrent")
    assert repr(kernel) == "<gdnspec.Kernel gdn_decode_k_last: torch_recurrent on cpu, named by the argument solution>"
    assert (kernel.definition, kernel.solution, kernel.reason) == (
        DECODE,
        "torch_recurrent",
        "named by the argument solution",
    )


def test_a_pool_is_written_to() -> None:
    inputs = first(POOL)
    before = inputs["pool"].clone()
    output = gdnspec.kernel(POOL, like=inputs)(**inputs)
    assert isinstance(output, torch.Tensor)
    assert not torch.equal(before, inputs["pool"])


def test_the_environment_forces_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDNSPEC_SOLUTION", "torch_chunkwise")
    assert gdnspec.kernel(DECODE).solution == "torch_chunkwise"
    assert gdnspec.kernel(DECODE, solution="torch_recurrent").solution == "torch_recurrent"
    monkeypatch.setenv("GDNSPEC_SOLUTION", "torch_layer, torch_recurrent")
    assert [gdnspec.kernel(name).solution for name in (DECODE, PREFILL)] == ["torch_recurrent"] * 2
    assert gdnspec.kernel("gdn_gated_rms_norm").solution == "torch_layer"
    assert gdnspec.kernel("gdn_chunk_wy").solution == "torch_chunk_stages", "none of the two serves it"
    monkeypatch.setenv("GDNSPEC_SOLUTION", "torch_chunkwis")
    with pytest.raises(gdnspec.SpecError, match=r"^GDNSPEC_SOLUTION: no solution .*did you mean 'torch_chunkwise'"):
        gdnspec.kernel(DECODE)


def test_lengths_are_read_from_the_cpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = gdnspec.definition(PREFILL).workload("ragged").inputs()
    asked: list[Any] = []
    monkeypatch.setattr(api_kernel, "choose", lambda call, refuse: asked.append(call) or choose(call, refuse))
    gdnspec.kernel(PREFILL, like=inputs)
    gdnspec.kernel(PREFILL, like=(inputs["q"],))
    starts = inputs["cu_seqlens"].tolist()
    assert [call.sequence_lengths for call in asked] == [tuple(b - a for a, b in pairwise(starts)), None]
    elsewhere = {**inputs, "cu_seqlens": inputs["cu_seqlens"].to("meta")}  # as on a GPU: a read would raise
    assert api_kernel._lengths(gdnspec.definition(PREFILL).contract, elsewhere) is None


def refused(said: str, name: str = DECODE, like: object = None, **more: Any) -> None:
    with pytest.raises(gdnspec.SpecError, match=said) as error:
        gdnspec.kernel(name, like=like, **more)
    assert "\n" not in str(error.value)


def test_what_makes_no_sense_is_refused_in_one_line() -> None:
    inputs = case()
    refused("no definition 'gdn_decode_klast' .did you mean", name="gdn_decode_klast")
    refused("no solution 'torch_recurent' .did you mean 'torch_recurrent'", solution="torch_recurent")
    refused("torch_layer does not serve .* is served by .*torch_recurrent", solution="torch_layer")
    refused("cuda_decode cannot serve this call: it runs only on cuda", solution="cuda_decode", device="cpu")
    refused("written in Triton", solution="triton_decode", device="cpu")
    refused("not a tensor: like=", like=inputs["q"])
    refused("no input 'queries'", like={"queries": inputs["q"]})
    refused("11 inputs by position", like=(None,) * 11)
    refused("no device 'tpu' here: cpu, or cuda", device="tpu:0")
    refused("scale is of type str", like={"scale": "1"})
    refused("use_qk_l2norm is of type int, but it takes a bool", like={"use_qk_l2norm": 1})
    refused("no definition 'GDN_decode_k_last' .did you mean 'gdn_decode_k_last'", name="GDN_decode_k_last")
    refused("the definition is of type int instead of str", name=5)
    refused("solution is of type list instead of str", solution=["torch_recurrent"])
    refused("like is of type int: give a tuple of inputs, or a dict", like=5)
    refused("like is of type str: give a tuple", like="q")
    refused("the name 1 of an input is of type int instead of str", like={1: inputs["q"]})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.to_sparse(), "a tensor of the layout sparse_coo"),
        (lambda x: torch.nested.nested_tensor([x[0], x[1]]), "a nested tensor"),
        (lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8), "a quantised tensor"),
        (torch._neg_view, "a negative view"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about nested and quantised tensors
def test_a_tensor_that_no_kernel_reads_is_named(change: Callable[[torch.Tensor], Any], said: str) -> None:
    inputs = case()
    kernel = gdnspec.kernel(DECODE, like=inputs)
    with pytest.raises(SpecError, match=f"q is {said}: a dense tensor is served"):
        kernel(**inputs | {"q": change(inputs["q"])})


def test_types_and_sizes_that_nothing_serves_list_what_does() -> None:
    inputs = case()
    q = inputs["q"]
    refused("q is float16 instead of bfloat16: pass q.to.*cuda_decode .*head_size == 64", like=(q.half(),))
    refused(
        "state is bfloat16 .*; gdn_decode_k_last_bf16_state takes these", like={"state": inputs["state"].bfloat16()}
    )
    refused(r"k has shape \[8, 1, .* not head_size as in q \[8", like=(q, inputs["k"][..., :5].contiguous()))
    refused(r"q has shape \[1, .*\] instead of \[batch_size, 1", like=(q[0],))
    refused("same number of heads", like=(q, torch.cat([inputs["k"]] * 2, 2)))
    refused("q is not contiguous beyond its first dimension: pass q.contiguous", like=(q.transpose(2, 3),))
    refused("batch_size is 0, below its minimum 1", like=(q[:0],))


def test_a_head_size_that_nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    only = (solutions()[0]["cuda_decode"],)
    monkeypatch.setattr("gdnspec.choice.candidates.entries", lambda found: only)
    refused(
        "nothing serves this call .*cuda_decode: it runs only on cuda.*is served by cuda_decode", like=(case()["q"],)
    )


def test_tensors_on_two_devices_are_refused() -> None:
    inputs = case()
    kernel = gdnspec.kernel(DECODE, like=inputs)
    inputs["k"] = inputs["k"].to("meta")
    with pytest.raises(
        gdnspec.SpecError, match="takes tensors on one device, but q is on cpu, k is on meta: move them"
    ):
        kernel(**inputs)


def test_a_call_that_does_not_fit_is_refused() -> None:
    inputs = case()
    kernel = gdnspec.kernel(DECODE, like=inputs)
    with pytest.raises(gdnspec.SpecError, match="no value for k, v, state"):
        kernel(inputs["q"])
    with pytest.raises(gdnspec.SpecError, match="'q' is given by position and by name"):
        kernel(inputs["q"], q=inputs["q"])
    with pytest.raises(gdnspec.SpecError, match="v is of type list instead of a tensor"):
        kernel(**{**inputs, "v": [1.0]})


def test_heads_of_a_packed_input_follow_from_its_state() -> None:
    spec = gdnspec.definition("gdn_decode_packed_k_last")
    inputs = spec.workloads("smoke")[0].inputs()
    shapes = {name: tuple(x.shape) for name, x in inputs.items() if torch.is_tensor(x)}
    found = sizes(spec.contract, shapes, {"num_o_heads"})
    assert found["num_o_heads"] == inputs["state"].shape[1]
    assert "num_q_heads" in found


def test_importing_gdnspec_imports_no_torch() -> None:
    code = "import gdnspec, gdnspec.family, sys; print('torch' in sys.modules, 'kernel' in gdnspec.family.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "False True\n", done.stderr


def test_defaults_stand_for_what_is_left_out() -> None:
    contract = gdnspec.definition(DECODE).contract
    inputs = case()
    given = bound(contract, [inputs[name] for name in list(inputs)[:8]], {})
    assert (given["scale"], given["use_qk_l2norm"]) == (None, None)
    assert defaults(contract, given, {}) == [(9, True)]


# --- a GPU with and without a compiler, as far as a CPU can tell -------------------------------------------------


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that seems to have an H200, no compiler and an empty cache."""
    monkeypatch.setattr("gdnspec.build.machine.device", lambda kind: Device("cuda", "NVIDIA H200", (9, 0)))
    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: None)
    monkeypatch.setattr("gdnspec.build.machine.version", lambda package: "99.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setenv("GDNSPEC_CACHE", str(tmp_path))
    monkeypatch.setattr("gdnspec.api.kernel._told", set())


@pytest.mark.usefixtures("hopper")
def test_without_a_compiler_the_next_candidate_serves_and_one_warning_says_so() -> None:
    with pytest.warns(UserWarning, match=r"hopper_prefill, hopper_prefill:strict cannot be used: needs nvcc") as told:
        for name in (PREFILL, PREFILL, "gdn_prefill_k_first"):
            kernel = gdnspec.kernel(name, device="cuda")
            assert kernel.solution.startswith("triton_")
    assert len(told) == 1
    with pytest.raises(
        gdnspec.SpecError, match=r"^the argument solution: hopper_prefill cannot be loaded: .*needs nvcc to build"
    ):
        gdnspec.kernel(PREFILL, device="cuda", solution="hopper_prefill")


@pytest.mark.usefixtures("hopper")
def test_a_build_that_fails_is_told_and_the_next_candidate_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm_ffi.cpp

    def fails(**asked: Any) -> str:
        raise RuntimeError("ninja exited with status 1\nmore lines")

    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: "nvcc")
    monkeypatch.setattr("gdnspec.build.loader._cudart_folders", list)
    monkeypatch.setattr(tvm_ffi.cpp, "build", fails)
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "")
    with pytest.warns(UserWarning, match="RuntimeError: ninja exited with status 1; gdnspec.kernel takes triton_"):
        assert gdnspec.kernel(PREFILL, device="cuda").solution == "triton_chunkwise"


@pytest.mark.usefixtures("hopper")
def test_what_is_chosen_serves_heads_that_only_a_number_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """fused_conv_prefill has heads of 64, 128 and 256."""
    monkeypatch.setattr("gdnspec.build.machine.nvcc", lambda: "nvcc")
    monkeypatch.setattr("gdnspec.api.kernel.load_function", lambda *_, **settings: lambda *values: None)
    spec = gdnspec.definition("gdn_conv_gates_prefill")
    for workload, head_dim, wanted in (("width_2", 120, "triton_layer"), ("width_3", 128, "fused_conv_prefill")):
        inputs = spec.workload(workload).inputs()
        assert inputs["head_dim"] == head_dim
        assert gdnspec.kernel(spec, like=inputs).solution == wanted


@pytest.mark.usefixtures("hopper")
def test_an_entry_that_writes_its_outputs_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call of a CUDA kernel: inputs and allocated outputs by position, defaults for what is left out."""
    got: list[Any] = []
    monkeypatch.setattr("gdnspec.api.kernel.load_function", lambda *_, **settings: lambda *values: got.extend(values))
    spec = gdnspec.definition("gdn_prefill_checkpoints")
    inputs = spec.workloads("smoke")[0].inputs()
    kernel = gdnspec.kernel(spec, device="cuda", solution="hopper_prefill")
    kernel.device = "cpu"  # where its inputs are
    monkeypatch.setattr("gdnspec.api.kernel.refusal", lambda asked, solution: None)
    outputs = kernel(**{name: x for name, x in inputs.items() if x is not None})
    assert len(got) == len(spec.inputs) + len(spec.outputs)
    expected = spec.reference(**inputs)
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in expected]
    assert all(one is other for one, other in zip(outputs, got[-3:], strict=True))

"""The kernel files that `gdnspec new` writes. Only the kernel itself is missing in them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdnspec.model import roles
from gdnspec.model.definition import Definition
from gdnspec.model.dtypes import INTEGERS
from gdnspec.model.elements import Tensor


@dataclass(frozen=True)
class Scaffold:
    """What differs between languages."""

    file: str
    call: str
    requires: dict[str, Any]
    text: Callable[[str, list[Definition]], str]


def _shape(tensor: Tensor) -> str:
    return "scalar" if tensor.shape is None else "[" + ", ".join(map(str, tensor.shape)) + "]"


def _arguments(definition: Definition, indent: str) -> str:
    rows = []
    for tensor in (*definition.inputs, *definition.outputs):
        word = "default" if tensor.is_switch else "None"  # a switch always arrives
        absent = f"; {word}: {tensor.default}" if tensor.optional else ""
        apart = f"; {tensor.strides} may stand apart, so go by strides" if tensor.strides is not None else ""
        rows.append(f"{indent}{tensor.name} {_shape(tensor)} {tensor.dtype}{absent}{apart}. {tensor.description}")
    return "\n".join(rows)


def _names(tensors: list[Tensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors)


def _states(definition: Definition) -> Tensor | None:
    """The output or pool that gets the new states, one matrix per head; None if the operator has no states."""
    return next((tensor for tensor in definition.judged if roles.is_state(definition, tensor)), None)


def _sequences(definition: Definition) -> str:
    """The number of rows or sequences of a call. States do not give it: a pool has more slots, and chunks have more
    states, than sequences."""
    starts, rows = roles.bounds(definition), roles.axis(definition, "rows")
    if starts:
        return f"{starts}.shape[0] - 1"
    along = (t.name for t in (*definition.outputs, *definition.inputs) if (t.shape or [""])[0] == rows)
    return f"{next(along, definition.judged[0].name)}.shape[0]"


def _launch(definition: Definition) -> tuple[str, str, str, str]:
    """For Triton: what one program computes, its parameters, how it finds its place, and the lines that launch it. All
    names come from the definition, so that the scaffold of any operator runs."""
    states, tensors = _states(definition), _names([*definition.inputs, *definition.outputs])
    first = definition.judged[0].name
    if states is None:
        launch = f"{definition.name}_kernel[({first}.shape[0],)](\n        {tensors}\n    )"
        return f"row of {first}", "", "row = tl.program_id(0)", launch
    sequences = _sequences(definition)
    rows, columns = (states.shape or [])[-2:]
    sizes = list(dict.fromkeys((str(rows), str(columns))))
    unpacked = [*sizes, "_"] if rows == columns else sizes
    constants = "".join(f"\n    {size.upper()}: tl.constexpr," for size in sizes)
    given = ", ".join(f"{size.upper()}={size}" for size in sizes)
    before = "*_" if len(states.shape or []) > 4 else "_"  # slots, and perhaps tokens
    launch = f"""sequences = {sequences}
    {before}, heads, {", ".join(unpacked)} = {states.name}.shape
    {definition.name}_kernel[(sequences * heads,)](
        {tensors},
        heads, {given},
    )"""
    place = "pid = tl.program_id(0)\n    sequence, head = pid // num_heads, pid % num_heads"
    return "(sequence, head)", f"\n    num_heads,{constants}", place, launch


def _python(name: str, definitions: list[Definition]) -> str:
    functions = [
        f'''def {d.name}({_names(d.inputs)}):
    """{_does(d, f"Returns ({_names(d.outputs)})")}

{_arguments(d, "    ")}
    """
    raise NotImplementedError("{d.name} is not written yet")
'''
        for d in definitions
    ]
    return f'"""{name}: say here how it works."""\n\nimport torch  # noqa: F401\n\n\n' + "\n\n".join(functions)


def _kernel_parameters(definition: Definition) -> str:
    # A Python bool must be a constexpr: it selects code, and Triton's interpreter accepts it only so.
    return ",\n    ".join(
        f"{tensor.name}: tl.constexpr" if tensor.is_switch else tensor.name
        for tensor in (*definition.inputs, *definition.outputs)
    )


def _triton(name: str, definitions: list[Definition]) -> str:
    functions = []
    for d in definitions:
        program, parameters, place, launch = _launch(d)
        functions.append(
            f'''@triton.jit
def {d.name}_kernel(
    {_kernel_parameters(d)},{parameters}
):
    """One program per {program}. Absent inputs are None: test them with `if x is not None`."""
    {place}
    # Load, compute in float32, store to {_names(d.judged)}.


def {d.name}({_names([*d.inputs, *d.outputs])}):
    """{_does(d, f"Writes {_names(d.outputs)}, which arrive filled with NaN")}

{_arguments(d, "    ")}
    """
    {launch}
'''
        )
    head = f'"""{name}: say here how it works."""\n\nimport triton\nimport triton.language as tl\n\n\n'
    return head + "\n\n".join(functions)


def _does(definition: Definition, with_outputs: str) -> str:
    """A sentence on what a call leaves. An operator may have no outputs and only update inputs."""
    mutated = _names([tensor for tensor in definition.inputs if tensor.mutates])
    updates = f"updates {mutated} in place" if mutated else ""
    if not definition.outputs:
        return f"U{updates[1:]}."
    return f"{with_outputs}, and {updates}." if updates else f"{with_outputs}."


def _cuda_type(tensor: Tensor) -> str:
    if tensor.is_scalar:
        kind = "bool" if tensor.dtype == "bool" else "int64_t" if tensor.dtype in INTEGERS else "double"
        return f"tvm::ffi::Optional<{kind}>" if tensor.optional and kind != "bool" else kind
    return "tvm::ffi::Optional<tvm::ffi::TensorView>" if tensor.optional else "tvm::ffi::TensorView"


def _cuda_name(tensor: Tensor) -> str:
    """The name of a parameter. Arguments go by position, so one that is a word of C++ may have another name."""
    return f"{tensor.name}_" if tensor.name in CPP_WORDS.split() else tensor.name


def _cuda(name: str, definitions: list[Definition]) -> str:
    functions, kernels = [], []
    for d in definitions:
        parameters = ",\n    ".join(f"{_cuda_type(t)} {_cuda_name(t)}" for t in (*d.inputs, *d.outputs))
        comments = "\n".join(f"// {line}" for line in _arguments(d, "").split("\n"))
        shown, device = _states(d) or d.judged[0], _cuda_name(d.judged[0])
        pointer = f"{CUDA_ELEMENTS.get(shown.dtype, shown.dtype)}*"
        kernels.append(
            f"__global__ void {d.name}_kernel({pointer} {_cuda_name(shown)}) {{\n  // Write the kernel here.\n}}\n"
        )
        functions.append(
            f"""{comments}
// {_does(d, "Writes the outputs, which arrive filled with NaN")}
void {d.name}(
    {parameters}) {{
  cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, {device}.device().device_id));
  {d.name}_kernel<<<1, 32, 0, stream>>>(static_cast<{pointer}>({_cuda_name(shown)}.data_ptr()));
  TVM_FFI_CHECK(cudaGetLastError() == cudaSuccess, RuntimeError) << "{d.name}: launch failed";
}}

TVM_FFI_DLL_EXPORT_TYPED_FUNC({d.name}, {d.name});
"""
        )
    head = f"// {name}: say here how it works.\n// An entry takes the definition's inputs, then outputs, by position.\n"
    includes = "".join(f"#include <{header}>\n" for header in CUDA_HEADERS)
    return "\n".join([head, includes, *kernels, *functions])


CPP_WORDS = (
    "alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr continue "
    "decltype default delete do double else enum explicit export extern false float for friend goto if inline int "
    "long mutable namespace new noexcept not nullptr operator or private protected public register return short "
    "signed sizeof static struct switch template this throw true try typedef typeid typename union unsigned using "
    "virtual void volatile while xor"
)
CUDA_ELEMENTS = {
    "float32": "float", "float64": "double", "float16": "__half", "bfloat16": "__nv_bfloat16",
    "float8_e4m3fn": "__nv_fp8_e4m3", "int8": "int8_t",
}  # fmt: skip
CUDA_HEADERS = (
    "cuda_bf16.h",
    "cuda_fp16.h",
    "cuda_fp8.h",
    "cuda_runtime.h",
    "tvm/ffi/container/tensor.h",
    "tvm/ffi/extra/c_env_api.h",
    "tvm/ffi/function.h",
    "tvm/ffi/optional.h",
)
TORCH, TRITON = "torch>=2.11", "triton>=3.6"
CUDA = {"device": "cuda", "compute_capability": "8.0", "packages": ["apache-tvm-ffi>=0.1.12", "ninja"]}

SCAFFOLDS = {
    "python": Scaffold("kernel.py", "return", {"device": "any", "packages": [TORCH]}, _python),
    "triton": Scaffold("kernel.py", "out", {"device": "any", "packages": [TORCH, TRITON]}, _triton),
    "cuda": Scaffold("kernel.cu", "out", CUDA, _cuda),
}

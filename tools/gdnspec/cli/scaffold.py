"""The kernel files that `gdnspec new` writes: complete but for the kernel itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gdnspec.model.definition import Definition, Tensor
from gdnspec.model.dtypes import INTEGERS


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
        word = "default" if tensor.dtype == "bool" else "None"  # a bool always arrives
        absent = f"; {word}: {tensor.default}" if tensor.optional else ""
        rows.append(f"{indent}{tensor.name} {_shape(tensor)} {tensor.dtype}{absent}. {tensor.description}")
    return "\n".join(rows)


def _names(tensors: list[Tensor]) -> str:
    return ", ".join(tensor.name for tensor in tensors)


def _states(definition: Definition) -> Tensor:
    """The output that has a state of each sequence, where there is one."""
    return next((tensor for tensor in definition.outputs if tensor.is_state), definition.outputs[-1])


def _python(name: str, definitions: list[Definition]) -> str:
    functions = [
        f'''def {d.name}({_names(d.inputs)}):
    """Returns ({_names(d.outputs)}).

{_arguments(d, "    ")}
    """
    raise NotImplementedError("{d.name} is still to be written")
'''
        for d in definitions
    ]
    return f'"""{name}: say here how it works."""\n\nimport torch  # noqa: F401\n\n\n' + "\n\n".join(functions)


def _kernel_parameters(definition: Definition) -> str:
    # A Python bool is a constexpr: it selects code, and the interpreter takes it no other way.
    return ",\n    ".join(
        f"{tensor.name}: tl.constexpr" if tensor.dtype == "bool" else tensor.name
        for tensor in (*definition.inputs, *definition.outputs)
    )


def _triton(name: str, definitions: list[Definition]) -> str:
    functions = [
        f'''@triton.jit
def {d.name}_kernel(
    {_kernel_parameters(d)},
    num_heads,
    HEAD_SIZE: tl.constexpr,
):
    """One program a (sequence, head). Absent inputs are None, which a constexpr `if` can ask for."""
    pid = tl.program_id(0)
    sequence, head = pid // num_heads, pid % num_heads
    # Load, compute in float32, store to {_names(d.outputs)}.


def {d.name}({_names(d.inputs)}, {_names(d.outputs)}):
    """Writes {_names(d.outputs)}, which arrive filled with NaN.

{_arguments(d, "    ")}
    """
    sequences, heads, head_size, _ = {_states(d).name}.shape
    {d.name}_kernel[(sequences * heads,)](
        {_names(d.inputs)}, {_names(d.outputs)}, heads, HEAD_SIZE=head_size
    )
'''
        for d in definitions
    ]
    return f'"""{name}: say here how it works."""\n\nimport triton\nimport triton.language as tl\n\n\n' + "\n\n".join(
        functions
    )


def _cuda_type(tensor: Tensor) -> str:
    if tensor.is_scalar:
        kind = "bool" if tensor.dtype == "bool" else "int64_t" if tensor.dtype in INTEGERS else "double"
        return f"tvm::ffi::Optional<{kind}>" if tensor.optional and kind != "bool" else kind
    return "tvm::ffi::Optional<tvm::ffi::TensorView>" if tensor.optional else "tvm::ffi::TensorView"


def _cuda(name: str, definitions: list[Definition]) -> str:
    functions = []
    for d in definitions:
        parameters = ",\n    ".join(f"{_cuda_type(t)} {t.name}" for t in (*d.inputs, *d.outputs))
        comments = "\n".join(f"// {line}" for line in _arguments(d, "").split("\n"))
        functions.append(
            f"""{comments}
// The outputs arrive filled with NaN.
void {d.name}(
    {parameters}) {{
  cudaStream_t stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(kDLCUDA, {d.outputs[0].name}.device().device_id));
  {d.name}_kernel<<<1, 32, 0, stream>>>(static_cast<float*>({_states(d).name}.data_ptr()));
  TVM_FFI_CHECK(cudaGetLastError() == cudaSuccess, RuntimeError) << "{d.name}: launch failed";
}}

TVM_FFI_DLL_EXPORT_TYPED_FUNC({d.name}, {d.name});
"""
        )
    kernels = "\n".join(
        f"__global__ void {d.name}_kernel(float* {_states(d).name}) {{\n  // Write the kernel here.\n}}\n"
        for d in definitions
    )
    head = f"// {name}: say here how it works.\n// An entry takes the definition's inputs, then outputs, by position.\n"
    includes = "".join(f"#include <{header}>\n" for header in CUDA_HEADERS)
    return "\n".join([head, includes, kernels, *functions])


CUDA_HEADERS = (
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

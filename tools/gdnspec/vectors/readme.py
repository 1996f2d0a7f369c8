"""The README.md in a folder of test vectors, for readers who have neither gdnspec nor Python."""

from gdnspec.model.elements import Tensor
from gdnspec.model.vectors import VectorsManifest

PAGE = """\
# Test vectors of {name}

{description}

{count}, one call each. The folder contains no expected values. Run your implementation, in any language, on the
inputs. Write its outputs to files, and have them judged:

    gdnspec vectors judge THIS_FOLDER OUTPUTS

The judge draws the inputs again, computes the expected values in float64 and applies the rules of `gdnspec check`.

| file | what it holds |
|---|---|
| `manifest.json` | everything about the calls, below |
| `inputs/<workload>.safetensors` | the input tensors of one call |
| `CONVENTIONS.md`, and those that it names | what the operator means: equations, layouts, gates, heads, types, edges |

## manifest.json

The manifest is JSON. `definition` is the complete contract: every tensor with its meaning, and every convention.
`workloads` is a list. Each entry has:

| key | meaning |
|---|---|
| `workload` | its line, complete; `workload.name` is its name |
| `axes` | every axis of the definition as a number |
| `file`, `sha256` | the file of inputs, and its sha256 |
| `inputs` | the tensors in that file: name, type, shape, in the order of the definition |
| `omitted` | input tensors that are left out, and the value that all of their elements have instead |
| `scalars` | scalar inputs, with their type; if one is left out, `given` is false and `value` is its default |
| `outputs` | what to write, including inputs that are updated: name, type, shape, and the largest errors that pass |

## Inputs and outputs

| input | type | shape | meaning |
|---|---|---|---|
{inputs}

| output | type | shape | meaning |
|---|---|---|---|
{outputs}

## Reading a safetensors file

    8 bytes      n, the length of the header, unsigned, little-endian
    n bytes      the header: JSON, padded with spaces
    the rest     the data

The header maps a tensor's name to `dtype`, `shape` and `data_offsets` `[begin, end]`, in bytes from the start of the
data. Tensors are in C order (last dimension contiguous), little-endian, and may have no elements. Types are `BF16`,
`F16`, `F32`, `F64`, `F8_E4M3`, `I8`, `I32`, `I64` and `BOOL`. A bfloat16 is the upper half of a float32: to widen it,
append 16 zero bits; to narrow a float32, round to nearest, ties to even. Values may be infinite if the definition's
`domain` says so. An F8_E4M3 has a sign, four bits of exponent (bias 7) and three of mantissa, and ends at 448.

## Writing the outputs

Make a folder `OUTPUTS` with one file per workload and nothing else. `OUTPUTS/<workload>.safetensors` has exactly the
tensors that `outputs` names, in those types and shapes, without gaps between them. Tensors may be in any order. A
`__metadata__` entry in the header is ignored.

A workload fails if a shape or type is wrong (INCORRECT_SHAPE, INCORRECT_DTYPE), if numbers are wrong
(INCORRECT_NUMERICAL), or if values are not finite (NON_FINITE). If a file or tensor is missing or unexpected, or if the
manifest or an input was edited, nothing is judged. Exit codes: 0 all passed, 1 something failed, 2 the request or a
file is invalid.
"""


def readme(manifest: VectorsManifest) -> str:
    """Markdown."""
    definition = manifest.definition
    count = len(manifest.workloads)
    return PAGE.format(
        name=definition.name,
        description=definition.description,
        count="One workload" if count == 1 else f"{count} workloads",
        inputs="\n".join(map(_row, definition.inputs)),
        outputs="\n".join(map(_row, definition.judged)),
    )


def _row(tensor: Tensor) -> str:
    shape = "scalar" if tensor.shape is None else f"[{', '.join(map(str, tensor.shape))}]"
    meaning = tensor.description.replace("|", "\\|")
    return f"| `{tensor.name}`{' (optional)' if tensor.optional else ''} | {tensor.dtype} | {shape} | {meaning} |"

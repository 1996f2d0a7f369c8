"""The page that goes with a folder of test vectors, for somebody who has neither gdnspec nor Python."""

from gdnspec.model.elements import Tensor
from gdnspec.model.vectors import VectorsManifest

PAGE = """\
# Test vectors of {name}

{description}

{count}, one call each. There are no expected values here. Run your implementation on the inputs, in any
language, write what it returns, and have it judged:

    gdnspec vectors judge THIS_FOLDER OUTPUTS

The judge draws the inputs again, computes the expected values in float64 and applies the rules of `gdnspec check`.

| file | what it holds |
|---|---|
| `manifest.json` | everything about the calls, below |
| `inputs/<workload>.safetensors` | the input tensors of one call |
| `CONVENTIONS.md` | what the operator means: equations, layouts, gates, heads, types, edges, metrics |

## manifest.json

Plain JSON. `definition` is the contract in full: every tensor with its meaning, every convention. `workloads` is a
list, and of each workload says:

| key | meaning |
|---|---|
| `workload` | its line, complete; `workload.name` is its name |
| `axes` | every axis of the definition as a number |
| `file`, `sha256` | the file of inputs, and its sha256 |
| `inputs` | the tensors in that file: name, type, shape, in the order of the definition |
| `omitted` | input tensors that are left out, and the value that each of their elements then has |
| `scalars` | scalar inputs, with their type; `given` is false where one is left out, and `value` then its default |
| `outputs` | what to write back, updated inputs among it: name, type, shape, and the largest errors that pass |

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

The header maps a tensor's name to `dtype`, `shape` and `data_offsets` `[begin, end]`, counted in bytes from where the
data begins. Tensors are in C order (last dimension contiguous), little-endian, and may have no elements. Types are
`BF16`, `F16`, `F32`, `F64`, `I32`, `I64` and `BOOL`. A bfloat16 is the upper half of a float32: widen it by 16 bits of
zero; narrow it to nearest, ties to even. Values may be infinite where the definition's `domain` says so.

## Writing back

A folder `OUTPUTS` with one file for each workload and nothing else: `OUTPUTS/<workload>.safetensors`, with exactly the
tensors that `outputs` names, in those types and shapes, without gaps between them. Tensors may stand in any order, and
a `__metadata__` entry in the header is passed over.

Another shape or type is a failed workload (INCORRECT_SHAPE, INCORRECT_DTYPE), as are wrong numbers
(INCORRECT_NUMERICAL) and values that are not finite (NON_FINITE). A missing or surplus file or tensor, or an edited
manifest or input, is refused, and then nothing is judged. Exit codes: 0 all passed, 1 something failed, 2 the request
or a file is invalid.
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

"""Write definitions and solutions of gdnspec as JSON for the loader of FlashInfer-Bench."""

import ast
from typing import Any

from gdnspec.build.reference import foreign
from gdnspec.catalog.definitions import Found
from gdnspec.catalog.solutions import Solution
from gdnspec.interop.axes import axes_of
from gdnspec.interop.calling import module
from gdnspec.interop.dataset_paths import MARK
from gdnspec.interop.shim import SHIM, shim
from gdnspec.model.errors import SpecError
from gdnspec.model.preset import Preset

Json = dict[str, Any]


def hold(found: Found) -> None:
    """Raises `SpecError` if the format cannot express a definition."""
    definition = found.definition
    mutated = [tensor.name for tensor in definition.inputs if tensor.mutates]
    if mutated:
        raise SpecError(
            f"{definition.name} updates {', '.join(mutated)} in place, which FlashInfer-Bench cannot express"
        )
    if (why := foreign(found.family).unsaid(definition)) is not None:
        raise SpecError(f"{definition.name} {why}")
    seen = {str(size) for tensor in definition.inputs for size in tensor.shape or ()}
    hidden = [axis.name for axis in definition.var_axes() if axis.name not in seen]
    if hidden:
        raise SpecError(
            f"{definition.name}: FlashInfer-Bench reads axes from shapes of inputs, and none has {', '.join(hidden)}"
        )


def definition_json(found: Found, preset: Preset) -> Json:
    """A definition with one preset. The format has no optional inputs, so a workload gives their defaults."""
    hold(found)
    definition, axes = found.definition, axes_of(found, preset)
    specs = {
        tensor.name: {"shape": axes.shapes[tensor.name], "dtype": tensor.dtype, "description": tensor.description}
        for tensor in (*definition.inputs, *definition.outputs)
    }
    conventions = definition.conventions
    return {
        "name": foreign(found.family).name(definition.name, preset.axes),
        "op_type": found.family.name,
        "tags": [f"{MARK}:{definition.name}", f"stage:{definition.stage}",
                 *(f"{key}:{value}" for key, value in conventions.model_dump().items())],
        "description": definition.description,
        "axes": axes.known,
        "inputs": {tensor.name: specs[tensor.name] for tensor in definition.inputs},
        "outputs": {tensor.name: specs[tensor.name] for tensor in definition.outputs},
        "constraints": [constraint.expression for constraint in definition.constraints]
        + [f"{name} == {text}" for name, text in axes.computed.items()],
        "reference": reference(found),
    }  # fmt: skip


def reference(found: Found) -> str:
    """The whole file of the reference, and a function `run` that takes the inputs in order."""
    file, function = found.definition.reference.split("::")
    source = (found.family.reference / file).read_text(encoding="utf-8")
    names = ", ".join(tensor.name for tensor in found.definition.inputs)
    defined = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert "run" not in defined
    return f"{source}\n\n@torch.no_grad()\ndef run({names}):\n    return {function}({names})\n"


def solution_json(solution: Solution, found: Found, preset: Preset) -> Json:
    """A solution for one definition. A Python entry gets a `run` in between, which takes the inputs by position and
    returns the outputs. CUDA entries take their arguments in the definition's order in both."""
    hold(found)
    manifest = solution.manifest
    if solution.variant is not None:
        raise SpecError(f"{solution.name}: FlashInfer-Bench has no variants; export {manifest.name}")
    entry = manifest.entries.get(found.definition.name)
    if entry is None:
        served = ", ".join(manifest.entries)
        raise SpecError(f"{manifest.name} does not serve {found.definition.name}: it serves {served}")
    own = _sources(solution)
    point, python = entry.entry, entry.file.endswith(".py")
    if python:
        own.append({"path": SHIM, "content": shim(solution, found.definition, preset.axes)})
        point = f"{SHIM}::run"
    definition = foreign(found.family).name(found.definition.name, preset.axes)
    return {
        "name": f"{MARK}_{manifest.name}_{definition}",
        "definition": definition,
        "author": ", ".join(manifest.authors),
        "description": f"{manifest.description} (licence: {manifest.license})",
        "spec": {
            "language": manifest.language,
            "target_hardware": ["cpu", "cuda"] if manifest.requires.device == "any" else [manifest.requires.device],
            "entry_point": point,
            "dependencies": manifest.requires.packages,
            "destination_passing_style": not python,
            **({} if python else {"binding": "tvm-ffi"}),
        },
        "sources": own,
    }


def applied_json(solution: Solution, found: list[Found], preset: Preset) -> list[Json]:
    """The solution once more, for the calls of FlashInfer's own functions that it can serve: its trace_apply names a
    definition by the heads of a call, calls Python by keyword, and allocates no outputs."""
    served = [item.definition for item in found if item.definition.name in solution.manifest.entries]
    if not served:
        return []
    text, manifest, written = module(solution, served, preset.axes), solution.manifest, []
    for name, run in foreign(found[0].family).applied([item.name for item in served], preset.axes).items():
        written.append({
            "name": f"{MARK}_{manifest.name}_{name}",
            "definition": name,
            "author": ", ".join(manifest.authors),
            "description": f"{manifest.description} (licence: {manifest.license})",
            "spec": {
                "language": "python" if manifest.language == "cuda" else manifest.language,
                "target_hardware": ["cuda"],
                "entry_point": f"{SHIM}::run",
                "dependencies": manifest.requires.packages,
                "destination_passing_style": False,
            },
            "sources": [*_sources(solution), {"path": SHIM, "content": f"{text}\n\n{run}"}],
        })  # fmt: skip
    return written


def _sources(solution: Solution) -> list[Json]:
    return [
        {"path": name, "content": (solution.folder / name).read_text(encoding="utf-8")}
        for name in solution.manifest.sources
    ]

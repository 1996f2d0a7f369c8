"""The text of a Python module that has a solution's entries as plain functions, for programs without gdnspec.

A function takes the inputs of its definition in their order, allocates the outputs that the entry fills, and returns
them. It loads the sources on its first call: a CUDA file is built then.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from gdnspec.build.loader import CUDA_FLAGS, define_flags
from gdnspec.catalog.solutions import Solution
from gdnspec.model.definition import Definition
from gdnspec.model.elements import Tensor
from gdnspec.model.errors import SpecError
from gdnspec.model.expression import parse

HEAD = '''\
"""{about}"""

import importlib.util
import os
import sys
import threading
from functools import cache
from pathlib import Path

import torch

_HERE = Path(__file__).resolve().parent{folder}
_LOCK = threading.RLock()


@cache
def _python(file):
    """A source. It imports the files beside it by bare names, which other solutions use too: so these are forgotten."""
    own = {stems}
    with _LOCK:
        others = {{name: sys.modules.pop(name) for name in own if name in sys.modules}}
        sys.path.insert(0, str(_HERE))
        try:
            name = f"{unique}_{{Path(file).stem}}"
            spec = importlib.util.spec_from_file_location(name, _HERE / file)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
        finally:
            sys.path.remove(str(_HERE))
            for name in own:
                sys.modules.pop(name, None)
            sys.modules.update(others)


@cache
def _cuda(file):
    """A CUDA source, built with nvcc for the current GPU. apache-tvm-ffi keeps what it built."""
    import tvm_ffi.cpp

    with _LOCK:
        major, minor = torch.cuda.get_device_capability()
        os.environ["TVM_FFI_CUDA_ARCH_LIST"] = f"{{major}}.{{minor}}{{'a' if major >= 9 else ''}}"
        return tvm_ffi.cpp.load(
            name=f"{unique}_{{Path(file).stem}}", cuda_files=[str(_HERE / file)],
            extra_cuda_cflags={flags}, extra_include_paths=[str(_HERE)],
        )
'''
PLUS = re.compile(r"(\w+) \+ (\d+)")


def module(
    solution: Solution, served: Iterable[Definition], axes: Mapping[str, int] | None = None, folder: str = ""
) -> str:
    """The module's text, with a function for each definition, named like it. `axes`: those of the heads that it is for;
    without them, any heads. `folder`: where the sources are, beside the module. Raises `SpecError` for a definition
    whose outputs cannot be allocated."""
    manifest = solution.manifest
    digest = hashlib.sha256()
    for source in manifest.sources:
        digest.update(source.encode() + b"\0" + (solution.folder / source).read_bytes())
    variant = manifest.variants[solution.variant] if solution.variant is not None else None
    defines = dict(variant.defines) if variant is not None else {}
    digest.update(json.dumps(defines, sort_keys=True).encode())
    head = HEAD.format(
        about=f"{solution.name}: {manifest.description}".replace("\\", "\\\\").replace('"""', "'''"),
        folder=f' / "{folder}"' if folder else "",
        stems=tuple(source.removesuffix(".py") for source in manifest.sources if source.endswith(".py")),
        unique=f"gdnspec_{manifest.name}_{digest.hexdigest()[:12]}",
        flags=[*CUDA_FLAGS, *define_flags(defines)],
    )
    arguments = dict(variant.arguments) if variant is not None else {}
    return (
        "\n\n".join([head.rstrip("\n"), *(_function(solution, item, axes or {}, arguments) for item in served)]) + "\n"
    )


def _function(
    solution: Solution, definition: Definition, axes: Mapping[str, int], further: Mapping[str, object]
) -> str:
    entry = solution.manifest.entries[definition.name]
    names = [tensor.name for tensor in definition.inputs]
    needed = [tensor.name for tensor in definition.inputs if not tensor.optional]
    first = next((place for place, tensor in enumerate(definition.inputs) if tensor.optional), len(names))
    parameters = [*names[:first], *(f"{name}=None" for name in names[first:])]
    lines = [f"def {definition.name}({', '.join(parameters)}):", f"    {_about(definition)}"]
    for name in names[first:]:
        if name in needed:
            lines += [f"    if {name} is None:", f'        raise TypeError("{definition.name} needs {name}")']
    outputs = [tensor.name for tensor in definition.outputs]
    call = [f"{name}={name}" for name in names]
    if entry.call == "out":
        lines += _allocated(definition, axes)
        call += [f"{name}={name}" for name in outputs]
    if entry.prepare is not None:
        lines.append(f"    prepared = {_loaded(entry.prepare)}({', '.join(f'{name}={name}' for name in names)})")
        call.append("prepared=prepared")
    call += [f"{name}={value!r}" for name, value in further.items()]
    if entry.file.endswith(".cu"):
        call = [*names, *outputs]  # a CUDA entry takes them by position
    called = f"{_loaded(entry.entry)}({', '.join(call)})"
    if entry.call == "out":
        lines += [f"    {called}", f"    return {', '.join(outputs)}"]
    else:
        lines.append(f"    return {called}")
    return "\n".join(lines)


def _about(definition: Definition) -> str:
    text = " ".join(definition.description.split())
    return f'"""{text}"""'.replace("\\", "\\\\")


def _loaded(spec: str) -> str:
    file, function = spec.split("::")
    return f'{"_cuda" if file.endswith(".cu") else "_python"}("{file}").{function}'


def _allocated(definition: Definition, axes: Mapping[str, int]) -> list[str]:
    """Statements that allocate the outputs, from the shapes of the inputs that are always there, and from `axes`."""
    known: dict[str, str] = {}
    given = [tensor for tensor in definition.inputs if tensor.shape is not None and not tensor.optional]
    for tensor in given:
        for place, size in enumerate(tensor.shape or ()):
            more = PLUS.fullmatch(str(size))
            if isinstance(size, str) and size.isidentifier():
                known.setdefault(size, f"{tensor.name}.shape[{place}]")
            elif more is not None:
                known.setdefault(more[1], f"{tensor.name}.shape[{place}] - {more[2]}")
    lines, wanted = [], _wanted(definition)
    for axis in definition.axes:
        if axis.name in wanted and axis.name in known:
            lines.append(f"    {axis.name} = {known[axis.name]}")
        elif axis.name in wanted and axis.kind == "derived":
            lines.append(f"    {axis.name} = {axis.expression}")
        elif axis.name in wanted and axis.name in axes:
            lines.append(f"    {axis.name} = {axes[axis.name]}")
        elif axis.name in wanted:
            raise SpecError(
                f"{definition.name}: its outputs cannot be allocated: no required input has the axis {axis.name}"
            )
    device = given[0].name
    return lines + [
        f"    {tensor.name} = torch.empty(({_shape(tensor)}), dtype=torch.{tensor.dtype}, device={device}.device)"
        for tensor in definition.outputs
    ]


def _shape(tensor: Tensor) -> str:
    return "".join(f"{size}, " for size in tensor.shape or ())


def _wanted(definition: Definition) -> set[str]:
    """The axes in the shapes of outputs, and those that they are derived from."""
    wanted = {name for tensor in definition.outputs for size in tensor.shape or () for name in parse(str(size)).names}
    for axis in reversed(definition.axes):
        if axis.name in wanted and axis.kind == "derived":
            wanted |= parse(axis.expression).names
    return wanted

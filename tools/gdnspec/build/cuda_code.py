"""A hash of what a .cu file compiles to. It stays the same if a change of the sources affects neither the machine code
nor the host code.

nvcc compiles the file, without a GPU. The cubin is compared section by section. The host code is compared as assembly,
function by function, so moving a function to another file or place makes no difference.
"""

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from gdnspec.build.dry import run
from gdnspec.build.loader import CUDA_FLAGS, define_flags
from gdnspec.build.machine import nvcc

ARCH = "90a"
# Slugs of the GPUs that ARCH is for.
HOPPER = re.compile(r"-(h100|h200|h800|h20|gh200)\b")
# apache-tvm-ffi passes these before the loader's own flags.
TVM_FFI_FLAGS = ["-Xcompiler", "-fPIC", "-std=c++17", "-O2"]
COMPARED = (
    "Machine code: the name, type, flags, size and content of each section of the cubin, and its symbols, without "
    "debugging information and without the hash of the compilation unit in names. Host code: the assembly of each "
    "function and variable that the host compiler leaves, with its constants and without numbers of labels, __LINE__ "
    "being 0 and __FILE__ empty in both states, without the embedded cubin."
)
# nvcc makes local names unique by two hashes: of the file's content and of its path. It also names temporary files.
UNIT = re.compile(rb"(_GLOBAL__N__|_INTERNAL_|tmpxft_)[0-9a-f]{8}(_\d+_\w+?_|_)[0-9a-f]{8}")
HOST_FLAGS = ["-x", "c++-cpp-output", "-fPIC", "-std=c++17", "-O2", "-w", "-S"]
# A string split over several directives; a label; directives that only say where code comes from or is placed.
PIECES = re.compile(rb'(\t\.ascii\t"(?:\\.|[^"\\\n])*)"\n\t\.(?:ascii|string)\t"')
LABEL = re.compile(r"(\.?[\w.$]+):$")
PLACE = re.compile(
    r"\s*(#|\.(loc|file|cfi_\w+|section|text|data|bss|p2align|align|type|globl|weak|hidden|local|ident)\b)"
)
LOCAL = re.compile(r"\.L[\w.$]*")
FATBIN = "fatbinData"
SHT_SYMTAB, SHT_STRTAB, SHT_NOBITS = 2, 3, 8


class NoCompilerError(Exception):
    """nvcc is not installed."""


def compiler() -> dict[str, str]:
    """The version of nvcc and the target. Raises `NoCompilerError`."""
    said = run([_nvcc(), "--version"]).stdout
    found = re.search(r"\bV(\d+(?:\.\d+)+)", said)
    return {"nvcc": found[1] if found else said.strip().splitlines()[-1], "target": f"sm_{ARCH}"}


def code(folder: Path, file: str, defines: Mapping[str, int]) -> str:
    """sha256 over the machine code and the host code of a .cu file in a folder. Raises `NoCompilerError`, and
    `RuntimeError` with nvcc's message if it does not compile."""
    cubin, host, assembly = (folder / f"_gdnspec.{ending}" for ending in ("cubin", "ii", "s"))
    try:
        _compile(folder, file, defines, ["-cubin", "-o", cubin.name])
        # Error messages contain file names and line numbers, which would change with every move or comment.
        _compile(folder, file, defines, ["-cuda", "-D__LINE__=0", '-D__FILE__=""', "-o", host.name])
        run([_host_compiler(), *HOST_FLAGS, "-o", assembly.name, host.name], folder=folder)
        parts = [*_sections(cubin.read_bytes()), _host(assembly.read_bytes())]
    finally:
        for made in (cubin, host, assembly):
            made.unlink(missing_ok=True)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _compile(folder: Path, file: str, defines: Mapping[str, int], to: list[str]) -> None:
    import tvm_ffi.libinfo

    includes = [tvm_ffi.libinfo.find_include_path(), tvm_ffi.libinfo.find_dlpack_include_path(), "."]
    command = [_nvcc(), *TVM_FFI_FLAGS, *CUDA_FLAGS, f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}"]
    command += [*define_flags(defines), *(f"-I{include}" for include in includes), *to, file]
    run(command, folder=folder)  # run inside the folder, so that the code contains no path of this machine


def _nvcc() -> str:
    found = nvcc()
    if found is None:
        raise NoCompilerError("nvcc was not found: install the CUDA toolkit, or set CUDA_HOME")
    return found


def _host_compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        raise NoCompilerError("no g++: nvcc compiles host code with it")
    return found


# --- the cubin --------------------------------------------------------------------------------------------------


def _sections(cubin: bytes) -> Iterator[list[object]]:
    """The properties of each section of an ELF file, and sha256 over its content."""
    at, size, count, names_at = *struct.unpack_from("<Q", cubin, 0x28), *struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + i * size) for i in range(count)]
    names = _content(cubin, headers[names_at])
    for header in headers:
        name, kind, flags, _, _, length, link, info, align, each = header
        called = _string(names, name)
        if "debug" in called or kind == SHT_STRTAB:
            continue
        content = _content(cubin, header)
        if kind == SHT_SYMTAB:
            content = _symbols(content, each, _content(cubin, headers[link]))
        yield [called, kind, flags, length, link, info, align, hashlib.sha256(content).hexdigest()]


def _content(cubin: bytes, header: tuple[int, ...]) -> bytes:
    return b"" if header[1] == SHT_NOBITS else cubin[header[4] : header[4] + header[5]]


def _symbols(table: bytes, each: int, strings: bytes) -> bytes:
    """The symbols, with each name in place of its offset."""
    found = []
    for at in range(0, len(table), each):
        (name,) = struct.unpack_from("<I", table, at)
        found.append([_string(strings, name), table[at + 4 : at + each].hex()])
    return json.dumps(found).encode()


def _string(strings: bytes, at: int) -> str:
    return _without_unit(strings[at : strings.index(b"\0", at)]).decode()


def _without_unit(text: bytes) -> bytes:
    return UNIT.sub(rb"\1\2", text)


# --- the host code ----------------------------------------------------------------------------------------------


def _host(assembly: bytes) -> str:
    """sha256 over the assembly of each symbol, in the order of their names. Local labels are numbered in the order in
    which a symbol mentions them, and a constant replaces its label."""
    before = b""
    while assembly != before:
        assembly, before = PIECES.sub(rb"\1", assembly), assembly
    blocks: dict[str, list[str]] = {}
    block: list[str] = []
    for line in _without_unit(assembly).decode(errors="surrogateescape").splitlines():
        label = LABEL.match(line)
        if label and (label[1].startswith(".LC") or not label[1].startswith(".L")):
            block = blocks.setdefault(label[1], [])
        elif line.startswith("\t.size"):  # it comes after a function, and before a variable
            block = []
        elif line.startswith(("\t.comm", "\t.set")):
            blocks[line] = []
        elif not PLACE.match(line):
            block.append(line)
    blocks.pop(FATBIN, None)
    symbols = sorted((name, _alike(name, blocks)) for name in blocks if not name.startswith(".LC"))
    return hashlib.sha256(json.dumps(symbols).encode(errors="surrogateescape")).hexdigest()


def _alike(name: str, blocks: Mapping[str, list[str]]) -> list[str]:
    seen: dict[str, str] = {}

    def shown(label: re.Match[str]) -> str:
        constant = blocks.get(label[0])
        return " ".join(constant) if constant is not None else seen.setdefault(label[0], f".L{len(seen)}")

    return [LOCAL.sub(shown, line) for line in blocks[name]]

"""The names with which Python code can leave a kernel's task: modules, their contents, and attributes of objects."""

from collections.abc import Sequence
from typing import NamedTuple

from gdnspec.submission.finding import words

FILES, NETWORK, PROCESSES, THREADS = "files", "network", "processes", "threads"
HOOKS, PATCHES, NATIVE, DYNAMIC = "import hooks", "patched modules", "native code", "code made at run time"
ENVIRONMENT, LOOKING_AROUND = "environment", "looking around"

# Modules that kernels need.
ORDINARY = words("""
    __future__ abc collections contextlib copy cuda cupy cutlass dataclasses decimal einops enum fractions functools
    itertools math numbers numpy operator random statistics string torch triton tvm_ffi types typing typing_extensions
    warnings
""")
MODULES = {
    FILES: "fileinput glob io linecache mmap pathlib shutil sqlite3 tarfile tempfile zipfile",
    NETWORK: """
        aiohttp asyncio ftplib http httpx requests select selectors smtplib socket socketserver ssl urllib urllib3
        webbrowser xmlrpc""",
    PROCESSES: "multiprocessing os posix psutil pty resource signal subprocess",
    THREADS: "_thread concurrent queue sched threading",
    HOOKS: "builtins imp importlib pkgutil runpy site sys zipimport",
    NATIVE: "_ctypes cffi cppyy ctypes numba pybind11",
    DYNAMIC: """
        ast base64 binascii bz2 cloudpickle code codecs codeop compileall dill gzip lzma marshal pickle py_compile
        shelve zlib""",
    LOOKING_AROUND: """
        atexit dis faulthandler gc getpass inspect logging platform sysconfig time traceback tracemalloc weakref""",
}
KIND_OF = {module: kind for kind, listed in MODULES.items() for module in words(listed)}
# Honest code imports these often. The import alone is no finding; the names that are used from it can be.
BY_ATTRIBUTE = words("os sys time logging weakref platform inspect")
NOTED = words("logging platform time weakref traceback inspect")  # worth a look, but never severe


# Modules whose names also have other meanings: torch.select, torch.signal, the code of a graph.
WORDS = words("select signal code")
# Names that always mean the module, also as an attribute of another object.
UNMISTAKABLE = words("""
    builtins ctypes importlib linecache marshal multiprocessing os pathlib pickle posix runpy shutil socket subprocess
    sys tempfile threading zipimport
""")


class Known(NamedTuple):
    """The kind of a known name. `severe`: a reason to refuse the solution."""

    kind: str
    severe: bool = True


def _below(module: str, names: str, kind: str, severe: bool = True) -> dict[str, Known]:
    return {f"{module}.{name}": Known(kind, severe) for name in words(names)}


# Looked up by the longest prefix of a dotted name.
NAMES: dict[str, Known] = {
    "os": Known(FILES),
    **_below("os", "path", FILES, False),
    **_below("os", "environ getenv", ENVIRONMENT, False),
    **_below("os", "putenv unsetenv environb", ENVIRONMENT),
    **_below("os", "cpu_count", LOOKING_AROUND, False),
    **_below("os", """
        system popen fork forkpty kill killpg execv execve execl execlp execvp execvpe spawnl spawnv spawnve spawnvp
        posix_spawn posix_spawnp abort _exit setsid""", PROCESSES),
    "sys": Known(LOOKING_AROUND, False),
    **_below("sys", "modules meta_path path path_hooks path_importer_cache", HOOKS),
    **_below("sys", """
        _getframe _current_frames _current_exceptions settrace setprofile addaudithook monitoring""", LOOKING_AROUND),
    "inspect": Known(LOOKING_AROUND, False),
    **_below("inspect", "currentframe stack trace getmembers", LOOKING_AROUND),
    **_below("numpy", """
        load save savez savez_compressed savetxt loadtxt genfromtxt fromregex fromfile memmap DataSource lib.format
        lib.npyio""", FILES),
    **_below("numpy", "ctypeslib f2py distutils", NATIVE),
    **_below("torch", """
        load save from_file serialization package jit.load jit.save export.load export.save onnx""", FILES),
    **_below("torch", "hub distributed utils.model_zoo", NETWORK),
    **_below("torch", "multiprocessing utils.data.DataLoader", PROCESSES),
    **_below("torch", "set_num_threads", THREADS, False),
    **_below("torch", "utils.cpp_extension ops.load_library classes.load_library", NATIVE),
    **_below("torch", "cuda._compile_kernel", NATIVE, False),
    **_below("types", "CodeType FunctionType", DYNAMIC),
    **_below("typing", "get_type_hints ForwardRef", DYNAMIC),
    **_below("triton", "runtime.build language.inline_asm_elementwise", NATIVE, False),
    **_below("tvm_ffi", "cpp load_module", NATIVE, False),
}  # fmt: skip
BUILTINS = {
    "open": FILES, "exec": DYNAMIC, "eval": DYNAMIC, "compile": DYNAMIC, "__import__": HOOKS, "breakpoint": PROCESSES,
    "input": FILES, "globals": LOOKING_AROUND, "locals": LOOKING_AROUND, "__builtins__": HOOKS, "__loader__": HOOKS,
    "__spec__": HOOKS,
}  # fmt: skip
UNUSUAL = frozenset(("globals", "locals"))  # of the builtins, those that are only worth a look
# Attributes through which code can reach everything else.
INNER = words("""
    __globals__ __builtins__ __subclasses__ __bases__ __mro__ __code__ __closure__ __loader__ __spec__ __import__
    __getattribute__ __reduce__ __reduce_ex__ f_back f_locals f_globals f_builtins gi_frame cr_frame tb_frame tb_next
    _getframe load_module exec_module get_field
""")
# Methods of arrays, of a tensor's storage, and of paths that read or write files.
FILE_METHODS = words("""
    tofile fromfile from_file _write_file _new_with_file _set_from_file _share_filename_cpu_ _new_shared_filename_cpu
    read_text write_text read_bytes write_bytes symlink_to hardlink_to
""")
NOTED_FILE_METHODS = words("dump unlink rmdir mkdir touch chmod")


def known(parts: Sequence[str]) -> Known | None:
    """Looks a dotted name up by its longest known prefix, then by its module."""
    for length in range(len(parts), 0, -1):
        if (found := NAMES.get(".".join(parts[:length]))) is not None:
            # The module alone is no finding; a name that is used from it can be.
            return None if length == len(parts) == 1 else found
    top = parts[0]
    if top in KIND_OF and top not in BY_ATTRIBUTE and len(parts) > 1:
        return Known(KIND_OF[top], top not in NOTED)
    return None


def reached(parts: Sequence[str]) -> Known | None:
    """Looks up a name that is reached through a module which another module imported: torch.os, random._os.system."""
    for i in range(1, len(parts)):
        module = parts[i] if parts[i] in KIND_OF else parts[i].lstrip("_")
        if module not in KIND_OF or module in WORDS:
            continue
        found = known([module, *parts[i + 1 :]])
        if module not in NOTED:  # no kernel needs a module in this way
            return Known(found.kind if found else KIND_OF[module])
        if found is not None and found.severe:
            return found
    return None

"""Reading Python by its syntax tree, with names traced through imports: `from os import system as f` is found."""

import ast
import io
import tokenize

from gdnspec.submission.finding import Finding, words

FILES, NETWORK, PROCESSES, THREADS = "files", "network", "processes", "threads"
HOOKS, PATCHES, NATIVE, DYNAMIC = "import hooks", "patched modules", "native code", "code made at run time"
ENVIRONMENT, LOOKING_AROUND = "environment", "looking around"

# What a kernel is made of.
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
# Named so often in honest code that the import by itself says nothing: what is taken from them does.
BY_ATTRIBUTE = words("os sys time logging weakref platform inspect")
NOTED = words("logging platform time weakref traceback inspect")  # worth a look, and no more


def _below(module: str, names: str, kind: str, severe: bool = True) -> dict[str, tuple[str, bool]]:
    return {f"{module}.{name}": (kind, severe) for name in words(names)}


# By the longest prefix of a dotted name; True: severe.
NAMES: dict[str, tuple[str, bool]] = {
    "os": (FILES, True),
    **_below("os", "path", FILES, False),
    **_below("os", "environ getenv", ENVIRONMENT, False),
    **_below("os", "putenv unsetenv environb", ENVIRONMENT),
    **_below("os", "cpu_count", LOOKING_AROUND, False),
    **_below("os", """
        system popen fork forkpty kill killpg execv execve execl execlp execvp execvpe spawnl spawnv spawnve spawnvp
        posix_spawn posix_spawnp abort _exit setsid""", PROCESSES),
    "sys": (LOOKING_AROUND, False),
    **_below("sys", "modules meta_path path path_hooks path_importer_cache", HOOKS),
    **_below("sys", """
        _getframe _current_frames _current_exceptions settrace setprofile addaudithook monitoring""", LOOKING_AROUND),
    "inspect": (LOOKING_AROUND, False),
    **_below("inspect", "currentframe stack trace getmembers", LOOKING_AROUND),
    **_below("numpy", "load save savez savetxt loadtxt genfromtxt fromfile memmap DataSource", FILES),
    **_below("numpy", "ctypeslib", NATIVE),
    **_below("torch", "load save from_file UntypedStorage.from_file serialization package", FILES),
    **_below("torch", "hub distributed", NETWORK),
    **_below("torch", "multiprocessing", PROCESSES),
    **_below("torch", "set_num_threads", THREADS, False),
    **_below("torch", "utils.cpp_extension ops.load_library classes.load_library cuda._compile_kernel", NATIVE, False),
    **_below("triton", "runtime.build language.inline_asm_elementwise", NATIVE, False),
    **_below("tvm_ffi", "cpp load_module", NATIVE, False),
}  # fmt: skip
BUILTINS = {
    "open": FILES, "exec": DYNAMIC, "eval": DYNAMIC, "compile": DYNAMIC, "__import__": HOOKS, "breakpoint": PROCESSES,
    "input": FILES, "globals": LOOKING_AROUND, "locals": LOOKING_AROUND, "__builtins__": HOOKS, "__loader__": HOOKS,
    "__spec__": HOOKS,
}  # fmt: skip
UNUSUAL = frozenset(("globals", "locals"))  # of those, what is only worth a look
# Attributes from which everything else can be reached.
INNER = words("""
    __globals__ __builtins__ __subclasses__ __bases__ __mro__ __code__ __closure__ __loader__ __spec__ __import__
    __getattribute__ __reduce__ __reduce_ex__ f_back f_locals f_globals f_builtins gi_frame cr_frame tb_frame tb_next
    _getframe load_module exec_module
""")
WRITES_FILES = words("""
    tofile fromfile read_text write_text read_bytes write_bytes unlink rmdir mkdir touch symlink_to hardlink_to chmod
""")
MOST_OF_A_LITERAL = 4000  # characters


def audit_python(name: str, data: bytes, local: frozenset[str]) -> list[Finding]:
    """Findings in one file. `local`: modules beside it, and packages that the manifest requires."""
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        tree = ast.parse(data, filename=name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [Finding(name, getattr(error, "lineno", None) or 1, "hidden text", f"not Python: {error}"[:200], True)]
    found = []
    if encoding not in ("utf-8", "utf-8-sig", "ascii"):
        found.append(
            Finding(name, 1, "hidden text", f"declares the encoding {encoding}: it reads otherwise than it runs", True)
        )
    reader = _Reader(name, local)
    try:
        reader.visit(tree)
    except RecursionError:
        found.append(Finding(name, 1, "hidden text", "nested too deeply to be read", True))
    return found + reader.found


class _Reader(ast.NodeVisitor):
    """One file. `meaning`: what a name stands for, as a dotted path from a module."""

    def __init__(self, file: str, local: frozenset[str]) -> None:
        self.file, self.local = file, local
        self.found: list[Finding] = []
        self.meaning: dict[str, str] = {}

    def add(self, node: ast.AST, kind: str, what: str, severe: bool = True) -> None:
        self.found.append(Finding(self.file, getattr(node, "lineno", 1), kind, what, severe))

    # --- imports ------------------------------------------------------------------------------------------------

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.split(".")[0]
            self.meaning[alias.asname or top] = alias.name if alias.asname else top
            self._imported(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            return  # beside it, and read as well
        for alias in node.names:
            if alias.name == "*" and module.split(".")[0] not in self.local:
                self.add(node, HOOKS, f"from {module} import *: what it brings cannot be read here")
            self.meaning[alias.asname or alias.name] = f"{module}.{alias.name}"
            self._imported(node, f"{module}.{alias.name}")

    def _imported(self, node: ast.AST, name: str) -> None:
        top = name.split(".")[0]
        if self._named(node, name) or top in ORDINARY or top in self.local:
            return
        if top in KIND_OF:
            if top not in BY_ATTRIBUTE:
                self.add(node, KIND_OF[top], f"import {name}", top not in NOTED)
            elif top in NOTED:
                self.add(node, KIND_OF[top], f"import {name}", False)
        else:
            self.add(node, LOOKING_AROUND, f"import {name}: not a module that kernels are made of", False)

    # --- names --------------------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in BUILTINS and node.id not in self.meaning:
            if isinstance(node.ctx, ast.Load):
                self.add(node, BUILTINS[node.id], node.id, node.id not in UNUSUAL)
        elif node.id in self.meaning and isinstance(node.ctx, ast.Load):
            meant = self.meaning[node.id]
            if meant in KIND_OF and meant not in NOTED:
                self.add(node, KIND_OF[meant], f"{meant}, handed on as a whole")
            self._named(node, meant)

    def visit_Assign(self, node: ast.Assign) -> None:
        meant = self._dotted(node.value)
        for target in node.targets:
            if meant is not None and isinstance(target, ast.Name):
                self.meaning[target.id] = meant
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = self._dotted(node)
        if not isinstance(node.ctx, ast.Load):
            owner = self._dotted(node.value)
            if owner is not None:
                self.add(node, PATCHES, f"sets {owner}.{node.attr}")
        if dotted is not None and self._named(node, dotted):
            return
        if node.attr in INNER:
            self.add(node, LOOKING_AROUND, f".{node.attr}")
        elif node.attr in WRITES_FILES:
            self.add(node, FILES, f".{node.attr}", False)
        elif node.attr == "__dict__":
            self.add(node, PATCHES, ".__dict__", False)
        if dotted is None:
            self.visit(node.value)

    def _named(self, node: ast.AST, dotted: str) -> bool:
        """Adds what is known of a dotted name, by its longest known prefix; whether anything is."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            known = NAMES.get(".".join(parts[:length]))
            if known is not None:
                if length == len(parts) == 1:
                    return False  # the module itself: what is taken from it says more
                self.add(node, known[0], dotted, known[1])
                return True
        if parts[0] in KIND_OF and parts[0] not in BY_ATTRIBUTE and len(parts) > 1:
            self.add(node, KIND_OF[parts[0]], dotted, parts[0] not in NOTED)
            return True
        return False

    def _dotted(self, node: ast.AST) -> str | None:
        """`torch.hub.load` for what stands for it; None for anything that is no name of a module's."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.meaning:
            return None
        return ".".join([self.meaning[node.id], *reversed(parts)])

    # --- what is done with them ---------------------------------------------------------------------------------

    def visit_Subscript(self, node: ast.Subscript) -> None:
        owner = self._dotted(node.value)
        if not isinstance(node.ctx, ast.Load) and owner is not None:
            kind = ENVIRONMENT if owner == "os.environ" else PATCHES
            self.add(node, kind, f"sets {owner}[..]")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called in ("getattr", "setattr", "delattr", "hasattr", "vars", "type", "dir") and called not in self.meaning:
            self._by_text(node, called)
        self._of_environment(node)
        self.generic_visit(node)

    def _by_text(self, node: ast.Call, called: str) -> None:
        """getattr(x, "na" + "me") says nothing to a reader of names."""
        named = node.args[1] if len(node.args) > 1 else None
        text = named.value if isinstance(named, ast.Constant) and isinstance(named.value, str) else None
        if called in ("setattr", "delattr"):
            self.add(node, PATCHES, f"{called} of {ast.unparse(node.args[0])[:60] if node.args else ''}")
        elif called == "getattr" and text is None:
            self.add(node, LOOKING_AROUND, "getattr with a name that is made at run time")
        elif called == "getattr" and (str(text) in INNER or str(text).startswith("__") or text in BUILTINS):
            self.add(node, LOOKING_AROUND, f"getattr of {text}")
        elif called == "getattr" and node.args and (owner := self._dotted(node.args[0])) is not None:
            self._named(node, f"{owner}.{text}")
        elif called in ("vars", "dir") or (called == "type" and len(node.args) == 3):
            self.add(node, LOOKING_AROUND, f"{called}(..)", False)

    def _of_environment(self, node: ast.Call) -> None:
        dotted = self._dotted(node.func)
        if (
            dotted
            and dotted.startswith("os.environ.")
            and dotted.rpartition(".")[2] in ("update", "setdefault", "pop", "clear")
        ):
            self.add(node, ENVIRONMENT, f"changes it: {dotted}")

    def visit_Constant(self, node: ast.Constant) -> None:
        size = len(node.value) if isinstance(node.value, str | bytes) else 0
        if size > MOST_OF_A_LITERAL:
            self.add(node, DYNAMIC, f"a literal of {size} characters", False)

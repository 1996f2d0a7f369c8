"""Audit CUDA and C++ by its words, without comments and strings. Headers must be on a list."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from gdnspec.submission.finding import Finding, words

FILES, NETWORK, PROCESSES, THREADS = "files", "network", "processes", "threads"
NATIVE, ENVIRONMENT, DYNAMIC = "native code", "environment", "code made at build time"

# The headers that kernels and their host side need: those of CUDA, and these of the language.
LIBRARIES = (
    "cuda", "cooperative_groups", "cub/", "thrust/", "cute/", "cutlass/", "tvm/ffi/", "dlpack/", "nv/", "mma.h", "crt/",
    "nvtx3/", "curand", "cublas", "device_launch_parameters.h", "vector_types.h", "sm_",
)  # fmt: skip
LANGUAGE = words("""
    algorithm any array atomic bit bitset cassert cfloat charconv climits cmath complex concepts cstddef cstdint cstdio
    cstdlib cstring exception functional initializer_list iomanip iostream iterator limits map memory mutex new numeric
    optional ostream queue ratio set span sstream stdexcept string string_view tuple type_traits typeinfo unordered_map
    unordered_set utility variant vector version assert.h float.h limits.h math.h stdbool.h stddef.h stdint.h stdio.h
    stdlib.h string.h
""")
WORDS = {
    FILES: """
        fopen fopen64 freopen fdopen tmpfile mkstemp opendir readdir creat openat ifstream ofstream fstream filebuf
        filesystem mmap mmap64 unlink remove rename mkdir rmdir symlink chmod shm_open memfd_create incbin embed""",
    NETWORK: "socket connect accept getaddrinfo gethostbyname sendto recvfrom sendmsg recvmsg socketpair",
    PROCESSES: """
        system popen fork vfork execve execv execvp execl execlp execle posix_spawn posix_spawnp kill ptrace syscall
        prctl setsid raise abort _exit quick_exit process_vm_readv process_vm_writev waitpid signal sigaction""",
    THREADS: "pthread_create thread jthread async thrd_create",
    NATIVE: """
        dlopen dlmopen dlsym dladdr mprotect cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuLibraryLoadData
        nvrtcCompileProgram constructor destructor init_priority ifunc section __libc_start_main LD_PRELOAD""",
    ENVIRONMENT: "setenv putenv unsetenv environ",
}
KIND_OF = {word: kind for kind, listed in WORDS.items() for word in words(listed)}
NOTED = {"getenv": ENVIRONMENT, "secure_getenv": ENVIRONMENT, "atexit": PROCESSES, "exit": PROCESSES}
# Words that are suspicious only in a call or a type; a member may be named `signal`, a variable `section`.
CALLED = words("remove rename connect accept system raise abort signal kill thread async section")
INCLUDE = re.compile(r"^\s*#\s*include(_next)?\b\s*(.*)$")
_BLANKED = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\ ]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL
)


def audit_cuda(name: str, text: str, files: frozenset[str]) -> list[Finding]:
    """Findings in one file. `files`: the files beside it."""
    # For the compiler, a line with a backslash at its end continues in the next one.
    joined = text.replace("\r\n", "\n").replace("\\\n", "\x00")
    found = [Finding(name, line, kind, what, severe) for line, kind, what, severe in _includes(name, joined, files)]
    code = _BLANKED.sub(_blank, joined)
    found += [Finding(name, line, kind, what, severe) for line, kind, what, severe in _words(code)]
    found += [Finding(name, line, NATIVE, what, severe) for line, what, severe in _assembly(joined, code)]
    return found


def _blank(match: re.Match[str]) -> str:
    """Removes the words of a match but keeps its line breaks. A string becomes an empty string, so that calls keep
    their form."""
    kept = "".join(c for c in match.group() if c in "\n\x00")
    return kept if match.group().startswith("/") else f'""{kept}'


def _line(text: str, at: int) -> int:
    return 1 + text.count("\n", 0, at) + text.count("\x00", 0, at)


def _includes(name: str, text: str, files: frozenset[str]) -> Iterator[tuple[int, str, str, bool]]:
    bare = re.sub(r"/\*.*?\*/", lambda m: " " + "".join(c for c in m.group() if c in "\n\x00"), text, flags=re.DOTALL)
    number = 1
    for line in bare.split("\n"):
        match = INCLUDE.match(line.replace("\x00", "  "))
        if match:
            yield from ((number, *what) for what in _included(name, match.group(2).split("//")[0].strip(), files))
        number += 1 + line.count("\x00")


def _included(name: str, target: str, files: frozenset[str]) -> Iterator[tuple[str, str, bool]]:
    if target[:1] == "<" and target[-1:] == ">":
        header = target[1:-1]
        if header not in LANGUAGE and not header.startswith(LIBRARIES):
            yield FILES, f"#include <{header}>: neither a header of CUDA nor one that kernels need", True
        elif ".." in header.split("/"):
            yield FILES, f"#include <{header}>: leads out of the solution", True
    elif target[:1] == '"' and target[-1:] == '"' and len(target) > 2:
        header = target[1:-1]
        beside = str(PurePosixPath(name).parent / header).removeprefix("./")
        if header.startswith("/") or ".." in header.split("/") or (beside not in files and header not in files):
            yield FILES, f'#include "{header}": not one of its own files', True
    else:
        yield DYNAMIC, f"#include {target[:60]}: the preprocessor makes this name, so the audit cannot read it", True


def _words(code: str) -> Iterator[tuple[int, str, str, bool]]:
    for match in re.finditer(r"[A-Za-z_]\w*", code):
        word, after = match.group(), code[match.end() : match.end() + 40].lstrip(" \t\n\x00")
        before = code[max(0, match.start() - 40) : match.start()].rstrip(" \t\n\x00")
        member = before.endswith((".", "->")) and not before.endswith("..")
        if word in NOTED:
            yield _line(code, match.start()), NOTED[word], word, False
        elif (
            word in KIND_OF and not member and (word not in CALLED or after.startswith("(") or before.endswith("std::"))
        ):
            yield _line(code, match.start()), KIND_OF[word], word, True
    for match in re.finditer(r"^[ \t]*#[ \t]*define\b[^\n]*##", code, re.MULTILINE):
        yield _line(code, match.end()), DYNAMIC, "joins names by ##, which the audit cannot read", False


def _assembly(text: str, code: str) -> Iterator[tuple[int, str, bool]]:
    """Finds assembly on the host, and any assembly that reads files or calls the system."""
    for match in re.finditer(r"\bsyscall\b|\bint\s+\$?0x80|\.incbin|\bsysenter\b|\.section|\.init_array", text):
        yield _line(text, match.start()), f"{match.group().strip()} in assembly or in a string", True
    for match in re.finditer(r"\b(asm|__asm__|__asm)\b", code):
        if not _on_device(code, match.start()):
            yield _line(code, match.start()), "assembly outside of a __device__ or __global__ function", True


def _on_device(code: str, at: int) -> bool:
    """Whether an open brace at `at` belongs to a device function. A macro counts as device code."""
    start = code.rfind("\n", 0, at) + 1
    if code[start:at].lstrip().startswith("#"):
        return True
    heads: list[bool] = []
    last = 0
    for match in re.finditer(r"[{};]", code[:at]):
        if match.group() == "{":
            head = code[last : match.start()]
            heads.append("__device__" in head or "__global__" in head)
        elif match.group() == "}" and heads:
            heads.pop()
        last = match.end()
    return any(heads)

"""What the audit reads in sources: each way out is named at its line, and shipped kernels have none."""

import textwrap

import pytest
from conftest import ROOT
from gdnspec.catalog.solutions import load_solution
from gdnspec.submission.audit import audit, audited
from gdnspec.submission.finding import Finding
from helpers_known_bad import wrong

PYTHON = {
    "open('x')": "files",
    "f = open": "files",
    "from pathlib import Path": "files",
    "import numpy as np\nnp.fromfile('x')": "files",
    "import torch as t\nt.load('x')": "files",
    "import socket": "network",
    "from urllib import request as r": "network",
    "import torch\ntorch.hub.load('a', 'b')": "network",
    "from torch import hub as h\nh.load('a', 'b')": "network",
    "import os\nos.system('x')": "processes",
    "from os import system as f\nf('x')": "processes",
    "import os as o\no.fork()": "processes",
    "import subprocess": "processes",
    "import threading": "threads",
    "from concurrent.futures import ThreadPoolExecutor": "threads",
    "import importlib": "import hooks",
    "__import__('os')": "import hooks",
    "import sys\nsys.modules['torch'] = None": "import hooks",
    "import sys\nsys.meta_path.insert(0, 1)": "import hooks",
    "import torch\ntorch.equal = lambda a, b: True": "patched modules",
    "import torch\ntorch.Tensor.copy_ = print": "patched modules",
    "import torch\nsetattr(torch, 'equal', print)": "patched modules",
    "import torch\nx = torch\nx.equal = print": "patched modules",
    "import torch\ndel torch.equal": "patched modules",
    "import ctypes": "native code",
    "exec('x')": "code made at run time",
    "(eval)('x')": "code made at run time",
    "import base64": "code made at run time",
    "import os\nos.environ['A'] = 'b'": "environment",
    "import os\nos.environ.update(A='b')": "environment",
    "import sys\nsys._getframe()": "looking around",
    "import gc": "looking around",
    "import inspect\ninspect.currentframe()": "looking around",
    "().__class__.__bases__[0].__subclasses__()": "looking around",
    "(lambda: 0).__globals__": "looking around",
    "import torch\ngetattr(torch, 'h' + 'ub')": "looking around",
    "import torch\ngetattr(torch, 'hub')": "network",
    "getattr(1, '__class__')": "looking around",
    "import os\n(lambda m: m.fork())(os)": "processes",
    # What one module has imported, another reaches through it.
    "import torch\ntorch.jit.frontend.inspect.builtins.eval('x')": "import hooks",
    "import torch\ntorch.utils.data.os.kill(1, 9)": "processes",
    "import torch\ntorch.os.path.exists('x')": "files",
    "import torch\nf = torch.sys": "import hooks",
    "import torch\njit = torch.jit\njit.frontend.inspect.currentframe()": "looking around",
    "from torch.jit.frontend import inspect as i\ni.builtins.exec('x')": "import hooks",
    "from torch import ctypes": "native code",
    "import random\nrandom._os.system('x')": "processes",
    "import contextlib as c\nc.os.system('x')": "processes",
    "import os\nos.path.os.system('x')": "processes",
    "import torch\ngetattr(torch, 'os').system('x')": "processes",
    "import torch\n(lambda m: m.os.system('x'))(torch)": "processes",
    "import torch\n[m] = [torch]\nm._threading.Thread()": "threads",
    "import torch\nmatch torch:\n    case object(os=o):\n        o.system('x')": "processes",
    "from .helper import os as o\no.system('x')": "processes",
    "from operator import attrgetter\nattrgetter('os.system')(1)('x')": "processes",
    "import operator\noperator.attrgetter('o' + 's')(1)": "looking around",
    "from functools import reduce\nreduce(getattr, ['a'], 1)": "looking around",
    "import torch\ntorch.nn.Module.train.__globals__.get('os')": "looking around",
    "import torch\ntorch.utils.cpp_extension.load('a', ['b.cpp'])": "native code",
    "from torch.utils.cpp_extension import load_inline": "native code",
    "import torch\ntorch.ops.load_library('a.so')": "native code",
    "import torch\ntorch.from_file('x')": "files",
    "import torch\ntorch.UntypedStorage.from_file('x')": "files",
    "def f(x):\n    return x.untyped_storage().from_file('x', True, 1)": "files",
    "def f(x):\n    x.numpy().tofile('x')": "files",
    "def f(x):\n    x.cpu().storage()._write_file(1, True)": "files",
    "import torch\ntorch.jit.load('x')": "files",
    "import numpy as np\nnp.lib.format.open_memmap('x')": "files",
    "import typing\ntyping.get_type_hints(1)": "code made at run time",
    "# coding: utf-7\n": "hidden text",
    "x = 'a\u202eb'": "hidden text",
    "x\u200b = 1": "hidden text",
    "def f(:": "hidden text",
}
CUDA = {
    "#include <fstream>": "files",
    "#include <sys/socket.h>": "files",
    "#include <unistd.h>": "files",
    '#include "/etc/passwd"': "files",
    '#include "../../other.cuh"': "files",
    "#include \\\n <dlfcn.h>": "files",
    "#/**/include <fstream>": "files",
    "#define H <fstream>\n#include H": "code made at build time",
    'void f() { fopen("x", "r"); }': "files",
    'void f() { std::system("x"); }': "processes",
    'void f() { popen("x", "r"); }': "processes",
    "void f() { fork(); }": "processes",
    "void f() { ::socket(1, 2, 3); }": "network",
    "void f() { std::thread t; }": "threads",
    "void f() { pthread_create(0, 0, 0, 0); }": "threads",
    'void f() { dlopen("x", 1); }': "native code",
    "__attribute__((constructor)) void f() {}": "native code",
    'void f() { asm("nop"); }': "native code",
    '__device__ void g() {}\nvoid f() { asm("nop"); }': "native code",
    'asm(".incbin \\"/etc/passwd\\"");': "native code",
    'void f() { setenv("A", "b", 1); }': "environment",
}


def severe(found: list[Finding]) -> set[str]:
    return {finding.kind for finding in found if finding.severe}


@pytest.mark.parametrize("code", PYTHON)
def test_python_that_reaches_out_is_found(code: str) -> None:
    # Below other lines, so that the line that is named is a test as well.
    found = audit({"kernel.py": (code if code.startswith("#") else f"x = 1\n\n{code}\n").encode()})
    assert PYTHON[code] in severe(found), found
    last = code.count("\n") + (1 if code.startswith("#") else 3)
    assert any(finding.line in (last, 1) or finding.line <= last for finding in found if finding.severe)


@pytest.mark.parametrize("code", CUDA)
def test_cuda_that_reaches_out_is_found(code: str) -> None:
    found = audit({"kernel.cu": f"int before;\n{code}\n".encode()})
    assert CUDA[code] in severe(found), found


def test_a_finding_names_its_line() -> None:
    found = audit(
        {"a.py": b"import torch\n\n\ndef f():\n    return open('x')\n", "b.cu": b"int a;\n\nvoid f() { fork(); }\n"}
    )
    assert [str(finding) for finding in found] == ["a.py:5: files: open", "b.cu:3: processes: fork"]


def test_files_that_are_no_sources_are_found() -> None:
    for name, data in (("a.so", b"\x7fELF"), ("a.pyc", b""), ("a.pth", b""), ("kernel.py", b"\xff\xfe")):
        assert severe(audit({name: data})) <= {"native code", "hidden text"}
        assert severe(audit({name: data}))


def test_words_in_comments_strings_and_device_code_are_no_findings() -> None:
    cuda = """
        // fopen("x"), system("y")
        /* fork(); #include <fstream> */
        #include <cuda_runtime.h>
        #include "shared.cuh"
        __device__ __forceinline__ int lane() { int x; asm volatile("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }
        namespace a { template <int N> __global__ void k(int* p) { for (;;) { asm("bar.sync 0;"); } } }
        void host() { log("system failure: fork"); barrier.signal(1); pool.remove(3); }
    """
    assert not audit({"kernel.cu": cuda.encode(), "shared.cuh": b"#pragma once\n"})
    python = (
        '"""open, exec."""\nimport torch\nfrom helper import f\n\n\ndef g(x):\n    # os.system\n    return f(x).open\n'
    )
    assert not audit({"kernel.py": python.encode(), "helper.py": b"def f(x):\n    return x\n"})


def test_words_of_a_kernel_s_own_are_no_modules() -> None:
    python = """
        import operator
        import numpy as np
        import torch
        import triton.language as tl

        def f(x, module, rows):
            w = torch.signal.windows.hann(8) + torch.select(x, 0, 1) + x.select(0, 1) + torch.ops.aten.select(x, 0, 1)
            np.select([x > 0], [x])
            module.eval()
            torch.compile(module)
            kernel = operator.methodcaller("select", 0, rows)
            return kernel(w), [type(row) for row in rows], map(type, rows), module.graph.code, x.queue, x.time
    """
    assert not severe(audit({"kernel.py": textwrap.dedent(python).encode()}))


@pytest.mark.parametrize("name", sorted(p.parent.name for p in (ROOT / "solutions").glob("*/solution.json")))
def test_shipped_solutions_have_no_severe_findings(name: str) -> None:
    solution = load_solution(ROOT / "solutions" / name)
    files = {source: (solution.folder / source).read_bytes() for source in solution.manifest.sources}
    assert not severe(audited(solution.manifest, files))


@pytest.mark.parametrize(
    "name", ["forged_result", "forged_then_exit", "late_process", "late_thread", "patched_comparison", "patched_timer",
             "reads_expected_files", "reads_parent_memory"],
)  # fmt: skip
def test_known_cheats_are_found(name: str) -> None:
    assert severe(audit({"kernel.py": (wrong(name) / "kernel.py").read_bytes()}))

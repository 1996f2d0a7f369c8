"""Sources that mean harm to the machine that judges them: run all the same, told to ignore the audit, and contained."""

import json
import os
import re
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

import forked_command
import pytest
from conftest import RIGHT_DECODE, ROOT, command_lines
from gdnspec.build import machine
from gdnspec.sandbox.child import landlock, namespaces
from helpers_bundles import bundle_of, renamed
from helpers_known_bad import wrong
from patience import PATIENCE, until

pytestmark = pytest.mark.skipif(landlock.abi() < 6, reason="this Linux has no Landlock that scopes signals")
one_run = pytest.mark.xdist_group("doors")

SECRET = "hunter2"
HARMLESS = "(q, k, v, state, A_log, a, dt_bias, b, scale, use_qk_l2norm)"
MANIFEST = {
    "schema_version": 1, "name": "under_test", "language": "python", "authors": ["a test"], "license": "Apache-2.0",
    "description": "made by a test", "sources": ["kernel.py"], "deterministic": False,
    "requires": {"device": "any", "compute_capability": None, "packages": []},
    "entries": {"gdn_decode_k_last": {"entry": "kernel.py::run", "call": "return", "prepare": None, "supports": []}},
}  # fmt: skip


def taken_in(
    tmp_path: Path, code: str, *options: str, env: dict[str, str] | None = None, without: str = "", device: str = "cpu"
) -> subprocess.CompletedProcess[str]:
    """`gdnspec intake` of a bundle of that code, whatever the audit says of it."""
    folder, into = tmp_path / "under_test", tmp_path / "into"
    for path in (folder, into):
        path.mkdir(exist_ok=True)
    (folder / "kernel.py").write_text(f"{RIGHT_DECODE}\n\n{code}\n")
    (folder / "solution.json").write_text(json.dumps(MANIFEST))
    bundle = bundle_of(folder, tmp_path / "a.tar")
    words = ["intake", str(bundle), "--into", str(into), "--allow-findings", "--device", device, *options]
    environment = {**os.environ, **(env or {})}
    if without:
        return forked_command.run(
            words, {**environment, "WITHOUT": without}, script=ROOT / "tests/support/without_system_calls.py"
        )
    return forked_command.run(words, environment)


def refused(done: subprocess.CompletedProcess[str], tmp_path: Path) -> str:
    """What was said; asserts that nothing was admitted, and nothing left where it was staged."""
    assert done.returncode == 1, done.stderr + done.stdout
    assert "refused" in done.stderr
    assert "Traceback" not in done.stderr.split("File ")[0]
    assert not list((tmp_path / "into").iterdir())
    return done.stderr


# --- one solution that tries every door ---------------------------------------------------------------------------

DOORS = """
import ctypes, json, os, signal, socket, subprocess, sys
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    ctypes.set_errno(0)
    code = libc.syscall(number, *arguments)
    if code < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return code


def address(text):
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (text, 53))


TRIES = {
    "token": lambda: Path(r"@TOKEN@").read_text(),
    "home": lambda: os.listdir(r"@HOME@"),
    "into": lambda: os.listdir(r"@INTO@"),
    "shadow": lambda: Path("/etc/shadow").read_text(),
    "expected": lambda: os.listdir(r"@EXPECTED@"),
    "temporary": lambda: os.listdir("/tmp"),
    "checkout": lambda: Path(r"@ROOT@/definitions/gdn/presets.json").read_text(),
    "checkout_write": lambda: Path(r"@ROOT@/evil.txt").write_text("x"),
    "tools_write": lambda: Path(r"@ROOT@/tools/gdnspec/evil.py").write_text("x"),
    "packages_write": lambda: Path(sys.prefix, "evil.pth").write_text("x"),
    "own_source": lambda: Path(__file__).write_text("x"),
    "into_write": lambda: Path(r"@INTO@/evil").mkdir(),
    "shared_memory": lambda: Path("@LEFT@").write_text("x"),
    "tcp": lambda: socket.create_connection(("127.0.0.1", 22), 1),
    "udp": lambda: address("127.0.0.1"),
    "ipv6": lambda: socket.socket(socket.AF_INET6),
    "local": lambda: socket.socket(socket.AF_UNIX),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "io_uring": lambda: call(425, 8, ctypes.create_string_buffer(256)),
    "user_namespace": lambda: subprocess.run(["unshare", "-Ur", "true"], check=True, capture_output=True),
    "mount": lambda: subprocess.run(["mount", "-t", "tmpfs", "x", "/tmp"], check=True, capture_output=True),
    "judge_killed": lambda: os.kill(@JUDGE@, signal.SIGKILL),
    "parent_killed": lambda: os.kill(os.getppid(), signal.SIGKILL),
    "environment_of_judge": lambda: Path("/proc/@JUDGE@/environ").read_bytes(),
    "memory_of_judge": lambda: open("/proc/@JUDGE@/mem", "rb"),
    "ptrace": lambda: libc.ptrace(16, os.getppid(), 0, 0) == 0 or call(-1),
    "secrets": lambda: [v for v in os.environ.values() if "@SECRET@" in v][0],
    "keys": lambda: call(@KEYCTL@, 0, -3, 0),
    "limits_raised": lambda: __import__("resource").setrlimit(4, (1 << 40, 1 << 40)),
    "priority": lambda: os.nice(-1),
    "root_folder": lambda: os.chroot("."),
    "file_of_4_gib": lambda: os.posix_fallocate(os.open("big", os.O_CREAT | os.O_RDWR), 0, 4 << 30),
    "pair": lambda: socket.socketpair() and None,
    "scratch": lambda: Path("mine").write_text("x") and None,
    "process": lambda: subprocess.run(["true"], check=True) and None,
}


def run@HARMLESS@:
    came_through = {}
    for name, attempt in TRIES.items():
        try:
            came_through[name] = attempt() is None
        except BaseException as error:
            came_through[name] = type(error).__name__
    raise RuntimeError("TRIED " + json.dumps(came_through))
"""
ALLOWED = ("pair", "scratch", "process")  # by which one sees that the others fail for a reason
ATTEMPTS = [name for name in re.findall(r'^    "(\w+)": lambda', DOORS, re.MULTILINE) if name not in ALLOWED]
KEYCTL = {"x86_64": 250, "aarch64": 219}
OPEN_ON_A_GPU = ("local", "shared_memory")  # CUDA's own ways between processes
LEFT = Path("/dev/shm/gdnspec-evil")
ON_A_GPU, WITHOUT = "on a GPU", "without"


came_of: dict[str, dict[str, object]] = {}  # one run for all doors


@pytest.fixture(
    params=[
        "with namespaces of its own", pytest.param(WITHOUT, marks=pytest.mark.thorough),
        pytest.param(ON_A_GPU, marks=pytest.mark.gpu),
    ]
)  # fmt: skip
def how(request: pytest.FixtureRequest) -> str:
    """Where it knocks."""
    found: str = request.param
    if found not in (WITHOUT, ON_A_GPU) and not namespaces.allowed():
        pytest.skip("no user namespaces here")
    return found


@pytest.fixture
def tried(how: str, tmp_path: Path) -> dict[str, object]:
    """What came of each attempt: the name of an error, or True and False for what came through."""
    if how not in came_of:
        came_of[how] = knocked(how, tmp_path)
    return came_of[how]


def knocked(how: str, tmp_path: Path) -> dict[str, object]:
    home = tmp_path / "home"
    token = home / ".config" / "gdnspec" / "token"
    token.parent.mkdir(parents=True)
    token.write_text(SECRET)
    values = {
        "TOKEN": token, "HOME": home, "INTO": tmp_path / "into", "ROOT": ROOT, "JUDGE": os.getpid(), "SECRET": SECRET,
        "EXPECTED": Path(os.environ["GDNSPEC_CACHE"]) / "expected", "KEYCTL": KEYCTL[os.uname().machine],
        "HARMLESS": HARMLESS, "LEFT": LEFT,
    }  # fmt: skip
    code = DOORS
    for name, value in values.items():
        code = code.replace(f"@{name}@", str(value))
    env = {"HOME": str(home), "NVIDIA_API_KEY": SECRET, "CUDA_TOKEN": SECRET, "MY_TOKEN": SECRET}
    device = "cuda" if how == ON_A_GPU else "cpu"
    done = taken_in(tmp_path, code, env=env, without="unshare" if how == WITHOUT else "", device=device)
    said = refused(done, tmp_path)
    assert SECRET not in said + done.stdout
    assert "system calls filtered" in done.stdout
    assert ("own namespaces" in done.stdout) == (how not in (WITHOUT, ON_A_GPU))
    if how == ON_A_GPU:
        LEFT.unlink(missing_ok=True)
    found = re.search(r"TRIED (\{.*?\})", said)
    assert found is not None, said
    tried: dict[str, object] = json.loads(found.group(1))
    return tried


@one_run
def test_nothing_was_left_where_it_tried_to_write(tried: dict[str, object]) -> None:
    assert all(tried[name] is True for name in ALLOWED), tried
    for path in (ROOT / "evil.txt", ROOT / "tools" / "gdnspec" / "evil.py", Path(sys.prefix) / "evil.pth"):
        assert not path.exists()
    assert not LEFT.exists()


@one_run
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_a_door_is_closed(tried: dict[str, object], how: str, attempt: str) -> None:
    if how == ON_A_GPU and attempt in OPEN_ON_A_GPU:
        assert tried[attempt] is False, "no error: docs/explanation/isolation.md says that it is open"
        return
    # An error, and for the right reason: not that the attempt itself was wrong.
    expected = {"PermissionError", "OSError", "CalledProcessError", "FileNotFoundError", "ProcessLookupError"}
    expected |= {"IndexError"} if attempt == "secrets" else set()
    expected |= {"ValueError"} if attempt == "limits_raised" else set()
    assert tried[attempt] in expected


# --- more than its share ------------------------------------------------------------------------------------------

RUN = f"def run{HARMLESS}: pass\n"
FORKS = RUN + "import os\nwhile True:\n    os.fork()\n"
MEMORY = (
    RUN
    + "import mmap\nkept = []\nwhile True:\n"
    + "    kept.append(mmap.mmap(-1, 1 << 26))\n    kept[-1].write(bytes(1 << 26))\n"
)
DISK = """
import os
def run@:
    written, why = 0, ""
    block = os.urandom(1 << 20) * 64
    try:
        for i in range(64):
            with open(f"MARK-{i}", "wb") as file:
                written += file.write(block)
    except OSError as error:
        why = error.strerror
    raise RuntimeError(f"WROTE {written >> 20} {why}")
""".replace("@", HARMLESS)
NAP = f"9600.{os.getpid()}"  # seconds: of this test process, for others run the same tests meanwhile
SLEEPERS = RUN + f'import os\nwhile True:\n    os.posix_spawn("/bin/sleep", ["sleep", "{NAP}"], os.environ)\n'
OUTLIVES = f"""
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"MARK"[:15], 0, 0, 0)
        while True:
            time.sleep(0.1)
    os._exit(0)
def run{HARMLESS}:
    raise RuntimeError("STARTED")
"""


def read(file: Path) -> bytes | None:
    """Of a process that may have ended meanwhile."""
    try:
        return file.read_bytes()
    except OSError:
        return None


def alive(name: str) -> list[str]:
    """Processes of that name."""
    names = {file.parent.name: read(file) for file in Path("/proc").glob("[0-9]*/comm")}
    return [number for number, found in names.items() if found is not None and found.decode().strip() == name[:15]]


EITHER = [pytest.param("", id="namespaces"), pytest.param("unshare", id="none", marks=pytest.mark.thorough)]


@pytest.mark.parametrize("without", EITHER)
def test_forks_without_end_are_ended(tmp_path: Path, without: str) -> None:
    said = refused(taken_in(tmp_path, FORKS, "--memory", "2", without=without), tmp_path)
    assert re.search("which used more than (256 processes|2 GiB of memory)", said), said


def test_processes_are_counted_however_small_they_are(tmp_path: Path) -> None:
    said = refused(taken_in(tmp_path, SLEEPERS), tmp_path)
    assert "which used more than 256 processes" in said
    until(lambda: not any(NAP.encode() in line for line in command_lines()))  # what is killed may take a moment


def test_memory_that_no_single_process_limit_counts_is_watched(tmp_path: Path) -> None:
    said = refused(taken_in(tmp_path, MEMORY, "--memory", "1"), tmp_path)
    assert "which used more than 1 GiB of memory" in said


def test_a_disk_cannot_be_filled(tmp_path: Path) -> None:
    mark = f"filled-{os.getpid()}"
    said = refused(taken_in(tmp_path, DISK.replace("MARK", mark), "--disk", "0.25"), tmp_path)
    assert re.search(r"WROTE \d+ No space left on device|which used more than 0.25 GiB on disk", said), said
    for folder in {Path(tempfile.gettempdir()), tmp_path}:
        # Not Path.glob, which fails where another test's folder goes while it looks.
        assert not [*glob(f"{folder}/gdnspec-*/{mark}-*"), *glob(f"{folder}/gdnspec-*/*/{mark}-*")], "nothing is left"  # noqa: PTH207


@pytest.mark.parametrize("without", EITHER)
def test_what_would_outlive_the_job_is_gone_with_it(tmp_path: Path, without: str) -> None:
    mark = f"outlived-{os.getpid()}"  # of this test process: another runs the other case meanwhile
    said = refused(taken_in(tmp_path, OUTLIVES.replace("MARK", mark), without=without), tmp_path)
    assert "STARTED" in said
    until(lambda: not alive(mark))  # for it would go on for ever; what is killed may take a moment


def test_a_job_that_does_not_end_is_ended(tmp_path: Path) -> None:
    said = refused(taken_in(tmp_path, RUN + "while True: pass", "--minutes", "0.05"), tmp_path)
    assert "which used more than 3 s" in said


def test_a_forged_result_is_found_out(tmp_path: Path) -> None:
    known_bad = (wrong("forged_then_exit") / "kernel.py").read_text()
    code = (
        known_bad + "\n\nsigned = run\ndef run(**inputs):\n    return signed(output=None, new_state=None, **inputs)\n"
    )
    done = taken_in(tmp_path, code)
    said = refused(done, tmp_path)
    assert "PASSED " not in done.stdout.replace("passed", "")
    assert re.search("INCORRECT|NON_FINITE|PROTOCOL_ERROR|RUNTIME_ERROR", said)


# --- what builds in it ----------------------------------------------------------------------------------------------

FEW = ["batch_size == 1 and num_v_heads <= 8"]


@pytest.mark.gpu
def test_a_cuda_kernel_is_built_and_passes(tmp_path: Path) -> None:
    """nvcc, its helpers, ninja and the linker work behind the same walls as what they build."""
    into = tmp_path / "into"
    into.mkdir()
    folder = renamed(ROOT / "solutions" / "cuda_recurrent", tmp_path / "my_cuda", FEW)
    bundle = bundle_of(folder, tmp_path / "a.tar")
    words = ["intake", str(bundle), "--into", str(into), "--device", "cuda", "--no-bench"]
    done = forked_command.run(words, dict(os.environ))
    assert done.returncode == 0, done.stderr + done.stdout
    assert "system calls filtered" in done.stdout
    assert re.search(r"my_cuda +PASSED", done.stdout)
    assert [path.name for path in into.iterdir()] == ["my_cuda"]


BUILD = """
import os, sys
from pathlib import Path

from gdnspec.sandbox.parent.confinement import Confinement
from gdnspec.sandbox.child.isolation import shut_in

folder, work = map(Path, sys.argv[1:])
confined = Confinement().to_json()
hello = {"folder": str(folder), "device": "cuda", "scratch": str(work), "build_dir": str(work),
         "secret": "/nowhere", "confined": confined}
print(shut_in(hello, lambda: None))
import tvm_ffi.cpp
from gdnspec.build.loader import CUDA_FLAGS, _cudart_folders
os.environ["TVM_FFI_CUDA_ARCH_LIST"] = "9.0a"
tvm_ffi.cpp.build(name="built", cuda_files=[str(folder / "kernel.cu")], extra_cuda_cflags=CUDA_FLAGS,
                  extra_ldflags=_cudart_folders(), build_directory=str(work / "kernel"))
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.skipif(machine.nvcc() is None, reason="needs nvcc")
def test_a_cuda_kernel_is_built_behind_the_walls_of_a_gpu(tmp_path: Path) -> None:
    """As above, without the GPU."""
    work = tmp_path / "work"
    work.mkdir()
    script = tmp_path / "script" / "build.py"
    script.parent.mkdir()
    script.write_text(BUILD)
    command = [sys.executable, "-P", str(script), str(ROOT / "solutions" / "cuda_recurrent"), str(work)]
    environment = {**os.environ, "HOME": str(work), "TMPDIR": str(work)}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "system calls filtered', missing=''" in done.stdout
    assert (work / "kernel" / "built.so").stat().st_size > 0


# --- where the kernel offers less ---------------------------------------------------------------------------------

NO_LANDLOCK = "landlock_create_ruleset=444"


def test_without_landlock_nothing_runs_but_what_is_trusted(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    done = taken_in(tmp_path, f"{RUN}open({str(ran)!r}, 'w')", without=NO_LANDLOCK)
    assert done.returncode == 3
    assert "isolation is reduced here: files: none" in done.stderr
    assert "--trusted" in done.stderr
    assert not ran.exists()
    assert not list((tmp_path / "into").iterdir())

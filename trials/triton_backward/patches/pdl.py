import re, sys
root = sys.argv[1]
def sub(f, pairs):
    s = open(f"{root}/{f}").read()
    for a, b, n in pairs:
        assert s.count(a) == n, (f, a, s.count(a))
        s = s.replace(a, b)
    open(f"{root}/{f}", "w").write(s)
open(f"{root}/early.py", "w").write('''"""Kernels that may start before the one ahead of them in a stream has ended (programmatic dependent launch, sm_90)."""

import triton
import triton.language as tl


@triton.jit
def after_others(EARLY: tl.constexpr):
    """To be called before anything else. EARLY: waits until the kernel ahead is done and what it wrote can be seen. That
    one has waited too, so all kernels ahead are done. Then the next one may take up what this one leaves idle."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
''')
kernels = {"prepare.py": ["prepare_kernel"], "walks.py": ["forward_kernel", "backward_kernel"], "scan.py": ["scan_kernel"],
           "within.py": ["within_kernel"], "gradients.py": ["gradients_kernel", "shared_kernel"], "gates.py": ["gates_kernel", "steep_kernel"]}
for f, names in kernels.items():
    s = open(f"{root}/{f}").read()
    for n in names:
        m = re.search(rf"def {n}\((.*?)\n\):(  # fmt: skip)?\n", s, re.S)
        head, rest = s[:m.end()], s[m.end():]
        new = m[0].replace("\n):", "\n    EARLY: tl.constexpr = False,\n):")
        head = head[:m.start()] + new
        d = re.match(r'    """.*?"""\n', rest, re.S)
        at = d.end() if d else 0
        s = head + rest[:at] + "    after_others(EARLY)\n" + rest[at:]
    lines = s.split("\n")
    i = next(i for i, l in enumerate(lines) if l.startswith("from ") )
    imports = [j for j, l in enumerate(lines) if l.startswith("from ")]
    k = next((j for j in imports if lines[j] > "from early"), imports[-1] + 1)
    lines.insert(k, "from early import after_others")
    open(f"{root}/{f}", "w").write("\n".join(lines))
sub("cut.py", [('def launch(warps: int, registers: int) -> dict[str, int]:\n    """Options of a launch. Only Triton\'s CUDA backend knows of a limit of registers."""',
 'def launch(warps: int, registers: int, early: bool = False) -> dict[str, int]:\n    """Options of a launch. Only Triton\'s CUDA backend knows of a limit of registers. early: it may start before the kernel\n    ahead of it is done (early.py)."""', 1),
 ('    return {"num_warps": warps} | limit\n', '    return {"num_warps": warps} | limit | ({"EARLY": True, "launch_pdl": True} if early else {})\n\n\ndef may_be_early(device: torch.device) -> bool:\n    """Whether kernels there may start before the one ahead of them is done."""\n    if INTERPRETED or torch.version.hip:\n        return False\n    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (9, 0)\n', 1)])
s = open(f"{root}/kernel.py").read()
s = s.replace("**launch(warps, registers)", "**launch(warps, registers, x.early)").replace("**launch(4, 0)", "**launch(4, 0, x.early)").replace("**launch(1, 0)", "**launch(1, 0, x.early)").replace("**launch(warps, 0)", "**launch(warps, 0, x.early)")
s = s.replace('''    @property
    def lost(self) -> bool:''', '''    @property
    def early(self) -> bool:
        """In one stream alone: what goes from one to another is an event, which the next kernel has to wait for."""
        return not (self.way.beside or self.way.aside) and may_be_early(self.q.device)

    @property
    def lost(self) -> bool:''')
s = s.replace("    long,\n", "    long,\n    may_be_early,\n")
open(f"{root}/kernel.py", "w").write(s)

"""Compiles triton_backward for sm_90, without a GPU: the arguments are a folder for builds, an entry's name, the head
size, and the numbers of query, key and value heads.

It prints, of each kernel, its warps, how many of its wgmma instructions take their left operand from registers, and how
many from shared memory.
"""

import json
import re
import sys
from pathlib import Path

from backward_arguments import MAKERS, arguments
from gdnspec.build.dry import intercept_launches
from gdnspec.build.loader import load_function

FOLDER = Path(__file__).resolve().parents[3] / "solutions/triton_backward"
WGMMA = re.compile(r"wgmma\.mma_async[^{;]*\{[^}]*\},\s*(\{?)")  # behind the results: a list of registers, or one


def main() -> None:
    build, name, (D, *heads) = Path(sys.argv[1]), sys.argv[2], map(int, sys.argv[3:])
    make = MAKERS.get(name, arguments)
    launches = intercept_launches()
    entry = load_function(FOLDER, f"kernel.py::{name}", build)
    entry(**make(D=D, T=1000, heads=tuple(heads), device="meta"))
    found = {}
    for launch in launches:
        lists = WGMMA.findall(launch.kernel.asm["ptx"])
        metadata = launch.kernel.metadata
        counts = {"from registers": lists.count("{"), "from shared memory": lists.count("")}
        found[metadata.name] = {"warps": metadata.num_warps} | counts
    print(json.dumps(found))


main()

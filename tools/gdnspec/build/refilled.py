"""Finds places in shared memory that a loop fills again while a product still reads them.

Triton loads tiles of later turns of a loop ahead, into a ring of places, and lets products of a turn (wgmma, on
Hopper) run on into the next one. A place that such a product reads must not be the one that the same turn fills: the
ring needs one place more than turns are loaded ahead. Triton 3.6 forgets that place for a tile that is also taken into
registers, by a sum perhaps. The product then reads a mixture of two tiles, sometimes. Triton's interpreter does not
show it.

Such a loop is to be written with `tl.range(.., num_stages=1)`.
"""

import re
from dataclasses import dataclass, field

# Names of Triton's GPU dialect, as `kernel.asm["ttgir"]` prints it.
BEGIN = re.compile(r"^( *)(?:%.* = )?scf\.for ")
RING = re.compile(r"(%[\w#]+) = ttg\.local_alloc : \(\) -> !ttg\.memdesc<(\d+)x")
PART = re.compile(r"(%[\w#]+) = ttg\.memdesc_(?:index|trans) (%[\w#]+)")
COPY = re.compile(r"(?:ttg\.async_copy_global_to_local [^,]+,|ttng\.async_tma_copy_global_to_local \S+) (%[\w#]+)")
PRODUCT = re.compile(r"ttng\.warp_group_dot (%[\w#]+), (%[\w#]+),.*isAsync = true")
WAIT = re.compile(r"( *)(?:%.* = )?ttng\.warp_group_dot_wait .*pendings = (\d+)")


@dataclass
class _Loop:
    indent: str
    ahead: dict[str, int]  # by ring: how often it was filled before the loop
    filled: set[str] = field(default_factory=set)  # in the loop
    under_way: list[set[str]] = field(default_factory=list)  # what products read that no wait has ended
    met: set[str] = field(default_factory=set)  # what was filled meanwhile


def refilled(ttgir: str) -> list[str]:
    """The rings, by their names in a kernel's TTGIR, that have too few places: empty for a kernel that is right."""
    places: dict[str, int] = {}
    ahead: dict[str, int] = {}
    ring_of: dict[str, str] = {}
    loops: list[_Loop] = []
    found: list[str] = []
    # A name may come again in another loop: so each line is read with what the lines before it say.
    for line in ttgir.splitlines():
        if begin := BEGIN.match(line):
            loops.append(_Loop(begin[1], dict(ahead)))
        elif loops and line.startswith(loops[-1].indent + "}"):
            found += [ring for ring in _too_few(loops.pop(), places) if ring not in found]
        elif ring := RING.search(line):
            places[ring[1]], ahead[ring[1]], ring_of[ring[1]] = int(ring[2]), 0, ring[1]
        elif part := PART.search(line):
            ring_of[part[1]] = ring_of.get(part[2], part[2])
        elif copy := COPY.search(line):
            name = ring_of.get(copy[1], "")
            ahead[name] = ahead.get(name, 0) + 1
            for loop in loops:
                loop.filled.add(name)
                loop.met |= {name} & set().union(*loop.under_way)
        elif loops and (product := PRODUCT.search(line)):
            loops[-1].under_way.append({ring_of.get(product[at], "") for at in (1, 2)})
        elif loops and (wait := WAIT.match(line)) and wait[1] == loops[-1].indent + "  ":  # one in a branch may not run
            loops[-1].under_way = loops[-1].under_way[-int(wait[2]) :] if int(wait[2]) else []
    return found


def _too_few(loop: _Loop, places: dict[str, int]) -> list[str]:
    read = (set().union(*loop.under_way) & loop.filled | loop.met) & places.keys()
    return sorted(ring for ring in read if places[ring] <= loop.ahead.get(ring, 0))

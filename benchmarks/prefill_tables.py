"""What prefill_rows.py has measured, as a table for each device and a summary for each group of rows. Needs no GPU."""

import math
import statistics
from collections.abc import Iterable

from prefill_shapes import Row, rows
from row_files import Record, made_with, said_with

KEYS = ("device", "group", "row", "bound", "us", "peers")  # that a table needs


def record(row: Row, device: str, least: float, us: dict[str, tuple[float, str]], peers: list[str]) -> Record:
    """The first name in `us` is that of the solution which the others are compared with."""
    return {"device": device, "group": row.group, "row": row.name, "heads": row.heads, "lengths": row.lengths,
            "head_size": row.head_size, "bound": least, "us": us, "peers": peers, **made_with()}  # fmt: skip


def ratio(found: Record) -> float:
    """The best peer's time over that of the first solution; NaN where either has none."""
    mine, *_ = found["us"].values()
    times = [found["us"][peer][0] for peer in found["peers"] if peer in found["us"]]
    return min((time for time in times if not math.isnan(time)), default=math.nan) / mine[0]


def share(found: Record) -> float:
    mine, *_ = found["us"].values()
    return float(found["bound"] / mine[0])


def head(names: Iterable[str]) -> str:
    return f"{'':24}{'bound':>7}" + "".join(f"{name[-16:]:>17}" for name in names) + f"{'peer':>7}{'share':>7}"


def line(found: Record) -> str:
    cells = "".join(f"{us:>15.1f}{said[:2]:2}" for us, said in found["us"].values())
    return f"{found['row']:24}{found['bound']:7.0f}{cells}{ratio(found):7.2f}{share(found):7.0%}"


def summary(records: list[Record], device: str) -> list[str]:
    """A line for each group that there is, measured or not."""
    said = []
    for group in dict.fromkeys(row.group for row in rows()):
        of_group = [row.name for row in rows() if row.group == group]
        own = [found for found in records if found["device"] == device and found["row"] in of_group]
        text = f"{device}, {group}: {len(own)} of {len(of_group)} rows"
        compared = {found["row"]: ratio(found) for found in own if not math.isnan(ratio(found))}
        if compared:
            least = min(compared, key=lambda name: compared[name])
            mean = statistics.geometric_mean(compared.values())
            text += (
                f"; best peer / this {mean:.3f} (geometric mean of {len(compared)}), {compared[least]:.3f} ({least})"
            )
        shares = [share(found) for found in own if not math.isnan(share(found))]
        if shares:
            text += f"; {statistics.geometric_mean(shares):.1%} of the bound"
        said.append(text)
    return said


def tables(records: list[Record]) -> str:
    """One for each device; of a row that was measured there more than once, the last time."""
    text = []
    for device in dict.fromkeys(found["device"] for found in records):
        last = {found["row"]: found for found in records if found["device"] == device}
        own = [last[row.name] for row in rows() if row.name in last]
        before = None
        for found in own:
            if before != (before := (list(found["us"]), said_with(found))):  # others from here on
                text += [device, *filter(None, before[1:]), "", head(before[0])]
            text.append(line(found))
        text += ["", *summary(own, device), ""]
    return "\n".join(text)

"""Make samples/*: small request logs in each public format, drawn from published statistics. Nothing in them is real.

    python tools/make_sample_logs.py [--out samples]

Lengths are lognormal with the medians or means that are cited below, arrivals Poisson at the rate of the real log. The
same bytes on any machine.
"""

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from gdnspec.inputs.random import Stream

ROWS = 400


@dataclass(frozen=True)
class Source:
    """`rate` in requests a second; `prompt` and `output` as (median, sigma) of a lognormal, in tokens."""

    name: str
    rate: float
    prompt: tuple[float, float]
    output: tuple[float, float]


def of_mean(mean: float, sigma: float) -> tuple[float, float]:
    """The median of a lognormal with this mean, and its sigma."""
    return mean / math.exp(sigma * sigma / 2), sigma


# Patel et al., "Splitwise" (ISCA 2024), section III: medians of 1,020 and 129 tokens in conversation; the published
# trace of that hour has 19,366 requests. The spread is ours.
AZURE = Source("azure", 19_366 / 3600, (1020, 1.0), (129, 0.8))
# Qin et al., "Mooncake" (arXiv 2407.00079), section 4: means of 7,590 and 182 tokens, blocks of 512; the published
# trace has 23,608 requests in an hour. How often prefixes are shared is ours.
MOONCAKE = Source("mooncake", 23_608 / 3600, of_mean(7590, 1.1), of_mean(182, 1.0))
# Wang et al., "BurstGPT" (arXiv 2401.17644): 1,429,700 requests in the first 61 days, 25,400 of them failed (README of
# the data set). Lengths are near those of the rows that its page shows.
BURSTGPT = Source("burstgpt", 1_429_700 / (61 * 86_400), (600, 1.1), (280, 0.8))
FAILED = 25_400 / 1_429_700

SESSIONS = 12  # of the Mooncake log: conversations that grow, each upon what was said before
BLOCK = 512


class Drawn:
    """The rows of one log."""

    def __init__(self, source: Source) -> None:
        stream = Stream(7, f"sample log {source.name}")
        self.arrivals = np.cumsum(-np.log(stream.uniform(ROWS)) / source.rate).tolist()
        self.prompts, self.outputs = (
            [max(1, round(float(x))) for x in median * np.exp(sigma * stream.normal(ROWS))]
            for median, sigma in (source.prompt, source.output)
        )
        self.uniform = stream.uniform(ROWS).tolist()
        self.picks = [int(x) for x in stream.raw(ROWS) % np.uint64(SESSIONS)]


def azure() -> Iterator[str]:
    yield "TIMESTAMP,ContextTokens,GeneratedTokens"
    drawn = Drawn(AZURE)
    start = datetime(2023, 11, 16, 18, 15, 46)
    for arrival, prompt, output in zip(drawn.arrivals, drawn.prompts, drawn.outputs, strict=True):
        moment = start + timedelta(microseconds=round(arrival * 1e6))
        yield f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{prompt},{output}"


def mooncake() -> Iterator[str]:
    """Every other request goes on with one of a few conversations: its leading blocks are theirs."""
    drawn = Drawn(MOONCAKE)
    sessions: list[list[int]] = [[] for _ in range(SESSIONS)]
    fresh = 0
    for i in range(ROWS):
        prompt = min(drawn.prompts[i], 126_000)
        blocks = -(-prompt // BLOCK)
        shared = sessions[drawn.picks[i]][: max(0, blocks - 1)] if drawn.uniform[i] < 0.5 else []
        names = [*shared, *range(fresh, fresh + blocks - len(shared))]
        fresh += blocks - len(shared)
        sessions[drawn.picks[i]] = names[: prompt // BLOCK]
        row = {"timestamp": round(drawn.arrivals[i] * 1000), "input_length": prompt,
               "output_length": drawn.outputs[i], "hash_ids": names}  # fmt: skip
        yield json.dumps(row)


def burstgpt() -> Iterator[str]:
    yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    drawn = Drawn(BURSTGPT)
    for i in range(ROWS):
        prompt, output = drawn.prompts[i], drawn.outputs[i]
        if drawn.uniform[i] < FAILED:
            prompt = output = 0
        model = "GPT-4" if drawn.picks[i] == 0 else "ChatGPT"
        log = "API log" if drawn.picks[i] % 2 else "Conversation log"
        yield f"{round(drawn.arrivals[i])},{model},{prompt},{output},{prompt + output},{log}"


def plain() -> Iterator[str]:
    """As the Azure log, with columns of our own names."""
    yield "arrival,prompt_tokens,output_tokens"
    drawn = Drawn(Source("csv", AZURE.rate, AZURE.prompt, AZURE.output))
    for arrival, prompt, output in zip(drawn.arrivals, drawn.prompts, drawn.outputs, strict=True):
        yield f"{arrival:.3f},{prompt},{output}"


FILES = {
    "synthetic_azure.csv": azure, "synthetic_mooncake.jsonl": mooncake, "synthetic_burstgpt.csv": burstgpt,
    "synthetic_plain.csv": plain,
}  # fmt: skip


def main() -> None:
    """Write the logs below --out."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "samples")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in FILES.items():
        (out / name).write_text("".join(f"{row}\n" for row in rows()), encoding="utf-8")
        print(f"{out / name}  {(out / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()

"""How readable Markdown is: words per sentence, long sentences, figures, and phrases to avoid.

python tools/prose.py [-v] README.md docs    # files or folders; exit code 1 if a file is over a limit

Only sentences count: no code, tables, headings, images or link targets. LOG.md and CHANGELOG.md are left out, and so
are files of less than 80 words.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_WORDS = 20.0  # of a sentence, on average
LONG, MOST_LONG = 30, 0.10  # words of a long sentence; the share of sentences that may be long
MOST_FIGURES = 6.0  # per 100 words
FEWEST_WORDS = 80
PASSED_OVER = {"LOG.md", "CHANGELOG.md"}

WITH_WHICH = r"(?:of|by|from|with|in) (?:which|whose|whom)"
START = r"(?:^|[.!?] )"
AVOID = {
    "'of which' or 'of whose' without its noun": rf"\b{WITH_WHICH}\b[^.?!]{{0,40}}\b{WITH_WHICH}\b",
    "'for' in place of 'instead of' or 'down from'": r"\b\d[\d.,]* ?(?:us|ms|s|%|KiB|MB|GB)? for \d",
    "'who' of code": r"\b(?:kernel|warp|block|thread|solution|function|file)s?,? (?:who|whom|whose)\b",
    "'is to be had' and the like": r"\b(?:is|are) to be (?:had|found|seen|got)\b",
    "a sentence that begins with 'Of'": START + r"Of (?:a|an|the|what|those|these|it|one|its)\b",
    "'as it is' and the like": r"\bas (?:it|they) (?:is|are|lie|lies|comes|come)\b",
    "'What is .. is ..'": START + r"What (?:is|was|has|are) [^.]{0,60}\b(?:is|are|was) ",
}


@dataclass(frozen=True)
class Measure:
    words: int
    mean: float
    long: float
    figures: float
    avoided: list[tuple[str, str]]  # why, and the words
    longest: list[str]

    @property
    def over(self) -> bool:
        return self.mean > MOST_WORDS or self.long > MOST_LONG or self.figures > MOST_FIGURES


def sentences(markdown: str) -> Iterator[str]:
    """Those of three words or more. Each item of a list is a paragraph of its own."""
    text = re.sub(r"```.*?```", "\n\n", markdown, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", " ", text)
    lines = []
    for line in text.splitlines():
        skipped = re.match(r"\s*(\||#|[-=]{3,}$|!\[)", line)
        lines.append("" if skipped else re.sub(r"^\s*(?:[-*+]|\d+\.)\s+", "\n", line))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", "\n".join(lines))
    text = re.sub(r"`[^`]*`", "CODE", text)
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'(*])", " ".join(paragraph.split())):
            if len(sentence.split()) >= 3:
                yield sentence


def measure(markdown: str) -> Measure | None:
    """None for a text that is too short."""
    said = list(sentences(markdown))
    lengths = [len(sentence.split()) for sentence in said]
    words = sum(lengths)
    if words < FEWEST_WORDS:
        return None
    figures = sum(len(re.findall(r"(?<![\w.])\d[\d.,e+-]*", sentence)) for sentence in said)
    return Measure(
        words,
        words / len(said),
        sum(length > LONG for length in lengths) / len(said),
        100 * figures / words,
        [(why, found[0]) for s in said for why, pattern in AVOID.items() for found in re.finditer(pattern, s)],
        sorted(said, key=lambda sentence: -len(sentence.split()))[:3],
    )


def files(names: list[Path]) -> Iterator[Path]:
    """Folders with a dot are left out."""
    for name in names:
        for file in sorted(name.rglob("*.md")) if name.is_dir() else [name]:
            hidden = any(part.startswith(".") and part not in (".", "..") for part in file.parts[:-1])
            if file.name not in PASSED_OVER and not hidden:
                yield file


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how readable Markdown is.")
    parser.add_argument("-v", action="store_true", dest="verbose", help="show phrases and the longest sentences")
    parser.add_argument("names", nargs="+", type=Path, metavar="FILE_OR_FOLDER")
    asked = parser.parse_args()
    print(f"{'file':58s} {'words':>6s} {'mean':>5s} {'long':>5s} {'fig.':>5s} {'avoid':>5s}")
    over = []
    for file in files(asked.names):
        found = measure(file.read_text(encoding="utf-8"))
        if found is None:
            continue
        over += [str(file)] if found.over else []
        figures = f"{found.words:6d} {found.mean:5.1f} {found.long:5.0%} {found.figures:5.1f} {len(found.avoided):5d}"
        print(f"{str(file)[-58:]:58s} {figures}{'  <- over' if found.over else ''}")
        if asked.verbose:
            for why, words in found.avoided[:8]:
                print(f"      {why}: {words.strip()[:90]}")
            for sentence in found.longest:
                print(f"      {len(sentence.split())} words: {sentence[:160]}")
    if over:
        print(
            f"over a limit ({MOST_WORDS:g} words per sentence, {MOST_LONG:.0%} of sentences over {LONG} words, "
            f"{MOST_FIGURES:g} figures per 100 words): {', '.join(over)}; next: python tools/prose.py -v {over[0]}",
            file=sys.stderr,
        )
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())

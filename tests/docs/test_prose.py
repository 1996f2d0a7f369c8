"""The measure of prose: what counts as a sentence, and its limits."""

import subprocess
import sys

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import prose

SHORT = "The judge copies the outputs as soon as the call returns. "
MARKDOWN = """# A heading does not count.

The first sentence has six words. The second one, `with some code`, has [seven
words](a/target/that/does/not/count.md).

| a table | does not count at all |
|---|---|

- An item is a sentence, even without an end
- so is the next one

```
Code does not count. It may have any number of words.
```
"""


def test_sentences_are_those_that_a_reader_reads() -> None:
    assert list(prose.sentences(MARKDOWN)) == [
        "The first sentence has six words.",
        "The second one, CODE, has seven words.",
        "An item is a sentence, even without an end",
        "so is the next one",
    ]


def test_a_short_text_is_not_measured() -> None:
    assert prose.measure(SHORT * 7) is None
    assert prose.measure(SHORT * 8) is not None


@pytest.mark.parametrize(
    ("text", "over"),
    [
        (SHORT * 20, False),
        ("One two three four five six seven " * 3 + "end. " + SHORT * 19, False),
        (("word " * 21 + "end. ").capitalize() * 10, True),  # 22 words on average
        ((("word " * 30 + "end. ").capitalize() + SHORT * 7) * 3, True),  # one sentence of eight is long
        ((("word " * 30 + "end. ").capitalize() + SHORT * 9) * 3, False),  # one of ten
        ((SHORT + "It took 323 us. ") * 10, True),  # 1 figure in 15 words
        ((SHORT + "It took 323 us and no more than this. ") * 10, False),  # 1 in 20
    ],
)
def test_a_page_over_a_limit(text: str, over: bool) -> None:
    found = prose.measure(text)
    assert found is not None
    assert found.over is over, found


@pytest.mark.parametrize(
    "sentence",
    [
        "We saw 323 us for 374 us.",
        "The kernel who writes late is found out.",
        "Three scaffolds are to be had.",
        "Of the kernels two pass.",
        "The state stays as it is.",
        "What is missed is missed by the design.",
    ],
)
def test_a_phrase_to_avoid(sentence: str) -> None:
    found = prose.measure(SHORT * 8 + sentence)
    assert found is not None
    assert len(found.avoided) == 1


def test_the_exit_code_says_whether_a_page_is_over(tmp_path) -> None:  # type: ignore[no-untyped-def]
    page, log = tmp_path / "page.md", tmp_path / "LOG.md"
    page.write_text(SHORT * 10)
    log.write_text(("word " * 40 + "end. ") * 10)
    command = [sys.executable, str(ROOT / "tools/prose.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "LOG.md" not in done.stdout
    page.write_text(("word " * 40 + "end. ") * 10)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "over a limit" in done.stderr
    assert str(page) in done.stderr

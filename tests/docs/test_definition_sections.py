"""The section of a family's page that is about a definition, wherever it stands on the page."""

from dataclasses import replace
from pathlib import Path

import pytest
from docs.definition_pages import section
from gdnspec.catalog.definitions import definition

PAGE = """# A family

### gdn_prefill_k_last

    S = S + u k^T

## 2. More

### gdn_decode_k_last and its like

    o = S q
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gdn_prefill_k_last", "S = S + u k^T"),
        ("gdn_decode_k_last", "o = S q"),
        ("gdn_decode_k_last_bf16_state", "o = S q"),
    ],
)
def test_a_section_is_found_between_others_and_at_the_end(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "README.md").write_text(PAGE)
    found = definition(name)
    assert section(replace(found, family=replace(found.family, folder=tmp_path)))[1] == text

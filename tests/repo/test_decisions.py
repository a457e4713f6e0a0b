"""Decisions are cited by their number, so a number is used once, in the name and in the title."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = sorted((Path(__file__).parents[2] / "docs" / "decisions").glob("*.md"))


def test_no_two_decisions_share_a_number() -> None:
    numbers = [file.name[:3] for file in DECISIONS]
    assert all(number.isdecimal() for number in numbers)
    assert [one for one in set(numbers) if numbers.count(one) > 1] == []


def test_a_decision_has_the_number_of_its_file_in_its_title() -> None:
    for file in DECISIONS:
        title = file.read_text(encoding="utf-8").splitlines()[0]
        assert re.match(rf"# {file.name[:3]}[.:]? \S", title), file.name

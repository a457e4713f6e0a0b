"""A folder to call ``lev`` in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lev_commands import Place

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    """A home that does not exist yet beside an agent of one stage."""
    return Place(tmp_path, capsys)

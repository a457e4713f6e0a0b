"""Results that a tool of one's own made wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from leviath.engine.tools import ToolCall, ToolResult, tool


@pytest.mark.parametrize(
    "fields", [{"modified": None}, {"is_error": object()}, {"text": 5}, {"spill": 1}]
)
def test_a_result_with_a_field_of_wrong_type_names_the_tool(
    make_call: Callable[..., ToolCall], fields: dict[str, Any]
) -> None:
    @tool
    def odd() -> ToolResult:
        values: dict[str, Any] = {"text": "x", **fields}
        return ToolResult(**values)

    result = odd.call_sync(make_call(), {})
    assert result.is_error
    assert result.text == "tool odd returned a ToolResult with a field of wrong type"

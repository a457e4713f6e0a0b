"""Tools made of functions: their schemas, their arguments, and what a call can end with."""

import enum
import functools
import json
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from leviath.components.errors import ConfigError, ToolError
from leviath.engine.limits import TOOL_DEADLINE_MS, TOOL_RESULT_INLINE_BYTES_MAX
from leviath.engine.tools import (
    MayHaveHappened,
    Tool,
    ToolCall,
    ToolResult,
    apply_result_limits,
    as_tool,
    builtin_tools,
    tool,
)

CALL = ToolCall(
    run_id="r1",
    call_id="c1",
    tool="sample",
    attempt=1,
    idempotency_key="r1-1",
    deadline_ms=1000,
    workdir="/nowhere",
    spill_dir="/nowhere/run/spill",
)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place on the map."""

    x: int
    y: int = 0


class Options(TypedDict, total=False):
    deep: bool


class Query(msgspec.Struct):
    words: list[str]
    near: Point | None = None


def everything(
    text: Annotated[str, "What to look at."],
    call: ToolCall,
    number: Annotated[int, msgspec.Meta(ge=1)],
    ratio: float,
    colour: Colour,
    mode: Literal["fast", "slow"],
    query: Query,
    options: Options | None = None,
    tags: list[str] | None = None,
    sizes: dict[str, int] | None = None,
    limit: int = 10,
    *,
    flag: bool = False,
) -> str:
    """Use each kind of parameter.

    Over several lines.
    """
    return (
        f"{text} {number} {ratio} {colour.name} {mode} {query.near} {options} {limit} {call.run_id}"
    )


def run(made: Tool, arguments: Mapping[str, object], call: ToolCall = CALL) -> ToolResult:
    """One call, as a host makes it."""
    if made.is_async:
        return trio.run(made.call, call, arguments)
    return made.call_sync(call, arguments)


async def run_in_trio(made: Tool) -> ToolResult:
    return await made.call(CALL, {})


def test_schema_comes_from_the_signature() -> None:
    made = tool(everything)
    properties = made.schema["properties"]
    assert list(properties) == [
        "text", "number", "ratio", "colour", "mode", "query", "options", "tags", "sizes", "limit",
        "flag",
    ]  # fmt: skip
    assert made.schema["required"] == ["text", "number", "ratio", "colour", "mode", "query"]
    assert made.schema["additionalProperties"] is False
    assert properties["text"] == {"type": "string", "description": "What to look at."}
    assert properties["number"] == {"type": "integer", "minimum": 1}
    assert properties["limit"] == {"type": "integer", "default": 10}
    assert properties["mode"] == {"enum": ["fast", "slow"]}
    assert made.schema["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert made.schema["$defs"]["Point"]["description"] == "A place on the map."
    assert made.description == "Use each kind of parameter.\n\nOver several lines."
    assert (made.name, made.effect, made.deadline_ms) == ("everything", "once", TOOL_DEADLINE_MS)


def test_canonical_schema_text_has_sorted_keys_and_no_blanks() -> None:
    made = tool(everything)
    text = json.dumps(made.schema, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert made.schema_json == text


def test_a_type_named_like_ours_is_told_apart() -> None:
    other = msgspec.defstruct("Arguments", [("x", int)])

    def sample(value: object) -> None: ...

    sample.__annotations__["value"] = other
    made = tool(sample)
    assert list(made.schema["properties"]) == ["value"]
    assert len(made.schema["$defs"]) == 1


def test_arguments_become_python_values() -> None:
    arguments = {
        "text": "a", "number": 2, "ratio": 1, "colour": "red", "mode": "fast",
        "query": {"words": ["w"], "near": {"x": 3}}, "options": {"deep": True},
    }  # fmt: skip
    result = run(tool(everything), arguments)
    assert result == ToolResult(text="a 2 1.0 RED fast Point(x=3, y=0) {'deep': True} 10 r1")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "missing required field `a`"),
        ({"a": "1"}, "Expected `int`, got `str` - at `$.a`"),
        ({"a": True}, "Expected `int`, got `bool` - at `$.a`"),
        ({"a": 1, "call": {}}, "unknown field `call`"),
        ({"a": 1, "b": [1, "x"]}, "`$.b[1]`"),
        ({"a": 1, "\ud83d": 1}, "cannot be read"),
    ],
)
def test_bad_arguments_tell_the_model_which_and_run_nothing(
    arguments: dict[str, object], says: str
) -> None:
    ran: list[int] = []

    @tool
    def sample(a: int, call: ToolCall, b: list[int] | None = None) -> None:
        ran.append(a)

    result = run(sample, arguments)
    assert result.is_error
    assert says in result.text
    assert result.text.startswith("bad arguments for sample: ")
    assert ran == []


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, by: int) -> int:
        """Add to the total."""
        self.total += by
        return self.total

    async def __call__(self, by: int = 1) -> int:
        await trio.lowlevel.checkpoint()
        return self.add(by)


def test_methods_instances_and_partials_are_tools() -> None:
    counter = Counter()
    assert run(tool(counter.add), {"by": 2}).text == "2"
    instance = as_tool(counter)
    assert (instance.name, instance.is_async, instance.description) == ("counter", True, "Counts.")
    assert run(instance, {}).text == "3"
    fixed = tool(functools.partial(counter.add, by=5))
    assert run(fixed, {}).text == "8"
    assert (fixed.name, fixed.description) == ("add", "Add to the total.")


def test_a_decorated_function_is_still_a_function() -> None:
    @tool(effect="pure", name="twice", description="Double it.", deadline_ms=5)
    def double(a: int) -> int:
        return 2 * a

    assert double(3) == 6
    assert as_tool(double) is double
    assert (double.name, double.effect, double.deadline_ms) == ("twice", "pure", 5)
    assert double.description == "Double it."
    assert repr(double) == "<FunctionTool twice pure>"


def star(*args: int) -> None: ...


def stars(**kwargs: int) -> None: ...


def positional(a: int, /) -> None: ...


def bare(a: int) -> None: ...


def odd(a: complex) -> None: ...


def lost(a: int) -> None: ...


async def stream(a: int) -> AsyncIterator[int]:
    yield a


# As if written without an annotation, and with the name of a type that the module does not have.
del bare.__annotations__["a"]
lost.__annotations__["a"] = "Nowhere"
UNFIT: list[tuple[Any, str]] = [
    (star, "'*args: int'"),
    (stars, "'**kwargs: int'"),
    (positional, "cannot be given by name"),
    (bare, "'a' has no annotation"),
    (odd, "type without a JSON schema"),
    (lost, "annotations cannot be read"),
    (stream, "async generator"),
    (Counter, "is not a function"),
    (3, "is not a function"),
]


@pytest.mark.parametrize(("function", "says"), UNFIT)
def test_what_cannot_be_a_tool_is_refused_with_the_reason(
    function: Callable[..., object], says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tool(function)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"effect": "twice"}, {"deadline_ms": 0}, {"name": "a b"}, {"name": ""}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        tool(**options)(everything)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (None, ""),
        (7, "7"),
        ({"b": 1, "a": [Point(1)]}, '{"a":[{"x":1,"y":0}],"b":1}'),
        ("half \ud83d NUL \0", "half \ufffd NUL \ufffd"),
        ({"k\ud83d": ["\ud83d", 1]}, '{"k\ufffd":["\ufffd",1]}'),
        (ToolResult(text="\ud83d", is_error=True), "\ufffd"),
    ],
)
def test_what_a_tool_returns_becomes_clean_text(value: object, text: str) -> None:
    @tool
    def plain() -> object:
        return value

    @tool
    async def waiting() -> object:
        await trio.lowlevel.checkpoint()
        return value

    result = run(plain, {})
    assert result.text == text
    assert result.is_error == isinstance(value, ToolResult)
    assert run(waiting, {}) == result


def test_a_set_is_written_in_one_order() -> None:
    @tool
    def sample() -> set[str]:
        return {"c", "a", "b"}

    assert run(sample, {}).text == '["a","b","c"]'


def test_a_value_without_a_json_form_is_an_error_result() -> None:
    @tool
    def sample() -> object:
        return object()

    result = run(sample, {})
    assert result.is_error
    assert "(object) has no JSON form" in result.text


def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async() -> None:
    async def inner() -> None: ...

    @tool
    def sample() -> object:
        return inner()

    assert "declare it async" in run(sample, {}).text


@pytest.mark.parametrize("error", [ValueError("key sk-123"), SystemExit(3), KeyError("x")])
def test_an_exception_is_a_result_that_names_tool_and_type_and_goes_to_the_log(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    @tool
    def plain() -> None:
        raise error

    @tool
    async def waiting() -> None:
        raise error

    with caplog.at_level(logging.WARNING, "leviath.tools"):
        result = run(plain, {})
        assert run(waiting, {}) == result
    text = f"tool sample failed with {type(error).__name__}"
    assert result == ToolResult(text=text, is_error=True)
    assert "run r1" in caplog.text
    assert "test_tools.py" in caplog.text


def test_a_tool_error_reaches_the_model_word_for_word() -> None:
    @tool
    def sample() -> None:
        raise ToolError("no such city: \ud83d")

    assert run(sample, {}) == ToolResult(text="no such city: \ufffd", is_error=True)


def test_what_may_have_happened_is_raised_to_the_host() -> None:
    @tool
    def plain() -> None:
        raise MayHaveHappened("unclear")

    @tool
    async def waiting() -> None:
        raise MayHaveHappened("unclear")

    for made in (plain, waiting):
        with pytest.raises(MayHaveHappened):
            run(made, {})


def test_cancelling_a_call_cancels_the_tool() -> None:
    seen: list[str] = []

    @tool
    async def sample() -> None:
        try:
            await trio.sleep_forever()
        finally:
            seen.append("left")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_in_trio, sample)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert seen == ["left"]


def in_folder(tmp_path: Path) -> ToolCall:
    return msgspec.structs.replace(CALL, spill_dir=str(tmp_path / "spill"))


def test_50_mb_from_a_function_leave_head_tail_and_a_pointer(tmp_path: Path) -> None:
    whole = "first\n" + "0123456789abcde\n" * 3_125_000 + "last\n"

    @tool
    def plain() -> str:
        return whole

    @tool
    async def waiting() -> str:
        await trio.lowlevel.checkpoint()
        return whole

    for made in (plain, waiting):
        result = run(made, {}, in_folder(tmp_path))
        assert len(result.text.encode()) <= TOOL_RESULT_INLINE_BYTES_MAX
        assert result.text.startswith("first\n0123")
        assert result.text.endswith("abcde\nlast\n")
        assert "all 50000011 bytes are in spill/c1.log" in result.text
        assert result.spill == "spill/c1.log"
        kept = tmp_path / "spill" / "c1.log"
        assert kept.read_bytes() == whole.encode()
        assert kept.stat().st_mode & 0o777 == 0o600
        assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_more_than_a_spill_file_takes_is_cut_and_says_so(tmp_path: Path) -> None:
    result = apply_result_limits(ToolResult(text="x" * 70_000_000), in_folder(tmp_path))
    assert "the first 67108864 of 70000000 bytes are in spill/c1.log" in result.text
    assert (tmp_path / "spill" / "c1.log").stat().st_size == 67108864


def test_a_disk_that_refuses_the_spill_file_costs_the_middle_only(tmp_path: Path) -> None:
    (tmp_path / "spill" / "c1.log").mkdir(parents=True)
    result = apply_result_limits(ToolResult(text="x" * 100_000), in_folder(tmp_path))
    assert result.spill is None
    assert "could not be kept (EISDIR)" in result.text
    assert len(result.text) < TOOL_RESULT_INLINE_BYTES_MAX


def test_a_call_id_that_is_a_path_names_no_other_file(tmp_path: Path) -> None:
    call = msgspec.structs.replace(in_folder(tmp_path), call_id="../../evil")
    result = apply_result_limits(ToolResult(text="x" * 100_000), call)
    assert result.spill is not None
    assert (tmp_path / result.spill).parent == tmp_path / "spill"
    assert [path.name for path in tmp_path.iterdir()] == ["spill"]


@given(
    unit=st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
    )
)
def test_the_inline_part_is_whole_code_points(
    tmp_path_factory: pytest.TempPathFactory, unit: str
) -> None:
    text = unit * (100_000 // len(unit.encode()))
    result = apply_result_limits(
        ToolResult(text=text), in_folder(tmp_path_factory.mktemp("spilled"))
    )
    head, _, tail = result.text.partition("\n[... ")
    assert len(result.text.encode()) <= TOOL_RESULT_INLINE_BYTES_MAX
    assert text.startswith(head)
    assert text.endswith(tail.partition(" ...]\n")[2])


def test_the_built_in_tools_and_what_may_follow_a_crash() -> None:
    table = {made.name: (made.effect, made.modifies) for made in builtin_tools()}
    assert table == {
        "read_file": ("pure", False),
        "list_dir": ("pure", False),
        "write_file": ("idempotent", True),
        "edit_file": ("idempotent", True),
        "shell": ("once", False),
    }
    for made in builtin_tools():
        assert made.description
        assert "call" not in made.schema["properties"]


def test_schemas_do_not_depend_on_the_interpreter() -> None:
    # A pinned text: compared on each Python version that the suite runs on.
    read_file = builtin_tools()[0]
    assert read_file.schema_json == (
        '{"additionalProperties":false,"properties":{"limit_lines":{"anyOf":[{"minimum":1,"type":'
        '"integer"},{"type":"null"}],"description":"Lines to read; all when left out."},'
        '"offset_lines":{"default":0,"description":"Lines to skip.","minimum":0,"type":"integer"},'
        '"path":{"description":"Path of the file, relative to the working folder.","type":"string"'
        '}},"required":["path"],"type":"object"}'
    ), sys.version


def test_a_spill_file_that_a_tool_made_is_not_written_over(tmp_path: Path) -> None:
    result = ToolResult(text="x" * 100_000, spill="spill/own.log")
    limited = apply_result_limits(result, in_folder(tmp_path))
    assert limited.spill == "spill/own.log"
    assert "are in spill/own.log" in limited.text
    assert not (tmp_path / "spill").exists()

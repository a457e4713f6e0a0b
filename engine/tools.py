"""Tools: what a model may call. ``tool`` makes one of a function, the host releases its calls.

A tool says what may follow a crash (``EffectClass``), how long a call may take and, through its
signature, which arguments it takes. A call never takes the host down: bad arguments, a ToolError
and any other exception become results with ``is_error`` set. What a ToolError says goes to the
model word for word. Of any other exception the model reads the type only, because the words of an
interpreter differ between its versions and may hold a secret; the whole of it goes to the log.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, overload

import msgspec
import trio

from leviath.components.clean import clean_text
from leviath.components.errors import ConfigError, ToolError
from leviath.engine import arguments
from leviath.engine.limits import TOOL_DEADLINE_MS
from leviath.engine.toolbox.call import EffectClass, MayHaveHappened, ToolCall, ToolResult
from leviath.engine.toolbox.signature import Signature
from leviath.engine.toolbox.spill import apply_result_limits, exceeds_inline

__all__ = [
    "EffectClass",
    "FunctionTool",
    "MayHaveHappened",
    "Tool",
    "ToolCall",
    "ToolResult",
    "apply_result_limits",
    "as_tool",
    "as_tools",
    "builtin_tools",
    "tool",
]

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

_log = logging.getLogger("leviath.tools")

_EFFECTS: Final = ("pure", "idempotent", "once")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Tool:
    """A named function with a schema, an effect class and a deadline.

    ``schema`` is the JSON schema of the arguments, ``schema_json`` its canonical text: keys sorted,
    no spaces, the same on each Python version. ``modifies`` marks a tool that writes files of the
    workdir and reports them in ``ToolResult.modified``; ``searches`` one that looks for something.
    """

    __slots__ = (
        "_function",
        "_signature",
        "deadline_ms",
        "description",
        "effect",
        "is_async",
        "modifies",
        "name",
        "schema",
        "schema_json",
        "searches",
    )

    def __init__(
        self,
        function: Callable[..., object],
        *,
        name: str | None = None,
        description: str | None = None,
        effect: EffectClass = "once",
        deadline_ms: int = TOOL_DEADLINE_MS,
        modifies: bool = False,
        searches: bool = False,
    ) -> None:
        """Make a tool of ``function``; ``tool`` is the short way.

        Raises ConfigError when the function, the name, the effect or the deadline cannot be used.
        """
        self.name: Final = _checked_name(function, name)
        place = f"tool {self.name!r}"
        arguments.one_of(f"{place}: effect", effect, _EFFECTS)
        arguments.number(f"{place}: deadline_ms", deadline_ms, 1, arguments.SPAN_MS_MAX)
        arguments.flag(f"{place}: modifies", modifies)
        arguments.flag(f"{place}: searches", searches)
        described = _docstring(function) if description is None else description
        arguments.text(f"{place}: description", described)
        self.description: Final = clean_text(described)
        self.effect: Final[EffectClass] = effect
        self.deadline_ms: Final = deadline_ms
        self.modifies: Final = modifies
        self.searches: Final = searches
        self.is_async: Final = _is_async(self.name, function)
        self._function = function
        self._signature = Signature(self.name, function, ToolCall)
        self.schema: Final[dict[str, Any]] = self._signature.schema
        self.schema_json: Final = msgspec.json.encode(self.schema, order="sorted").decode()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.effect}>"

    async def call(self, call: ToolCall, arguments: Mapping[str, object]) -> ToolResult:
        """Run an async tool once; the result is within the inline limit.

        Raises MayHaveHappened, and nothing else. Cancelled, the tool was cancelled where it stood;
        what it did before that is done. The deadline is the caller's to enforce.
        """
        assert self.is_async, self.name
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            bound = self._signature.bind(call, arguments)
            result = _as_result(self.name, await cast("Awaitable[object]", self._function(**bound)))
        except MayHaveHappened:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything
            return _failure(call, error)
        if exceeds_inline(result):
            return await trio.to_thread.run_sync(apply_result_limits, result, call)
        return result

    def call_sync(self, call: ToolCall, arguments: Mapping[str, object]) -> ToolResult:
        """Run a plain tool once, in a worker thread; the result is within the inline limit.

        Raises MayHaveHappened, and nothing else. It cannot be cancelled: threads cannot be.
        """
        assert not self.is_async, self.name
        try:
            bound = self._signature.bind(call, arguments)
            result = _as_result(self.name, self._function(**bound))
        except MayHaveHappened:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything
            return _failure(call, error)
        return apply_result_limits(result, call)


class FunctionTool(Tool, Generic[P, R_co]):
    """A tool that can still be called like the function it was made of."""

    __slots__ = ("__dict__", "__wrapped__")

    def __init__(self, function: Callable[P, R_co], **options: Any) -> None:
        super().__init__(function, **options)
        self.__wrapped__: Callable[P, R_co] = function
        self.__doc__ = self.description

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself, without any of what surrounds a tool call."""
        return self.__wrapped__(*args, **kwargs)


@overload
def tool(function: Callable[P, R_co], /) -> FunctionTool[P, R_co]: ...


@overload
def tool(
    function: Callable[P, R_co],
    /,
    *,
    effect: EffectClass = ...,
    name: str | None = ...,
    description: str | None = ...,
    deadline_ms: int = ...,
    modifies: bool = ...,
    searches: bool = ...,
) -> FunctionTool[P, R_co]: ...


@overload
def tool(
    *,
    effect: EffectClass = ...,
    name: str | None = ...,
    description: str | None = ...,
    deadline_ms: int = ...,
    modifies: bool = ...,
    searches: bool = ...,
) -> Callable[[Callable[P, R_co]], FunctionTool[P, R_co]]: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    effect: EffectClass = "once",
    name: str | None = None,
    description: str | None = None,
    deadline_ms: int = TOOL_DEADLINE_MS,
    modifies: bool = False,
    searches: bool = False,
) -> object:
    """Make a tool of a function, a bound method or an object with ``__call__``, plain or async.

    Bare (``@tool``) or with options (``@tool(effect="pure")``). Name and description come from the
    function's own unless given; the schema comes from its annotations, where
    ``Annotated[T, "text"]`` describes one parameter. Without ``effect=`` a call is never repeated
    by itself (``once``).

    Raises ConfigError when the signature has no JSON schema.
    """
    make = functools.partial(
        FunctionTool[..., object],
        effect=effect,
        name=name,
        description=description,
        deadline_ms=deadline_ms,
        modifies=modifies,
        searches=searches,
    )
    return make if function is None else make(function)


def as_tool(source: Tool | Callable[..., object]) -> Tool:
    """``source`` itself when it is a tool, else a ``once`` tool made of it. Raises ConfigError."""
    return source if isinstance(source, Tool) else FunctionTool(source)


def as_tools(sources: object) -> tuple[Tool, ...]:
    """``sources`` as tools: a list, not one. Raises ConfigError."""
    if callable(sources) or isinstance(sources, Tool):
        raise ConfigError(f"tools must be a list of tools, not one, {sources!r}; write tools=[...]")
    given = arguments.items("tools", sources, "tools")
    return tuple(as_tool(cast("Callable[..., object]", source)) for source in given)


def builtin_tools() -> tuple[Tool, ...]:
    """The tools of leviath itself: reading and writing below the workdir, and a shell."""
    # Here, because the built-in tools are made with the decorator above.
    from leviath.engine.toolbox.files import edit_file, list_dir, read_file, write_file
    from leviath.engine.toolbox.shell import shell

    return (read_file, list_dir, write_file, edit_file, shell)


def _checked_name(function: object, name: str | None) -> str:
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"{function!r} is not a function; a tool is a function or an instance")
    if name is None:
        if isinstance(function, functools.partial):
            return _checked_name(cast("object", function.func), None)
        own = getattr(function, "__name__", None)
        kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(function).__name__).lower()
        name = own if isinstance(own, str) else kind
    arguments.text("the name of a tool", name)
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"tool name {name!r} must be 1 to 64 letters (A-Z, a-z), digits, _ or -; give name="
        )
    return name


def _docstring(function: Callable[..., object]) -> str:
    if isinstance(function, functools.partial):
        return _docstring(function.func)
    if inspect.isroutine(function):
        return inspect.cleandoc(function.__doc__ or "")
    kind = type(function)
    return inspect.cleandoc(kind.__call__.__doc__ or kind.__doc__ or "")


def _is_async(name: str, function: Callable[..., object]) -> bool:
    targets = (function, getattr(function, "__call__", None))  # noqa: B004 - the method itself
    if any(inspect.isasyncgenfunction(target) for target in targets):
        raise ConfigError(f"tool {name!r} is an async generator; return the result instead")
    if any(inspect.isgeneratorfunction(target) for target in targets):
        raise ConfigError(f"tool {name!r} is a generator; return the result instead of yielding")
    return any(inspect.iscoroutinefunction(target) for target in targets)


def _as_result(name: str, value: object) -> ToolResult:
    if isinstance(value, ToolResult):
        try:
            msgspec.convert(msgspec.to_builtins(value), ToolResult)
        except (TypeError, ValueError, RecursionError):
            raise ToolError(
                f"tool {name} returned a ToolResult with a field of wrong type"
            ) from None
        text = clean_text(value.text)
        return value if text is value.text else msgspec.structs.replace(value, text=text)
    if value is None:
        return ToolResult(text="")
    if isinstance(value, str):
        return ToolResult(text=clean_text(value))
    return ToolResult(text=_json_text(value))


def _json_text(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        raise ToolError("the tool is a plain function that returned a coroutine; declare it async")
    try:
        return clean_text(msgspec.json.encode(value, order="deterministic").decode())
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value, order="deterministic", str_keys=True)
        return msgspec.json.encode(_clean_tree(plain)).decode()
    except (TypeError, RecursionError):
        raise ToolError(
            f"the tool finished, but what it returned ({type(value).__name__}) has no JSON form"
        ) from None


def _clean_tree(value: Any) -> Any:
    """``value``, plain JSON data, with each text in it made fit for UTF-8."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {clean_text(key): _clean_tree(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_clean_tree(item) for item in cast("list[Any]", value)]
    return value


def _failure(call: ToolCall, error: BaseException) -> ToolResult:
    if isinstance(error, ToolError):
        return apply_result_limits(ToolResult(text=clean_text(str(error)), is_error=True), call)
    trace = call.redactor.traceback(error)
    _log.warning(
        "run %s: tool %s raised in call %s\n%s", call.run_id, call.tool, call.call_id, trace
    )
    text = f"tool {call.tool} failed with {type(error).__name__}"
    return ToolResult(text=clean_text(text), is_error=True)

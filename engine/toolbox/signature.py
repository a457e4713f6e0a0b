"""From a Python signature to a JSON schema, and from a model's arguments to keyword arguments."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from leviath.components.clean import clean_text
from leviath.components.errors import ConfigError, ToolError

_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _absent() -> msgspec.UnsetType:
    """Default of every optional argument: what is left out is up to the function's own default."""
    return msgspec.UNSET


class Signature:
    """The parameters of one tool.

    ``schema`` is a JSON schema of type object whose properties stand in the order of the signature.
    """

    def __init__(self, tool: str, target: Callable[..., object], injected: type) -> None:
        """Read the signature of ``target``; parameters of type ``injected`` are not the model's.

        Raises ConfigError, naming tool and parameter, for what has no place in a JSON schema.
        """
        self._tool = tool
        fields: list[tuple[str, Any, Any]] = []
        injected_names: list[str] = []
        defaults: dict[str, object] = {}
        for parameter, annotation in _annotated_parameters(tool, target):
            if annotation is injected:
                injected_names.append(parameter.name)
                continue
            field: Any = msgspec.field()
            if parameter.default is not inspect.Parameter.empty:
                defaults[parameter.name] = parameter.default
                field = msgspec.field(default_factory=_absent)
            fields.append((parameter.name, _described(annotation), field))
        self._injected = tuple(injected_names)
        try:
            self._arguments = msgspec.defstruct(
                "Arguments", fields, kw_only=True, forbid_unknown_fields=True
            )
            self.schema: dict[str, Any] = _object_schema(self._arguments, defaults)
        except (TypeError, ValueError, NameError) as error:
            raise ConfigError(
                f"tool {tool!r}: a parameter has a type without a JSON schema "
                f"({str(error).splitlines()[-1]}); use str, int, float, bool, list, dict, Literal, "
                "Enum, a dataclass, a TypedDict or a msgspec.Struct"
            ) from error

    def bind(self, call: object, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Keyword arguments for the function, checked against the schema.

        Raises ToolError, written for the model, when one is missing, unknown or of a wrong type.
        """
        try:
            checked = msgspec.convert(arguments, self._arguments, str_keys=True)
        except msgspec.ValidationError as error:
            fault = clean_text(str(error))
        except (RecursionError, UnicodeError):
            fault = "it cannot be read (half a character, or too deep)"
        else:
            bound = {
                name: value
                for name in self._arguments.__struct_fields__
                if (value := getattr(checked, name)) is not msgspec.UNSET
            }
            bound.update(dict.fromkeys(self._injected, call))
            return bound
        raise ToolError(
            f"bad arguments for {self._tool}: {fault}. Nothing was done; "
            "correct the arguments and call again."
        )


def _annotated_parameters(
    tool: str, target: Callable[..., object]
) -> Iterator[tuple[inspect.Parameter, Any]]:
    try:
        parameters = inspect.signature(target).parameters.values()
        hints = typing.get_type_hints(_annotated_function(target), include_extras=True)
    except (TypeError, ValueError, NameError, AttributeError) as error:
        raise ConfigError(
            f"tool {tool!r}: its annotations cannot be read ({type(error).__name__}); the types "
            "they name must be global names of the module that defines the function"
        ) from error
    for parameter in parameters:
        if parameter.kind not in _NAMED:
            raise ConfigError(
                f"tool {tool!r}: parameter {str(parameter)!r} cannot be given by name; a model "
                "gives arguments by name: no *args, no **kwargs, no positional-only ones"
            )
        if parameter.name not in hints:
            raise ConfigError(
                f"tool {tool!r}: parameter {parameter.name!r} has no annotation; annotate it, or, "
                "for a method, decorate the bound method: tool(instance.method)"
            )
        yield parameter, hints[parameter.name]


def _annotated_function(target: Callable[..., object]) -> Any:
    """The function that carries the annotations of ``target``."""
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isroutine(target):
        return target
    return type(target).__call__


def _described(annotation: Any) -> Any:
    """``Annotated[T, "text"]`` with the text as the description that msgspec understands."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation
    extras = annotation.__metadata__
    notes = tuple(
        msgspec.Meta(description=clean_text(extra)) if isinstance(extra, str) else extra
        for extra in extras
    )
    return Annotated[(annotation.__origin__, *notes)]


def _object_schema(arguments: type[msgspec.Struct], defaults: dict[str, object]) -> dict[str, Any]:
    (reference,), components = msgspec.json.schema_components([arguments])
    own = components.pop(reference["$ref"].removeprefix("#/$defs/"))
    properties = own["properties"]
    for name, default in defaults.items():
        if isinstance(default, str | int):
            # None and what is no scalar tell a model nothing that the type does not tell already.
            properties[name] = {**properties[name], "default": msgspec.to_builtins(default)}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": own["required"],
        "additionalProperties": False,
    }
    if components:
        schema["$defs"] = components
    return schema

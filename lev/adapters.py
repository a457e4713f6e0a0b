"""Which providers and tools a command gives its runs: the only place where they are chosen."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, cast

from leviath.components.errors import ConfigError, LevError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from types import ModuleType

    from leviath.engine.ports import Provider
    from leviath.engine.tools import Tool


def providers_of(arguments: argparse.Namespace) -> list[Provider]:
    """The providers of ``--script`` and ``--providers``. Raises ConfigError."""
    from leviath.providers.scripted import Scripted

    found: list[Provider] = []
    if arguments.script is not None:
        found.append(Scripted(arguments.script))
    for name in arguments.providers:
        for value in _values(name, called=True):
            if not callable(getattr(value, "infer", None)):
                raise ConfigError(f"{name}: {value!r} is no provider: it has no method `infer`")
            found.append(cast("Provider", value))
    return found


def tools_of(arguments: argparse.Namespace) -> list[Tool | Callable[..., object]]:
    """The tools of ``--tools``. Raises ConfigError."""
    return [value for name in arguments.tools for value in _values(name, called=False)]


def _values(name: str, *, called: bool) -> list[Any]:
    """What ``MODULE:ATTR`` names: one thing or a sequence; ``called``: a function makes it."""
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(f"{name!r} names nothing; write MODULE:ATTR, such as ./mine.py:tools")
    value: Any = _module(module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise ConfigError(f"{name}: {module_name} has no {attribute!r}")
        value = getattr(value, part)
    makes = isinstance(value, type) or not hasattr(value, "infer")
    if called and callable(value) and makes:
        value = _guarded(name, value)
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [value]


def _module(name: str) -> ModuleType:
    if name.endswith(".py") or os.sep in name:
        return cast("ModuleType", _guarded(name, lambda: _from_file(name)))
    return cast("ModuleType", _guarded(name, lambda: importlib.import_module(name)))


def _from_file(path: str) -> ModuleType:
    """The module in a file, under a name of its own, so that it shadows no other."""
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        raise ConfigError(f"{path}: there is no such file")
    name = f"leviath_host_{hashlib.blake2b(os.fsencode(real), digest_size=8).hexdigest()}"
    known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, real)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: is no Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _guarded(name: str, make: Callable[[], Any]) -> Any:
    """Run code of the host's; whatever it raises becomes an error that names it."""
    try:
        return make()
    except LevError:
        raise
    except Exception as error:
        raise ConfigError(f"{name}: {type(error).__name__}: {error}") from error

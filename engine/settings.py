"""The settings of ``open_world``, checked before a home is touched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, cast

import trio

from leviath.components.errors import ConfigError
from leviath.engine import arguments
from leviath.engine.limits import HISTORY_STEPS_MIN
from leviath.engine.pricing import PriceTable

_FILES: Final = (
    "open_folder",
    "create",
    "open_append",
    "open_read",
    "write",
    "truncate",
    "sync",
    "close",
    "replace",
    "open_rewrite",
    "exchange",
    "unlink",
    "make_folder",
    "remove_tree",
)
_CLOCK: Final = ("monotonic_ms", "wall_ms", "timeout_s", "subscribe")


def check_settings(
    *,
    home: object,
    clock: object,
    seed: object,
    vfs: object,
    fs: object,
    numbers: Mapping[str, object],
    on_text: object,
    callbacks: object,
    flags: Mapping[str, object],
) -> None:
    """Raises ConfigError naming argument, value and remedy."""
    if not trio.lowlevel.in_trio_run():
        raise ConfigError(
            "leviath.open_world needs a trio loop, and none runs here; use leviath.aio.open_world "
            "under asyncio, leviath.blocking.open_world without a loop, or trio.run(...)"
        )
    if home is not None and not isinstance(home, str | os.PathLike):
        raise ConfigError(f"home must be a path, not {arguments.shown(home)}; name a folder")
    if clock is not None and not all(callable(getattr(clock, name, None)) for name in _CLOCK):
        raise ConfigError(
            f"clock must be a clock, not {arguments.shown(clock)}; "
            "leave it out, or pass leviath.ManualClock() in a test"
        )
    if seed is not None:
        arguments.number("seed", seed, 0, 2**64 - 1)
    if vfs is not None:
        arguments.text("vfs", vfs)
    if fs is not None and not all(callable(getattr(fs, name, None)) for name in _FILES):
        raise ConfigError(
            f"fs must be a file system, not {arguments.shown(fs)}; leave it out, or pass one with "
            "the methods of leviath.persistence.files.FileSystem"
        )
    if numbers["history"] is not None:
        arguments.number("history", numbers["history"], HISTORY_STEPS_MIN, arguments.NUMBER_MAX)
    arguments.number("grace_ms", numbers["grace_ms"], 0, arguments.SPAN_MS_MAX)
    arguments.callback("on_text", on_text, "pass a function of a run id and a piece of text")
    if callbacks is not None and not all(
        callable(getattr(callbacks, name, None)) for name in ("refuse", "post")
    ):
        raise ConfigError(
            f"callbacks must carry callbacks, not be {arguments.shown(callbacks)}; "
            "leave it out, or pass leviath.HttpCallbacks(...)"
        )
    for name, value in flags.items():
        arguments.flag(name, value)


def price_table(prices: object) -> PriceTable:
    """The table of what the caller gave. Raises ConfigError."""
    if prices is None:
        return PriceTable()
    if isinstance(prices, PriceTable):
        return prices
    if not isinstance(prices, Mapping):
        raise ConfigError(
            f"prices must map provider/model to prices, not be {arguments.shown(prices)}; "
            "pass a dict or a PriceTable"
        )
    table = cast("Mapping[object, object]", prices)
    return PriceTable.parse(
        {arguments.text("each key of prices", key): value for key, value in table.items()}
    )

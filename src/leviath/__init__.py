"""leviath: an embeddable engine for fleets of LLM-agent runs.

Names resolve when they are first used, so that ``import leviath`` costs next to nothing. ``aio``,
``blocking``, ``blueprint``, ``events`` and ``testing`` are modules: ``import leviath.aio``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leviath import aio as aio
    from leviath import blocking as blocking
    from leviath import blueprint as blueprint
    from leviath import events as events
    from leviath import testing as testing
    from leviath.components.blueprint import Blueprint as Blueprint
    from leviath.components.error_kind import ErrorKind as ErrorKind
    from leviath.components.errors import BlueprintError as BlueprintError
    from leviath.components.errors import ConfigError as ConfigError
    from leviath.components.errors import Damaged as Damaged
    from leviath.components.errors import DiskFull as DiskFull
    from leviath.components.errors import DocumentError as DocumentError
    from leviath.components.errors import LevError as LevError
    from leviath.components.errors import Locked as Locked
    from leviath.components.errors import NewerFormat as NewerFormat
    from leviath.components.errors import ProviderError as ProviderError
    from leviath.components.errors import ReplayDivergence as ReplayDivergence
    from leviath.components.errors import RunConflict as RunConflict
    from leviath.components.errors import RunNotFound as RunNotFound
    from leviath.components.errors import SpawnError as SpawnError
    from leviath.components.errors import StorageError as StorageError
    from leviath.components.errors import ToolError as ToolError
    from leviath.components.errors import WorldError as WorldError
    from leviath.components.people import Profile as Profile
    from leviath.components.run_status import RunStatus as RunStatus
    from leviath.components.secret import Secret as Secret
    from leviath.components.world_facts import Policy as Policy
    from leviath.engine.blueprints import load_blueprint as load_blueprint
    from leviath.engine.blueprints import parse_blueprint as parse_blueprint
    from leviath.engine.blueprints import validate_blueprint as validate_blueprint
    from leviath.engine.budget_reading import Spending as Spending
    from leviath.engine.budgets import Budget as Budget
    from leviath.engine.callbacks import CallbackAnswer as CallbackAnswer
    from leviath.engine.callbacks import CallbackRefused as CallbackRefused
    from leviath.engine.callbacks import CallbackSender as CallbackSender
    from leviath.engine.callbacks import HttpCallbacks as HttpCallbacks
    from leviath.engine.clock import ManualClock as ManualClock
    from leviath.engine.ports import CallRequest as CallRequest
    from leviath.engine.ports import InferenceReply as InferenceReply
    from leviath.engine.ports import InferenceRequest as InferenceRequest
    from leviath.engine.ports import Message as Message
    from leviath.engine.ports import Provider as Provider
    from leviath.engine.ports import ToolSpec as ToolSpec
    from leviath.engine.ports import Usage as Usage
    from leviath.engine.ports import provider_error as provider_error
    from leviath.engine.pricing import PriceTable as PriceTable
    from leviath.engine.questions import Question as Question
    from leviath.engine.run_handle import RunHandle as RunHandle
    from leviath.engine.tools import MayHaveHappened as MayHaveHappened
    from leviath.engine.tools import Tool as Tool
    from leviath.engine.tools import ToolCall as ToolCall
    from leviath.engine.tools import ToolResult as ToolResult
    from leviath.engine.tools import tool as tool
    from leviath.engine.world import OpenWorld as OpenWorld
    from leviath.engine.world import open_world as open_world
    from leviath.persistence.rows import LedgerRow as LedgerRow
    from leviath.persistence.rows import RunRow as RunRow
    from leviath.persistence.run_meta import RunMeta as RunMeta
    from leviath.persistence.store import Store as Store
    from leviath.persistence.store_rows import RunSummary as RunSummary
    from leviath.persistence.store_rows import StepRecord as StepRecord
    from leviath.providers.recorded import Recorded as Recorded
    from leviath.providers.scripted import Failure as Failure
    from leviath.providers.scripted import Reply as Reply
    from leviath.providers.scripted import Scripted as Scripted
    from leviath.providers.scripted import tool_call as tool_call
    from leviath.systems.tree_index import Totals as Totals

__version__ = "0.1.0"

__all__ = [
    "Blueprint",
    "BlueprintError",
    "Budget",
    "CallRequest",
    "CallbackAnswer",
    "CallbackRefused",
    "CallbackSender",
    "ConfigError",
    "Damaged",
    "DiskFull",
    "DocumentError",
    "ErrorKind",
    "Failure",
    "HttpCallbacks",
    "InferenceReply",
    "InferenceRequest",
    "LedgerRow",
    "LevError",
    "Locked",
    "ManualClock",
    "MayHaveHappened",
    "Message",
    "NewerFormat",
    "OpenWorld",
    "Policy",
    "PriceTable",
    "Profile",
    "Provider",
    "ProviderError",
    "Question",
    "Recorded",
    "ReplayDivergence",
    "Reply",
    "RunConflict",
    "RunHandle",
    "RunMeta",
    "RunNotFound",
    "RunRow",
    "RunStatus",
    "RunSummary",
    "Scripted",
    "Secret",
    "SpawnError",
    "Spending",
    "StepRecord",
    "StorageError",
    "Store",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "ToolSpec",
    "Totals",
    "Usage",
    "WorldError",
    "__version__",
    "aio",
    "blocking",
    "blueprint",
    "events",
    "load_blueprint",
    "open_world",
    "parse_blueprint",
    "provider_error",
    "testing",
    "tool",
    "tool_call",
    "validate_blueprint",
]

_MODULES = ("aio", "blocking", "blueprint", "events", "testing")
"""Public names that are modules."""

_HOMES = {
    "components.blueprint": "Blueprint",
    "components.error_kind": "ErrorKind",
    "components.errors": (
        "BlueprintError ConfigError Damaged DiskFull DocumentError LevError Locked NewerFormat"
        " ProviderError ReplayDivergence RunConflict RunNotFound SpawnError StorageError"
        " ToolError WorldError"
    ),
    "components.run_status": "RunStatus",
    "components.secret": "Secret",
    "components.world_facts": "Policy",
    "engine.blueprints": "load_blueprint parse_blueprint validate_blueprint",
    "engine.budgets": "Budget",
    "engine.callbacks": "CallbackAnswer CallbackRefused CallbackSender HttpCallbacks",
    "engine.clock": "ManualClock",
    "engine.ports": (
        "CallRequest InferenceReply InferenceRequest Message Provider ToolSpec Usage provider_error"
    ),
    "engine.pricing": "PriceTable",
    "engine.tools": "MayHaveHappened Tool ToolCall ToolResult tool",
    "components.people": "Profile",
    "engine.questions": "Question",
    "engine.run_handle": "RunHandle",
    "engine.budget_reading": "Spending",
    "engine.world": "OpenWorld open_world",
    "persistence.rows": "LedgerRow RunRow",
    "persistence.run_meta": "RunMeta",
    "persistence.store": "Store",
    "persistence.store_rows": "RunSummary StepRecord",
    "providers.recorded": "Recorded",
    "providers.scripted": "Failure Reply Scripted tool_call",
    "systems.tree_index": "Totals",
}
"""Modules, and the public names that they hold."""


if not TYPE_CHECKING:  # a checker that sees this takes every name for one of ours

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            from importlib import import_module

            value: object = import_module(f"{__name__}.{name}")
        else:
            home = next((home for home, names in _HOMES.items() if name in names.split()), None)
            if home is None:
                raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
            from importlib import import_module

            value = getattr(import_module(f"{__name__}.{home}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

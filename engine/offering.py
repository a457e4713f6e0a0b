"""What a host offers a world: providers, tools with their specs, prices, as recorded input."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import msgspec

from leviath.components.errors import ConfigError
from leviath.components.text import text_digest
from leviath.components.world_facts import Offer, OfferedModel, OfferedTool
from leviath.engine import arguments
from leviath.engine.agent_tools import AGENT_TOOL_SPECS
from leviath.engine.person_tools import PERSON_TOOL_SPECS
from leviath.engine.ports import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leviath.engine.ports import Provider
    from leviath.engine.redaction import Redactor
    from leviath.engine.tools import Tool

_encode = msgspec.json.Encoder(order="deterministic").encode


def _object(required: list[str], **fields: str) -> str:
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text} for name, text in fields.items()
        },
        "required": required,
        "additionalProperties": False,
    }
    return _encode(schema).decode()


IN_STEP_TOOLS = (
    ToolSpec(
        "submit_output",
        "Hand in the final result of this run. A later call replaces it.",
        _object(["content"], content="The result.", format="Its format, such as markdown."),
    ),
    ToolSpec(
        "context_write",
        "Write to a region of your context, where it stays visible.",
        _object(
            ["region", "content"],
            region="Name of the region.",
            content="What to write.",
            mode="append (default) or replace.",
            key="Key of the entry, for keyed regions.",
            state="open or done, for checklist items.",
        ),
    ),
    *AGENT_TOOL_SPECS,
    *PERSON_TOOL_SPECS,
)
"""Tools that the step itself carries out."""


def _provider(given: object) -> Provider:
    name: object = getattr(given, "name", None)
    if isinstance(given, type) or not callable(getattr(given, "infer", None)):
        raise ConfigError(
            f"each of providers must have a name and an infer method, not be "
            f"{arguments.shown(given)}; pass an object such as leviath.Scripted.of(...)"
        )
    if not isinstance(name, str) or not name or "/" in name:
        raise ConfigError(
            f"the name of provider {arguments.shown(given)} must be text without a slash, "
            f"not {arguments.shown(name)}; blueprints use it in provider/model"
        )
    return cast("Provider", given)


class Offering:
    """Providers and tools by name, and the digest of each tool's spec."""

    def __init__(
        self,
        providers: Sequence[Provider],
        tools: Iterable[Tool],
        redactor: Redactor | None = None,
    ) -> None:
        self.providers: dict[str, Provider] = {}
        for given in arguments.items("providers", providers, "providers"):
            provider = _provider(given)
            if provider.name in self.providers:
                raise ConfigError(
                    f"two providers are called {provider.name!r}; give one another name"
                )
            self.providers[provider.name] = provider
        self.tools: dict[str, Tool] = {}
        reserved = {spec.name for spec in IN_STEP_TOOLS}
        for tool in tools:
            if tool.name in reserved:
                raise ConfigError(
                    f"a tool may not be called {tool.name!r}: leviath has one; rename it"
                )
            if tool.name in self.tools:
                raise ConfigError(f"two tools are called {tool.name!r}; rename one")
            self.tools[tool.name] = tool
        self.specs: dict[bytes, ToolSpec] = {}
        """Spec by the digest that commands carry."""
        self.bodies: list[bytes] = []
        """Encoded specs, for the entry table."""
        self.offer: Offer = self._offer()
        if redactor is not None:
            self._refuse_secrets(redactor)

    def _refuse_secrets(self, redactor: Redactor) -> None:
        """Raises ConfigError for a tool that would show a known secret to every model."""
        for spec in self.specs.values():
            if redactor.knows(spec.description) or redactor.knows(spec.schema_json):
                raise ConfigError(
                    f"tool {spec.name!r} has the value of a known secret in its description or in "
                    "a default; let its function read it from its own configuration"
                )

    def _offer(self) -> Offer:
        offered: list[OfferedTool] = []
        for tool in sorted(self.tools.values(), key=lambda tool: tool.name):
            spec = ToolSpec(tool.name, tool.description, tool.schema_json)
            offered.append(
                OfferedTool(
                    tool.name,
                    tool.effect,
                    tool.deadline_ms,
                    self._keep(spec),
                    tool.modifies,
                    tool.searches,
                )
            )
        offered.extend(
            OfferedTool(spec.name, "step", 0, self._keep(spec)) for spec in IN_STEP_TOOLS
        )
        return Offer(tuple(sorted(self.providers)), tuple(offered), self._contexts())

    def _contexts(self) -> tuple[OfferedModel, ...]:
        found: list[OfferedModel] = []
        for name, provider in sorted(self.providers.items()):
            windows: dict[str, int] = getattr(provider, "context_tokens", {})
            found.extend(OfferedModel(name, model, n) for model, n in sorted(windows.items()))
        return tuple(found)

    def _keep(self, spec: ToolSpec) -> bytes:
        body = _encode(spec)
        digest = text_digest(body)
        self.specs[digest] = spec
        self.bodies.append(body)
        return digest

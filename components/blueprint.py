"""What an agent is: stages, edges between them, regions of context, models and tools, as values.

A blueprint enters the world once, by digest, and never changes after that: a run keeps the one it
was spawned with. The structs hold immutable fields only (no float, dict, list or set), so that a
blueprint is hashable and has one byte form: fractions are integers of thousandths, open tables are
canonical JSON text, and order is kept wherever it decides (stages, edges, models, regions).

The structs do not check themselves. ``engine.blueprints`` reads TOML into them, and its
``validate_blueprint`` checks one that was built in Python.
"""

from __future__ import annotations

import hashlib
from enum import Enum, StrEnum
from typing import Any, Final, Literal, cast

import msgspec

from leviath.components.errors import DocumentError

DIGEST_BYTES: Final = 16


class Condition(StrEnum):
    """When an edge is considered. ``always`` and ``llm_choice`` act alike: both are choosable."""

    always = "always"
    llm_choice = "llm_choice"
    error = "error"
    dead_end = "dead_end"
    max_iterations = "max_iterations"
    stuck = "stuck"

    @property
    def choosable(self) -> bool:
        """Whether an edge of this condition is taken when a stage ends normally."""
        return self is Condition.always or self is Condition.llm_choice


class Transform(StrEnum):
    """What happens to stage-specific regions when an edge is taken."""

    direct = "direct"
    clear = "clear"
    compact = "compact"
    custom = "custom"


class RegionKind(StrEnum):
    """How a region of context takes, keeps and gives up its content."""

    pinned = "pinned"
    temporary = "temporary"
    clearable = "clearable"
    sliding_window = "sliding_window"
    compacting = "compacting"
    compact_history = "compact_history"
    hashmap = "hashmap"
    checklist = "checklist"
    custom = "custom"


class Permission(StrEnum):
    """What a blueprint says about a tool; the host's configuration may only narrow it."""

    allow = "allow"
    ask = "ask"
    deny = "deny"


class StageMode(StrEnum):
    """What kind of work a stage does. ``interactive`` is accepted and acts as ``autonomous``."""

    autonomous = "autonomous"
    interactive = "interactive"
    interactive_points = "interactive_points"
    fan_out = "fan_out"
    output = "output"


Admission = Literal["evict", "reject"]
Strategy = Literal["per_item", "bulk", "compact"]
Volatility = Literal["stable", "grows", "rewritten"]
SeedKind = Literal[
    "task_input", "input", "literal", "files", "glob", "caller", "command", "rhai", "tools"
]


class Node(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Base of all parts of a blueprint. Compare bytes only if ``canonical_bytes`` made them."""


class Gate(Node, frozen=True, kw_only=True):
    """What must hold before a choosable edge is taken; the stage runs again until it does.

    After ``max_attempts`` refusals the edge is taken anyway and counted as forced.
    """

    require_modifications: bool = False
    # Regions that must not be empty.
    require_regions: tuple[str, ...] = ()
    # A region whose content must differ from what it was when the stage was entered; "" for none.
    require_region_updated: str = ""
    # A checklist without open items; "" for none.
    require_no_open_items: str = ""
    # With require_modifications: content in this region counts as a modification; "" for none.
    region: str = ""
    # With require_modifications: the tools that modify; empty for the built-in idea of it.
    tools: tuple[str, ...] = ()
    # Told to the model when the gate holds; "" for a built-in text.
    message: str = ""
    max_attempts: int = 3


class Edge(Node, frozen=True, kw_only=True):
    """One way out of a stage. Edges are tried in their order; several may share a target."""

    to: str
    condition: Condition = Condition.always
    hint: str = ""
    transform: Transform = Transform.direct
    # With transform custom: what is kept, summarised, emptied.
    carry: tuple[str, ...] = ()
    compact: tuple[str, ...] = ()
    clear: tuple[str, ...] = ()
    gate: Gate | None = None
    # With condition stuck: thresholds, 0 for unarmed; at least one is armed.
    stuck_after_iterations: int = 0
    stuck_after_minutes: int = 0
    stuck_after_same_file_edits: int = 0
    stuck_after_tool_calls: int = 0


class ModelRef(Node, frozen=True, kw_only=True):
    """A model by the names its provider is registered under and knows it by."""

    provider: str
    model: str


DEFAULT_MODEL: Final = ModelRef(provider="anthropic", model="claude-sonnet-4-6")


class ModelSpec(Node, frozen=True, kw_only=True):
    """The models of a stage, first choice first, and the knobs of each request."""

    models: tuple[ModelRef, ...] = (DEFAULT_MODEL,)
    allow_user_default: bool = True
    # One call with all of its attempts.
    request_timeout_ms: int = 900_000
    # Thousandths: 700 is a temperature of 0.7. None leaves it to the provider's adapter.
    temperature_milli: int | None = None
    max_output_tokens: int | None = None
    # A JSON object passed through to the provider, canonical text; "" for none.
    parameters_json: str = ""


class ToolRoute(Node, frozen=True, kw_only=True):
    """Where the results of one tool go."""

    tool: str
    region: str
    max_result_tokens: int | None = None


class Routing(Node, frozen=True, kw_only=True):
    """Where tool results go. By default a stage does not route: they stay in the conversation."""

    default_region: str = "conversation"
    # False sends what no override names to the region ``scratch`` where the layout has one.
    persist: bool = True
    max_result_tokens: int | None = None
    overrides: tuple[ToolRoute, ...] = ()

    def route(self, tool: str) -> ToolRoute:
        """Return where results of ``tool`` go, with the limit that applies to them."""
        for route in self.overrides:
            if route.tool == tool:
                if route.max_result_tokens is not None:
                    return route
                return msgspec.structs.replace(route, max_result_tokens=self.max_result_tokens)
        return ToolRoute(
            tool=tool, region=self.default_region, max_result_tokens=self.max_result_tokens
        )


NUDGE_TEXT: Final = (
    "Your last reply called no tool, and this stage has not used any yet. "
    "Either call the tool that moves the work forward, or say plainly that the stage is done."
)


class Nudge(Node, frozen=True, kw_only=True):
    """What the model is told when it answers with text alone before it used any tool."""

    enabled: bool = True
    # How often in one visit of a stage.
    max: int = 3
    text: str = NUDGE_TEXT


class OutputShape(Node, frozen=True, kw_only=True):
    """What a final output should look like; "" where nothing is asked."""

    format: str = ""
    instructions: str = ""
    example: str = ""
    # A JSON schema as canonical text.
    schema_json: str = ""
    # Path of a script, relative to the manifest's folder.
    validator: str = ""


class SeedSpec(Node, frozen=True, kw_only=True):
    """What a region holds when the run starts.

    ``task_input`` is the task; ``input`` and ``caller`` are what the spawner gave for ``key`` (for
    ``input`` an empty key means the region's own name); ``literal`` is ``text``; ``files`` and
    ``glob`` are read from the workdir by ``patterns``. ``command``, ``rhai`` and ``tools`` keep
    what was written in ``text``.
    """

    kind: SeedKind
    key: str = ""
    text: str = ""
    patterns: tuple[str, ...] = ()


REGION_TOKENS_DEFAULT: Final = 5000


class RegionSpec(Node, frozen=True, kw_only=True):
    """One region of context: how large it may grow and what happens when it is full."""

    name: str
    kind: RegionKind = RegionKind.temporary
    # Share of the model's window in thousandths: 125 is "12.5%". None for a fixed size.
    budget_permille: int | None = None
    # None is 5000 for a fixed size and no ceiling for a share.
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: SeedSpec | None = None
    # Whether a stage may end while the region is empty.
    required: bool = False
    required_message: str = ""
    summarizable: bool = True
    admission: Admission = "evict"
    volatility: Volatility = "rewritten"
    description: str = ""
    describe_in_prompt: bool = False
    # sliding_window: items kept; bulk evicts once there are more than max_items + overflow, compact
    # once there are more than max_items + 2 * compact_count.
    max_items: int = 10
    strategy: Strategy = "per_item"
    overflow: int = 10
    compact_count: int = 10
    # compacting: when it is summarised.
    compact_at_permille: int = 800
    threshold_tokens: int | None = None
    # compact_history: the compacting region whose summaries it takes.
    source_region: str = ""
    # hashmap: 0 for no limit by count.
    max_entries: int = 0
    # custom: path of its script; whether transforms leave it alone.
    script: str = ""
    persistent: bool = False

    def capacity_tokens(self, window_tokens: int) -> int:
        """Return the size under a model's window: the share, clipped, then raised to the least."""
        if self.budget_permille is None:
            fixed = REGION_TOKENS_DEFAULT if self.max_tokens is None else self.max_tokens
            return max(fixed, self.min_tokens)
        share = window_tokens * self.budget_permille // 1000
        clipped = share if self.max_tokens is None else min(share, self.max_tokens)
        return max(clipped, self.min_tokens)


Join = Literal["all", "fail_all", "first", "quorum"]


class FanOutSpec(Node, frozen=True, kw_only=True):
    """How a stage with mode fan_out splits its work, and what becomes of the results."""

    # Exactly one of the three: an agent by name or path, a stage of this blueprint with
    # allow_as_worker, or words that the name or description of an installed agent has.
    worker_agent: str = ""
    worker_stage: str = ""
    worker_query: str = ""
    # Entered with the results; "" for the stage's own transition.
    merge_stage: str = ""
    # Where the results go; "" for the conversation.
    results_region: str = ""
    # Put behind the stage's system_prompt.
    split_prompt: str = ""
    # At work at once; 0 for all.
    max_workers: int = 30
    # Of one split; None for no limit but those of the tree.
    max_items: int | None = None
    # How often a stage that did not split is run again.
    max_attempts: int = 3
    # all waits for every worker, fail_all fails with the first that does, first and quorum go on
    # with as many successes; who is not needed any more is cancelled.
    join: Join = "all"
    quorum: int = 0


class PointSpec(Node, frozen=True, kw_only=True):
    """A question that a stage puts to a person before it ends."""

    name: str = ""
    prompt: str = ""
    required: bool = True
    unattended: Literal["auto_approve", "ask"] = "auto_approve"
    style: Literal["free_text", "multiple_choice", "confirm"] = "free_text"
    # Choices that pass, go back to work with these words, cancel the run, edit the document.
    options: tuple[str, ...] = ()
    directives: tuple[str, ...] = ()
    abort_options: tuple[str, ...] = ()
    edit_options: tuple[str, ...] = ()
    document_region: str = ""

    @property
    def choices(self) -> tuple[str, ...]:
        """Everything that can be chosen, in the order in which it is shown."""
        every = (*self.options, *self.directives, *self.edit_options, *self.abort_options)
        return tuple(dict.fromkeys(every))


class StageSpec(Node, frozen=True, kw_only=True):
    """One stage: what the model is told, what it may use, and where the run goes from here."""

    name: str
    mode: StageMode = StageMode.autonomous
    system_prompt: str = ""
    description: str = ""
    # Put before the question when the model chooses between edges; "" for a built-in text.
    transition_prompt: str = ""
    available_tools: tuple[str, ...] = ()
    required_tools: tuple[str, ...] = ()
    # None for the host's default.
    max_iterations: int | None = None
    # Entries beyond the first; None for no limit.
    max_revisits: int | None = None
    allow_complete: bool = False
    # True for mode output.
    require_output: bool = False
    accepts_messages: bool = True
    allow_as_worker: bool = False
    allow_blocking_tools: bool = False
    # None for the blueprint's.
    nudge: Nudge | None = None
    output: OutputShape | None = None
    # By tool name, ascending; what is not named is as the blueprint says.
    permissions: tuple[tuple[str, Permission], ...] = ()
    # The stage's own layout; None for the blueprint's.
    regions: tuple[RegionSpec, ...] | None = None
    model: ModelSpec = ModelSpec()
    routing: Routing = Routing()
    edges: tuple[Edge, ...] = ()
    # False: the run goes on to the next stage in order. True and no edges: the stage is terminal.
    edges_declared: bool = False
    # Whether the stage waits for all children of its run before it ends.
    requires_children: bool = False
    # Of mode fan_out.
    fan_out: FanOutSpec | None = None
    # Asked in order before the stage ends by itself or at its turn limit.
    points: tuple[PointSpec, ...] = ()

    @property
    def instructions(self) -> str:
        """What the model is told on entry: the system prompt, and how to split if it is to."""
        split = "" if self.fan_out is None else self.fan_out.split_prompt
        return "\n".join(filter(None, (self.system_prompt, split)))


class FileTracking(Node, frozen=True, kw_only=True):
    """Which files are mirrored into a region as tools read and write them."""

    region: str = "files"
    track_reads: bool = True
    track_writes: bool = True
    max_file_tokens: int | None = None


class Repetition(Node, frozen=True, kw_only=True):
    """When a run that repeats itself is told so."""

    max_repeat_calls: int = 3
    max_readonly_streak: int = 10


# Regions that every blueprint has and every stage sees, in the order in which they are added.
AUTO_REGIONS: Final = ("conversation", "tool_results", "final_output", "stage_instructions")


class Blueprint(Node, frozen=True, kw_only=True):
    """A whole agent. ``entry`` is the index of the stage a run starts in."""

    name: str = "unnamed"
    version: str = "0.1.0"
    description: str = ""
    entry: int = 0
    max_child_depth: int = 3
    nudge: Nudge = Nudge()
    output: OutputShape | None = None
    # Includes the regions of AUTO_REGIONS once validated.
    regions: tuple[RegionSpec, ...] = ()
    stages: tuple[StageSpec, ...] = ()
    # By tool name, ascending.
    permissions: tuple[tuple[str, Permission], ...] = ()
    file_tracking: FileTracking | None = None
    repetition: Repetition | None = None
    # Asked for, inert until the host grants them.
    read_paths: tuple[str, ...] = ()
    # ``place: key: remedy`` for each key that changes behaviour and is not acted on yet.
    unbuilt: tuple[str, ...] = ()

    def stage_index(self, name: str) -> int:
        """Return the position of the stage called ``name``; KeyError if there is none."""
        for index, stage in enumerate(self.stages):
            if stage.name == name:
                return index
        raise KeyError(name)

    def stage(self, name: str) -> StageSpec:
        """Return the stage called ``name``; KeyError if there is none."""
        return self.stages[self.stage_index(name)]

    def region(self, name: str) -> RegionSpec:
        """Return the region ``name`` of the blueprint's own layout; KeyError if there is none."""
        for region in self.regions:
            if region.name == name:
                return region
        raise KeyError(name)

    def visible_regions(self, stage: StageSpec) -> tuple[RegionSpec, ...]:
        """Return what ``stage`` sees, in order: its layout, then the automatic regions it lacks."""
        if stage.regions is None:
            return self.regions
        own = {region.name for region in stage.regions}
        shared = (r for r in self.regions if r.name in AUTO_REGIONS and r.name not in own)
        return (*stage.regions, *shared)

    def permission(self, stage: StageSpec, tool: str) -> Permission | None:
        """Return what the blueprint says about ``tool`` in ``stage``; None if it says nothing."""
        for name, permission in (*stage.permissions, *self.permissions):
            if name == tool:
                return permission
        return None


_decoder = msgspec.msgpack.Decoder(Blueprint)
_encoder = msgspec.msgpack.Encoder(order="deterministic")


def canonical_bytes(blueprint: Blueprint) -> bytes:
    """Return the one byte form of ``blueprint``: equal values have equal bytes, in every process.

    Fields that equal their default are left out, so that a field added later does not change the
    digest of blueprints that do not use it.
    """
    return _encoder.encode(_reduced(blueprint))


def digest(blueprint: Blueprint) -> bytes:
    """Return the 16 bytes that stand for ``blueprint`` wherever it is referred to."""
    return hashlib.blake2b(canonical_bytes(blueprint), digest_size=DIGEST_BYTES).digest()


def decode_blueprint(data: bytes) -> Blueprint:
    """Return the blueprint that ``canonical_bytes`` wrote; DocumentError for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DocumentError(f"not a blueprint: {error}", field="$") from error


def _reduced(value: Any) -> Any:
    # msgspec's own omit_defaults compares by identity, which differs between equal values.
    if isinstance(value, Node):
        return {
            field.name: _reduced(getattr(value, field.name))
            for field in msgspec.structs.fields(value)
            if field.required or not _is_default(getattr(value, field.name), field.default)
        }
    if isinstance(value, tuple):
        return [_reduced(item) for item in cast("tuple[object, ...]", value)]
    if isinstance(value, Enum):
        return value.value
    return value


def _is_default(value: Any, default: Any) -> bool:
    # Types are compared too: True equals 1, and a wrong value must reach the decoder to be refused.
    if isinstance(value, Node):
        return type(value) is type(default) and _reduced(value) == _reduced(default)
    return type(value) is type(default) and value == default

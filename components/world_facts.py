"""What owner 0, the world itself, knows: counters, policy, what is offered,
prices, breakers."""

from __future__ import annotations

from leviath.components.base import Component, Part
from leviath.components.budget import Limits
from leviath.components.money import Rates


class Counters(Component):
    """Counts that order everything. Written once a step."""

    step: int = 0
    ordinal: int = 0
    """Of the newest run."""
    event: int = 0
    """Of the newest numbered event."""
    sequence: int = 0
    """Of the newest marker move."""
    epoch: int = 0
    """Of the host that has the world; 0 before the first."""
    rules: int = 0
    """Version of the rules that this epoch applies."""
    driven: bool = True
    """The present host drives runs; see ``HostOpened.drive``."""


class Seed(Component):
    """Where all randomness comes from."""

    world_id: str
    seed: int


class Policy(Component):
    """Every number that decides. Recorded, so that a replay decides alike."""

    slots_default: int = 256
    """Concurrent calls of one (provider, model)."""
    slots: tuple[tuple[str, str, int], ...] = ()
    """(provider, model, concurrent calls) where it differs."""
    attempts_max: int = 4
    """Attempts of one call, the first included (leviath-engine 3b)."""
    retry_base_ms: int = 1_000
    """First backoff; doubles."""
    capacity_base_ms: int = 15_000
    """First backoff after rate limits and overload; doubles."""
    capacity_max_ms: int = 60_000
    """Longest backoff; also caps a provider's Retry-After."""
    backoff_total_ms: int = 300_000
    """All backoffs of one call together."""
    call_total_ms: int = 900_000
    """All attempts of one call together, when the stage says nothing."""
    tool_deadline_ms: int = 600_000
    gather_deadline_ms: int = 60_000
    """Of a run's preparation: ``starting`` has a deadline of its own."""
    iterations_default: int = 50
    """Turns of one visit to a stage that sets no cap."""
    reentries_max: int = 3
    """Re-runs of a stage for a missing required region or output."""
    stall_ms: int = 60_000
    """How long a run may stand ready with every provider out of service before it is parked."""
    breaker_failures: int = 3
    """Failures in a row that open a provider's breaker; 0 turns breakers off."""
    breaker_cooldown_ms: int = 300_000
    rounds_max: int = 64
    """Rounds of one step: a run that still moves after so many is caught in a loop."""
    output_bytes_max: int = 262_144
    modified_files_max: int = 200
    text_inline_bytes_max: int = 1_024
    result_inline_bytes_max: int = 65_536
    inbox_messages_max: int = 1_000
    """Messages that wait for one run's next request."""
    deliver_attempts_max: int = 10
    """Attempts at telling a callback address of an ending, the first included: about three
    minutes of backoff."""
    deliver_base_ms: int = 500
    """First backoff of a delivery; doubles (leviath-run-files 7)."""
    deliver_max_ms: int = 60_000
    """Longest backoff of a delivery; also caps a receiver's Retry-After."""
    deliver_deadline_ms: int = 600_000
    """Of one attempt, waiting for its turn to be sent included."""
    tree_depth_max: int = 16
    """Deepest run of a tree, whatever its blueprints allow; a root has depth 0."""
    tree_children_max: int = 1_000
    """Children of one run that have not ended."""
    tree_runs_max: int = 10_000
    """Runs that the runs of one tree may ever start."""
    tree_spawns_max: int = 5_000
    """Of them within one window."""
    tree_window_ms: int = 60_000
    tree_moves_max: int = 64
    """Runs that one step starts, cancels, pauses or resumes because of their parents; the next
    steps go on. Keeps a step short, however large the tree is."""
    child_result_bytes_max: int = 65_536
    """What a parent is shown of all results that one of its calls waited for."""
    budget_output_tokens: int = 8_192
    """Longest reply while a budget covers the call and its stage sets no ``max_output_tokens``: the
    call is made with this limit, so that what is set aside for it is enough."""
    budget_prompt_tokens: int = 0
    """At least so many prompt tokens are set aside for a call: where a provider's own instructions
    make prompts longer than what the engine sees of them."""
    fleet_budget: Limits | None = None
    """For all runs of the world together."""


class OfferedModel(Part):
    """A model that a provider of this host serves."""

    provider: str
    model: str
    context_tokens: int = 200_000


class OfferedTool(Part):
    """A tool that this host can run."""

    name: str
    effect_class: str
    """pure, idempotent or once."""
    deadline_ms: int
    spec: bytes
    """Digest of name, description and schema, which the entry table keeps."""
    modifies: bool = False
    searches: bool = False


class Offer(Component):
    """What the present host offers. A run that needs something else waits for it."""

    providers: tuple[str, ...] = ()
    tools: tuple[OfferedTool, ...] = ()
    contexts: tuple[OfferedModel, ...] = ()
    """Context windows that are known; 200,000 tokens are assumed elsewhere."""


class Priced(Part):
    """Rates of one (provider, model)."""

    provider: str
    model: str
    rates: Rates


class Prices(Component):
    """All rates that are known. A model without a row has no price, which is not a price of
    zero."""

    rows: tuple[Priced, ...] = ()


class Breaker(Part):
    """Failures of one provider."""

    provider: str
    failures: int = 0
    """In a row."""
    open_until_ms: int = 0
    """World time; 0 while closed."""
    probe: int = 0
    """Ordinal of the run whose call tests a half-open breaker; 0 for none."""


class Breakers(Component):
    """Providers with failures; a success removes the row."""

    rows: tuple[Breaker, ...] = ()

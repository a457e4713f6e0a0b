"""Who a run is and what was asked for at spawn. Written once, never changed."""

from __future__ import annotations

from leviath.components.base import Component
from leviath.components.people import Profile
from leviath.components.progress import Cost
from leviath.components.text import Text


class Identity(Component):
    """Names of a run. Links between runs are by run id or ordinal, never by entity id."""

    run_id: str
    """Unique in a home for ever; names the run's folder."""
    ordinal: int
    """The n-th run of this home, from 1. Owner number of all its components."""
    agent_name: str
    agent_path: str
    """Absolute path of the blueprint's folder when it was spawned; "" for one built in Python."""
    key: str = ""
    """The caller's idempotency key; a second spawn with it returns this run. "" for none."""


class Launch(Component):
    """Everything asked for at spawn, frozen."""

    task: Text
    workdir: str
    blueprint: bytes
    """Digest of the blueprint that this run keeps, whatever happens to the file."""
    started_ms: int
    """Unix milliseconds of the spawn."""
    model_override: str | None = None
    yolo: bool = False
    """Unattended: nobody will answer, so nothing is asked."""
    yolo_profile: str | None = None
    output_request: str | None = None
    """The caller's OutputSpec as JSON text."""
    metadata: tuple[tuple[str, str], ...] = ()
    callback_url: str | None = None
    callback_secret_ref: str | None = None
    """Names a row of the secret table; the value itself is in no component, input or event."""
    region_inputs: tuple[tuple[str, Text], ...] = ()
    allow: tuple[str, ...] = ()
    """Tools that the caller allows beside the blueprint's permissions."""
    num_stages: int = 1
    no_output_tools: bool = False
    """No stage offers a tracked write tool (decided at spawn; shell does not count)."""
    read_paths_declared: int | None = None
    read_paths_granted: int = 0
    task_head: str = ""
    """Beginning of a task that is kept by digest, for listings; "" for a short one."""
    profile: Profile | None = None
    """What ``yolo_profile`` stood for at spawn. None beside a name: it was brought in from a
    document, which carries names only."""
    callback_url_ref: str | None = None
    """Names a row of the secret table with the whole address, when ``callback_url`` hides its user
    name or query; the hidden part is in no component, input or event."""

    @property
    def is_unattended(self) -> bool:
        """Nobody will answer, and nothing is asked. A run that was launched under a named profile
        was trusted with less: see ``profile``. Where only the name is known, everything is asked,
        because forgetting may only ask more."""
        return self.yolo and self.yolo_profile is None

    @property
    def answers_nobody(self) -> bool:
        """Questions of this run get no answer."""
        return self.is_unattended or (self.profile is not None and not self.profile.attended)


class Tree(Component):
    """Place in the tree of runs. Children are an index over ``parent``, not a list."""

    parent: int = 0
    """Ordinal; 0 for a root."""
    parent_run_id: str | None = None
    depth: int = 0
    max_child_depth: int = 0
    root: int = 0
    """Ordinal of the tree's root; its own for a root."""
    listed_children: tuple[str, ...] = ()
    """Children named by an imported document, kept as written even if they never loaded."""


class Imported(Component):
    """What an imported run's document said that no component expresses."""

    document: bytes = b""
    """The meta.json as it was found."""
    priced_nano: int = 0
    """Its priced subtotal in nano-dollars; while Cost still equals it, the original figure
    stands."""


class Forked(Component):
    """Where a fork began. Written once."""

    world_id: str
    """Of the world that the other run is in."""
    run_id: str
    """The other run."""
    step: int
    """The step of that world after which the fork begins."""
    prefix: Cost = Cost()
    """What the other run had cost by then, what it had been forked from included. Shown beside the
    fork's own costs, never added to them."""

"""The registry of components: the name of each on disk is its class name, for ever."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

import msgspec

from leviath.components.base import Component
from leviath.components.budget import Allowance, FleetSpent, Reserved, TreeSpent
from leviath.components.context import Context
from leviath.components.effects import Effects, Held, Inbox, Timers, Turn
from leviath.components.family import FanOut, Joins, Rounds, Split, TreeUse, Worker
from leviath.components.identity import Forked, Identity, Imported, Launch, Tree
from leviath.components.outbox import Outbox
from leviath.components.output import Flags, Output, Title
from leviath.components.people import Prompts
from leviath.components.progress import Clock, Cost, Ledgers, Resolution, Stage, Visits
from leviath.components.status import Position, Status
from leviath.components.world_facts import Breakers, Counters, Offer, Policy, Prices, Seed

RUN_PARTS: Final[tuple[type[Component], ...]] = (
    Identity,
    Launch,
    Tree,
    Imported,
    Status,
    Position,
    Clock,
    Cost,
    Ledgers,
    Stage,
    Visits,
    Resolution,
    Context,
    Effects,
    Turn,
    Held,
    Timers,
    Inbox,
    Output,
    Flags,
    Title,
    Outbox,
    TreeUse,
    Worker,
    Joins,
    Split,
    FanOut,
    Rounds,
    Forked,
    Prompts,
    Allowance,
    Reserved,
    TreeSpent,
)
WORLD_PARTS: Final[tuple[type[Component], ...]] = (
    Counters,
    Seed,
    Policy,
    Offer,
    Prices,
    Breakers,
    FleetSpent,
)
PARTS: Final = MappingProxyType({kind.__name__: kind for kind in RUN_PARTS + WORLD_PARTS})
DECODERS: Final = MappingProxyType(
    {name: msgspec.msgpack.Decoder(kind) for name, kind in PARTS.items()}
)
"""One typed decoder a part, built once."""

WORLD_OWNER: Final = 0

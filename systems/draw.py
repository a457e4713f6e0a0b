"""Randomness as a pure function: SplitMix64 over world seed, subject, purpose and counter."""

from __future__ import annotations

from hashlib import blake2b

from leviath.components.parts import WORLD_OWNER
from leviath.components.world_facts import Seed
from leviath.systems.world import World

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(state: int) -> int:
    """One output of the generator whose state is ``state`` (Steele, Lea, Flood 2014)."""
    z = (state + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw(world: World, subject: str, purpose: str, counter: int) -> int:
    """64 random bits that depend on nothing but the world's seed and the arguments."""
    seed = world.find(WORLD_OWNER, Seed)
    name = f"{subject}\x00{purpose}".encode()
    key = int.from_bytes(blake2b(name, digest_size=8).digest(), "big")
    base = 0 if seed is None else seed.seed
    return splitmix64(splitmix64(base ^ key) + counter & _MASK)


def jittered(world: World, subject: str, counter: int, span_ms: int) -> int:
    """A backoff of 50 to 100 percent of ``span_ms``, so that a herd of retries spreads out."""
    half = span_ms // 2
    return span_ms - draw(world, subject, "backoff", counter) % (half + 1)

"""Worlds in an asyncio program: the public face of ``leviath.engine.aio``."""

from leviath.engine.aio import *

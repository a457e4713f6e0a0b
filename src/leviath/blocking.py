"""Worlds for plain, blocking code: the public face of ``leviath.engine.blocking``."""

from leviath.engine.blocking import *

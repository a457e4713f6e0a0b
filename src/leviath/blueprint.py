"""What an agent is, as values: the public face of ``leviath.components.blueprint``."""

from leviath.components.blueprint import *

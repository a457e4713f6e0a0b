"""What subscribers hear: the public face of ``leviath.components.events``."""

from leviath.components.events import *

"""What tests of a host need: the public face of ``leviath.simulation.testing``."""

from leviath.simulation.testing import *

"""The real world on simulated ports; ``Scenario`` and ``simulate`` are its public face."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leviath.simulation.fleet import simulate as simulate
    from leviath.simulation.fleet_scenario import Scenario as Scenario
    from leviath.simulation.report import Report as Report
    from leviath.simulation.sweep import sweep as sweep

__all__ = ["Report", "Scenario", "simulate", "sweep"]

_HOMES = {"Report": "report", "Scenario": "fleet_scenario", "simulate": "fleet", "sweep": "sweep"}
"""Public names, and the modules that hold them: imported when used, since a replay needs none."""


if not TYPE_CHECKING:  # a checker that sees this takes every name for one of ours

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

"""Whether a run's blueprint is still what its file says. The run keeps its own in any case."""

from __future__ import annotations

import os

from leviath.components.blueprint import digest
from leviath.components.errors import BlueprintError
from leviath.engine.blueprints import MANIFEST_NAME, load_blueprint


def drift(agent_path: str, own: bytes) -> str:
    """How the manifest below ``agent_path`` differs from the blueprint of digest ``own``.

    Empty when it does not, and for a blueprint that was built in Python.
    """
    if not agent_path:
        return ""
    file = os.path.join(agent_path, MANIFEST_NAME)
    if not os.path.lexists(file):
        return f"{MANIFEST_NAME} is gone from there; this run keeps its own"
    try:
        now = load_blueprint(file).blueprint
    except BlueprintError:
        return f"{MANIFEST_NAME} cannot be read any more (see lev validate); this run keeps its own"
    if digest(now) != own:
        return f"{MANIFEST_NAME} has changed since; this run keeps its own"
    return ""

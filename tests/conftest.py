"""What holds for every test: no network, a home of its own, examples without a clock."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLUGIN = "leviath.simulation.pytest_plugin"
if not any(entry.value == _PLUGIN for entry in entry_points(group="pytest11")):
    # From a checkout that is not installed; else pytest has loaded it already.
    pytest_plugins = [_PLUGIN]

# A shared machine may pause a process for longer than an example takes: examples have no deadline.
# Continuous integration repeats one set of them: a red build is about the change, not about luck.
hypothesis.settings.register_profile("local", max_examples=50, deadline=None, print_blob=True)
hypothesis.settings.register_profile(
    "ci", hypothesis.settings.get_profile("local"), derandomize=True, database=None
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, str | bytes):
        return  # a socket in this machine's file system
    host = str(address[0])
    if host == "localhost" or ipaddress.ip_address(host).is_loopback:
        return
    raise RuntimeError(f"a test tried to reach {host}: tests use the scripted provider")


# Cannot be removed again, which is the point: no test can reach a paid service by accident.
sys.addaudithook(_refuse_network)


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep tests that name no home away from the home of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVIATH_HOME", str(tmp_path_factory.mktemp("home")))
        yield

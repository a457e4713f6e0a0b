"""What ``import leviath`` gives: every name, at once or when first used, and one version."""

from __future__ import annotations

import importlib.metadata
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import leviath

CLASSES: list[type] = [
    value for name in leviath.__all__ if isinstance(value := getattr(leviath, name), type)
]


def test_the_version_is_the_distributions() -> None:
    try:
        installed = importlib.metadata.version("leviath")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("leviath is not installed here")
    assert leviath.__version__ == installed


def test_modules_are_attributes() -> None:
    for name in ("aio", "blocking", "blueprint", "events", "testing"):
        assert isinstance(getattr(leviath, name), ModuleType)
    assert leviath.blueprint.Blueprint is leviath.Blueprint
    assert issubclass(leviath.events.Ended, leviath.events.Event)
    assert leviath.testing.ManualClock is leviath.ManualClock


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_wolrd'"):
        _ = leviath.open_wolrd  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError):
        getattr(leviath, "Blue")  # noqa: B009 - a part of a name


def test_every_error_is_a_leverror_and_survives_pickling() -> None:
    errors: list[type[leviath.LevError]] = [
        kind for kind in CLASSES if issubclass(kind, leviath.LevError)
    ]
    assert {kind for kind in CLASSES if issubclass(kind, Exception)} == {*errors}
    assert len(errors) > 15
    for kind in errors:
        error = kind("what, and what to do", run_id="a")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.fields["run_id"]) == (kind, str(error), "a")
        assert kind.code


@pytest.mark.parametrize("name", ["RunStatus", "RunMeta", "Secret", "LevError"])
def test_what_reads_files_needs_no_event_loop(name: str) -> None:
    """A program that only reads run files does not pay for trio, esper and SQLite."""
    program = (
        f"import sys, leviath; leviath.{name}; "
        "print([heavy for heavy in ('trio', 'apsw', 'esper') if heavy in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(Path(leviath.__file__).parents[1])},
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().strip() == "[]"


@pytest.mark.parametrize("face", [leviath.aio, leviath.blocking])
def test_every_face_has_what_trio_has(face: ModuleType) -> None:
    """What is added to a world or a run is added for asyncio and for blocking code, too."""
    for kind, other in ((leviath.OpenWorld, face.World), (leviath.RunHandle, face.Run)):
        own = {name for name in dir(kind) if not name.startswith("_")}
        assert own <= {*dir(other)}
        for name in own:
            assert getattr(other, name, "").__doc__
            if callable(getattr(kind, name)):
                wanted = inspect.signature(getattr(kind, name)).parameters
                assert {*wanted} <= {*inspect.signature(getattr(other, name)).parameters}, name

"""Which folder a home is, and that one host at a time has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leviath.components.errors import ConfigError, Locked, StorageError
from leviath.persistence.home import (
    HomeLock,
    hosted_home,
    hosting_state,
    make_home,
    resolve_home,
)

HOLD = """
import sys
from pathlib import Path
from leviath.persistence.home import HomeLock
lock = HomeLock.acquire(Path(sys.argv[1]))
lock.write_epoch(12)
sys.stdout.write("held\\n")
sys.stdout.flush()
sys.stdin.read()
"""
TRY = """
import sys
from pathlib import Path
from leviath.components.errors import Locked
from leviath.persistence.home import HomeLock, hosting_state
state = hosting_state(Path(sys.argv[1]))
try:
    HomeLock.acquire(Path(sys.argv[1])).release()
except Locked as error:
    sys.exit(f"{state}: {error}")
sys.exit(f"{state}: free")
"""


def python(code: str, home: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def try_from_another_process(home: Path) -> str:
    return python(TRY, home).communicate()[1].strip()


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = python(HOLD, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_where_a_home_is(tmp_path: Path) -> None:
    environ = {"LEVIATH_HOME": str(tmp_path / "a"), "HOME": str(tmp_path / "b")}
    assert resolve_home(tmp_path / "c", environ) == tmp_path / "c"
    assert resolve_home(None, environ) == tmp_path / "a" / ".leviath"
    environ["LEVIATH_HOME"] = ""
    assert resolve_home(None, environ) == tmp_path / "b" / ".leviath"
    assert resolve_home(None, {}).name == ".leviath"
    assert resolve_home("x/../y", {}) == Path.cwd().resolve() / "y"
    (tmp_path / "link").symlink_to(tmp_path / "c")
    assert resolve_home(tmp_path / "link", {}) == tmp_path / "c"


def test_what_is_no_home(tmp_path: Path) -> None:
    for bad in ("", "a\x00b"):
        with pytest.raises(ConfigError):
            resolve_home(bad, {})
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="loop"):
        resolve_home(tmp_path / "loop", {})
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="not a folder"):
        make_home(tmp_path / "file")
    with pytest.raises(ConfigError, match="below"):
        make_home(tmp_path / "file" / "below")


def test_a_made_home_is_private_and_an_existing_one_stays(tmp_path: Path) -> None:
    make_home(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    (tmp_path / "c").mkdir(mode=0o750)
    make_home(tmp_path / "c")
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o750


def test_a_second_host_in_another_process_is_refused_with_a_clear_line(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(Locked) as caught:
        HomeLock.acquire(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}: process {holder.pid} hosts it; stop that host or use another home"
    )
    assert hosting_state(tmp_path) == "hosted"
    assert (tmp_path / "lock").read_text() == "12\n"
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_a_killed_hosts_home_is_free_at_once(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert hosting_state(tmp_path) == "not_hosted"
    HomeLock.acquire(tmp_path).release()


def test_a_process_id_in_the_file_means_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    assert hosting_state(tmp_path) == "not_hosted"
    with HomeLock.acquire(tmp_path) as lock:
        lock.write_epoch(3)
        assert os.pread(lock._fd, 100, 0) == b"3\n"


def test_a_second_host_in_this_process_is_refused_by_whatever_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (tmp_path / "link").symlink_to(home)
    with hosted_home(home):
        for path in (home, tmp_path / "link", tmp_path / "x" / ".." / "home"):
            (tmp_path / "x").mkdir(exist_ok=True)
            assert hosting_state(path) == "hosted"
            with pytest.raises(Locked, match="this process hosts it already"):
                HomeLock.acquire(path)
            # Neither the refusal nor the question may have dropped the lock.
            assert try_from_another_process(path).startswith("hosted: ")
            assert "hosts it" in try_from_another_process(path)
    assert hosting_state(home) == "not_hosted"
    assert try_from_another_process(home) == "not_hosted: free"


def test_release_twice_and_take_again(tmp_path: Path) -> None:
    first = HomeLock.acquire(tmp_path)
    first.release()
    second = HomeLock.acquire(tmp_path)
    first.release()
    assert hosting_state(tmp_path) == "hosted"
    second.release()
    assert hosting_state(tmp_path) == "not_hosted"


def test_a_forked_child_does_not_think_it_hosts(tmp_path: Path) -> None:
    code = """
import os, sys
from pathlib import Path
from leviath.components.errors import Locked
from leviath.persistence.home import HomeLock, hosting_state
home = Path(sys.argv[1])
lock = HomeLock.acquire(home)
if (child := os.fork()) == 0:
    try:
        HomeLock.acquire(home)
    except Locked as error:
        os._exit(0 if f"process {os.getppid()} " in str(error) else 1)
    os._exit(2)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    process = python(code, tmp_path)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


def test_states_that_are_neither_hosted_nor_not(tmp_path: Path) -> None:
    assert hosting_state(tmp_path) == "not_hosted"
    assert hosting_state(tmp_path / "missing") == "not_hosted"
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    assert hosting_state(tmp_path) == "unknown"
    with pytest.raises(StorageError, match="cannot be opened"):
        HomeLock.acquire(tmp_path)
    assert not (tmp_path / "elsewhere").exists()

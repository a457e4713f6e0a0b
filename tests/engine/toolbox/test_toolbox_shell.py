"""Commands under a supervisor: what they give, and that nothing of them is left."""

import os
import select
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import trio

import leviath
from leviath.engine.limits import (
    TOOL_GROUP_KILL_MS,
    TOOL_RESULT_INLINE_BYTES_MAX,
    TOOL_SPILL_BYTES_MAX,
)
from leviath.engine.tools import Tool, ToolCall, ToolResult

MakeCall = Callable[..., ToolCall]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="looks at processes by their descriptors (Linux)"
)
PATIENCE_S = 30
"""Only a failing test waits this long."""


@pytest.fixture
def shell(tools: dict[str, Tool]) -> Tool:
    return tools["shell"]


@pytest.fixture
def work(tmp_path: Path, make_call: MakeCall) -> Path:
    return tmp_path / "work"


def run(shell: Tool, call: ToolCall, command: str, **more: object) -> ToolResult:
    async def main() -> ToolResult:
        with trio.fail_after(PATIENCE_S):
            return await shell.call(call, {"command": command, **more})

    return trio.run(main)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("command", "text", "is_error"),
    [
        ("echo out; echo err >&2", "out\nerr\n[exit code 0]", False),
        ("printf 'no newline'; exit 3", "no newline\n[exit code 3]", True),
        ("true", "[exit code 0]", False),
        ("kill -9 $$", "[killed by signal 9]", True),
        ("nothing-like-this 2>/dev/null", "[exit code 127]", True),
        ("cat; printf 'a\\nb'", "a\nb\n[exit code 0]", False),
        (r"printf '\355\240\275 \0 end'", "\ufffd\ufffd\ufffd \ufffd end\n[exit code 0]", False),
        ("exec >&- 2>&-; exit 4", "[exit code 4]", True),
        ("cd /; pwd", "/\n[exit code 0]", False),
        ("trap 'echo bye; exit 5' TERM; kill $$; wait", "bye\n[exit code 5]", True),
    ],
)
def test_output_and_end_of_a_command(
    shell: Tool, make_call: MakeCall, command: str, text: str, is_error: bool
) -> None:
    assert run(shell, make_call(), command) == ToolResult(text=text, is_error=is_error)


def test_a_command_runs_in_the_workdir(shell: Tool, make_call: MakeCall, work: Path) -> None:
    run(shell, make_call(), "echo x > made")
    assert (work / "made").read_text() == "x\n"


def test_a_command_sees_none_of_the_hosts_secrets(
    shell: Tool, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEVIATH_CANARY_KEY", "canary-value")
    command = "env; tr '\\0' '\\n' </proc/$PPID/environ; cat /proc/$PPID/cmdline"
    result = run(shell, make_call(), command)
    assert "PATH=" in result.text
    assert "canary" not in result.text.lower()


@pytest.mark.parametrize("command", ["echo \0", "x" * 100_001])
def test_a_command_that_no_shell_can_take_is_refused(
    shell: Tool, make_call: MakeCall, command: str
) -> None:
    result = run(shell, make_call(), command)
    assert result.is_error
    assert "no NUL and at most 100000 bytes" in result.text


def test_a_workdir_that_is_gone_is_named(shell: Tool, make_call: MakeCall) -> None:
    call = msgspec.structs.replace(make_call(), workdir="/no/such/folder")
    assert "cannot start a command in '/no/such/folder'" in run(shell, call, "true").text


# --- nothing is left -----------------------------------------------------------------------------

FAMILIES = pytest.mark.parametrize(
    "command",
    [
        "sleep 300 & echo $$ $! > ready; wait",
        "setsid sh -c 'echo $$ > ready; exec sleep 300' & wait",
        "(setsid sh -c 'echo $$ > ready; exec sleep 300 >/dev/null 2>&1' &); exec sleep 300",
        "trap '' TERM; sh -c 'trap \"\" TERM; echo $$ > ready; while :; do sleep 300; done'",
        "echo $$ > ready; kill -STOP $$",
        "kill -STOP $PPID; setsid sh -c 'echo $$ > ready; exec sleep 300' & wait",
    ],
    ids=[
        "background",
        "new session",
        "orphan in new session",
        "ignores SIGTERM",
        "stopped",
        "stops",
    ],
)


async def read_pids(work: Path) -> list[int]:
    """Waits for the command to write its process ids into the pipe ``ready``."""
    text = await trio.to_thread.run_sync((work / "ready").read_text, abandon_on_cancel=True)
    return [int(word) for word in text.split()]


@FAMILIES
def test_a_cancelled_command_leaves_no_process(
    shell: Tool, make_call: MakeCall, work: Path, command: str
) -> None:
    os.mkfifo(work / "ready")

    async def main() -> list[int]:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(shell.call, make_call(), {"command": command})
                pids = await read_pids(work)
                assert all(alive(pid) for pid in pids)
                nursery.cancel_scope.deadline = trio.current_time()
                began = trio.current_time()
            # The call has returned: nothing is left, and it took no longer than promised.
            assert trio.current_time() - began < TOOL_GROUP_KILL_MS / 1000
        return pids

    assert not any(alive(pid) for pid in trio.run(main))


HOST = """
import sys, trio
from leviath.engine.tools import ToolCall, builtin_tools
workdir, spill_dir, command = sys.argv[1:]
call = ToolCall(run_id="r", call_id="c", tool="shell", attempt=1, idempotency_key="k",
                deadline_ms=300_000, workdir=workdir, spill_dir=spill_dir)
trio.run(builtin_tools()[-1].call, call, {"command": command})
"""


@FAMILIES
def test_a_killed_host_leaves_no_process(make_call: MakeCall, work: Path, command: str) -> None:
    os.mkfifo(work / "ready")
    source = os.path.dirname(os.path.dirname(os.path.abspath(leviath.__file__)))
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(work), make_call().spill_dir, command],
        env={**os.environ, "PYTHONPATH": source},
    )
    pids = [int(word) for word in (work / "ready").read_text().split()]
    watched = [os.pidfd_open(pid) for pid in pids]
    host.kill()
    host.wait()
    # A pidfd becomes readable when its process ends.
    left = set(watched)
    while left:
        gone, _, _ = select.select(left, [], [], TOOL_GROUP_KILL_MS / 1000)
        assert gone, "a process outlived its host by more than 2 s"
        left -= set(gone)
    for fd in watched:
        os.close(fd)


def test_a_host_whose_pipe_a_forked_child_holds_leaves_no_process(
    make_call: MakeCall, work: Path
) -> None:
    os.mkfifo(work / "ready")
    forking = HOST.replace(
        "trio.run(builtin_tools()[-1].call, call, {", "trio.run(both, {"
    ).replace(
        "call = ToolCall",
        "import os\n"
        "async def both(arguments):\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(builtin_tools()[-1].call, call, arguments)\n"
        "        await trio.to_thread.run_sync(open, workdir + '/go')\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            open(workdir + '/end').read()\n"
        "            os._exit(0)\n"
        "        open(workdir + '/forked', 'w').close()\n"
        "call = ToolCall",
    )
    for name in ("go", "forked", "end"):
        os.mkfifo(work / name)
    host = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", forking, str(work), make_call().spill_dir,
         "echo $$ > ready; exec sleep 300"],
        env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(leviath.__file__))},
    )  # fmt: skip
    (pid,) = [int(word) for word in (work / "ready").read_text().split()]
    watched = os.pidfd_open(pid)
    (work / "go").write_text("")
    (work / "forked").read_text()
    host.kill()
    host.wait()
    gone, _, _ = select.select([watched], [], [], TOOL_GROUP_KILL_MS / 1000)
    (work / "end").write_text("")
    os.close(watched)
    assert gone


def test_what_a_command_leaves_in_the_background_is_ended(shell: Tool, make_call: MakeCall) -> None:
    result = run(shell, make_call(), "setsid sleep 300 & sleep 300 & echo $!")
    pid, end = result.text.split("\n")
    assert end == "[exit code 0; processes that it left running were ended]"
    assert not alive(int(pid))


def test_the_deadline_kills_and_what_was_written_stays(shell: Tool, make_call: MakeCall) -> None:
    command = "echo begun; sleep 300 & wait"
    result = run(shell, make_call(), command, timeout_ms=300)
    text = "begun\n[killed with all its processes: the deadline of 300 ms passed]"
    assert result == ToolResult(text=text, is_error=True)
    result = run(shell, make_call(deadline_ms=200), command, timeout_ms=90_000)
    assert "the deadline of 200 ms passed" in result.text


def test_a_command_that_kills_its_supervisor_does_not_outlive_it(
    shell: Tool, make_call: MakeCall, work: Path
) -> None:
    inner = "echo $$ > pid; kill -9 $0; exec sleep 300"
    command = f"setsid sh -c '{inner}' $PPID & wait"
    result = run(shell, make_call(), command)
    assert "killed together with its supervisor" in result.text
    assert result.is_error
    pid = int((work / "pid").read_text())
    if alive(pid):  # killed, and not yet waited for by whoever inherited it
        watched = os.pidfd_open(pid)
        assert select.select([watched], [], [], PATIENCE_S)[0]
        os.close(watched)


def test_a_signal_to_the_supervisor_ends_the_command(shell: Tool, make_call: MakeCall) -> None:
    result = run(shell, make_call(), f"kill -{signal.SIGTERM.value} $PPID; sleep 300")
    assert result == ToolResult(text="[killed with all its processes]", is_error=True)


# --- large output --------------------------------------------------------------------------------


def test_50_mb_of_output_are_spilled_and_memory_stays_small(
    shell: Tool, make_call: MakeCall, tmp_path: Path
) -> None:
    tracemalloc.start()
    try:
        result = run(
            shell, make_call(), "echo first; yes 0123456789abcde | head -c 50000000; echo last"
        )
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 16 * TOOL_RESULT_INLINE_BYTES_MAX
    assert len(result.text.encode()) <= TOOL_RESULT_INLINE_BYTES_MAX
    assert result.text.startswith("first\n0123")
    assert result.text.endswith("abcde\nlast\n[exit code 0]")
    assert "all 50000011 bytes are in spill/c1.log" in result.text
    assert result.spill == "spill/c1.log"
    kept = tmp_path / "run" / "spill" / "c1.log"
    assert kept.stat().st_size == 50_000_011
    assert kept.stat().st_mode & 0o777 == 0o600


def test_output_without_end_is_cut_off_and_the_command_killed(
    shell: Tool, make_call: MakeCall, tmp_path: Path
) -> None:
    result = run(shell, make_call(), "yes & yes")
    assert result.is_error
    assert "[killed with all its processes: it wrote more than 67108864 bytes]" in result.text
    assert "the first 67108864 of " in result.text
    assert (tmp_path / "run" / "spill" / "c1.log").stat().st_size == TOOL_SPILL_BYTES_MAX


def test_a_disk_that_refuses_the_spill_file_does_not_stop_the_command(
    shell: Tool, make_call: MakeCall, tmp_path: Path
) -> None:
    (tmp_path / "run" / "spill" / "c1.log").mkdir(parents=True)
    result = run(shell, make_call(), "yes | head -c 200000; echo last")
    assert not result.is_error
    assert result.spill is None
    assert "the whole could not be kept (EISDIR)" in result.text
    assert result.text.endswith("y\nlast\n[exit code 0]")


def test_binary_output_stays_within_the_limit_and_whole_in_the_file(
    shell: Tool, make_call: MakeCall, tmp_path: Path
) -> None:
    result = run(shell, make_call(), r"head -c 100000 /dev/zero; yes \377 | head -c 100000")
    assert len(result.text.encode()) <= TOOL_RESULT_INLINE_BYTES_MAX
    assert "all 200000 bytes are in spill/c1.log" in result.text
    assert (tmp_path / "run" / "spill" / "c1.log").stat().st_size == 200_000

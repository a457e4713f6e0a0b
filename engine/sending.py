"""Carrying durable commands outside: which lane takes a job, and how one is broken off."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from leviath.components.commands import Abort, CallTool, Deliver, FindAgent, Gather, Infer
from leviath.engine.delivering import DeliverJob
from leviath.engine.finding import AgentJob
from leviath.engine.gathering import GatherJob
from leviath.engine.lanes import Lane, ThreadLane
from leviath.engine.limits import CALLBACK_LANE_WORKERS_MAX
from leviath.engine.outside import InferJob, Outside, ToolJob

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import trio

    from leviath.components.commands import Command


_log = logging.getLogger("leviath.engine")


class Sending:
    """The lanes of one host. Belongs to the nursery that the host runs in."""

    def __init__(self, outside: Outside, nursery: trio.Nursery, token: trio.lowlevel.TrioToken):
        self._outside = outside
        self._lane = Lane(nursery)
        self._callbacks = Lane(nursery, workers_max=CALLBACK_LANE_WORKERS_MAX)
        self._threads = ThreadLane(token)
        self._sync_jobs: dict[Hashable, ToolJob] = {}
        self._closed = False

    @property
    def is_busy(self) -> bool:
        """Something is outside, or waits to go there."""
        lanes = (self._lane, self._callbacks)
        return bool(self._sync_jobs or any(lane.busy or lane.waiting for lane in lanes))

    @property
    def has_plain_calls(self) -> bool:
        """Plain functions are at work or wait for a thread."""
        return bool(self._sync_jobs)

    def look(self) -> None:
        """Add a thread when plain functions keep others waiting."""
        if self._sync_jobs and self._threads.is_behind:
            self._threads.grow()

    def carry_out(self, command: Command) -> None:
        """Send one command. Its outcome is posted, whatever becomes of it."""
        match command:
            case Infer():
                self._lane.put(InferJob(self._outside, command))
            case CallTool():
                self._call_tool(command)
            case Gather():
                self._lane.put(GatherJob(self._outside, command))
            case Deliver():
                self._callbacks.put(DeliverJob(self._outside, command))
            case FindAgent():
                self._lane.put(AgentJob(self._outside, command))
            case Abort():
                self._abort((command.run, command.effect))
            case _:
                pass

    def close(self) -> None:
        """Break everything off. A plain function that is at work goes on until it returns."""
        self._closed = True
        self._lane.cancel_all()
        self._callbacks.cancel_all()
        self._threads.close()

    def _call_tool(self, command: CallTool) -> None:
        job = ToolJob(self._outside, command)
        if job.refused():
            return
        assert job.tool is not None
        if job.tool.is_async:
            self._lane.put(job)
            return
        self._sync_jobs[job.key] = job

        def work() -> Callable[[], None]:
            if job.done or self._closed:
                # Given up before it began: it must not happen now.
                return lambda: None
            land = job.perform_sync()

            def landed() -> None:
                self._sync_jobs.pop(job.key, None)
                try:
                    land()
                except Exception:  # noqa: BLE001 - here is no task that could raise it
                    _log.error(
                        "run %s: a result of %s cannot be used",
                        job.command.run_id,
                        job.command.tool,
                    )
                    job.abandoned()

            return landed

        self._threads.put(work)

    def _abort(self, key: Hashable) -> None:
        job = self._sync_jobs.pop(key, None)
        if job is None:
            # Numbers of effects and deliveries come from one counter: at most one lane has it.
            self._lane.cancel(key)
            self._callbacks.cancel(key)
            return
        job.abandoned()
        self._threads.grow()

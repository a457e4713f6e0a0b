"""``lev ps``: what runs, what waits, what was interrupted.

Reads the index alone, of a home that is hosted or not. Whether a run is hosted comes from the lock
of its home and from nothing else: no status, no age and no process id says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from leviath.engine.clock import RealClock
from leviath.lev.homes import home_of
from leviath.lev.text import age, home_option, note, one_line, plural, show, table
from leviath.persistence.home import hosting_state
from leviath.persistence.listing import ENDED, LIVE, ListedRun, Listing, Stray, strays

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from leviath.persistence.home import HostingState

FINISHED_FOR_MS: Final = 300_000
"""How long a run that ended is listed without ``--all``."""
STRAYS_READ_MAX: Final = 50
"""Folders without a run whose files are read to say what is wrong; the rest is named alone."""

_HOSTED: Final = {"hosted": True, "not_hosted": False, "unknown": None}
_DRIVEN: Final = ("starting", "running")


class Snapshot(NamedTuple):
    """What one call of ``lev ps`` found."""

    hosting: HostingState
    now_ms: int
    runs: list[ListedRun]
    counts: dict[str, int]
    quarantined: dict[str, str]
    """By run id, why no host drives it."""
    unreadable: list[dict[str, object]]
    not_imported: list[dict[str, object]]
    next_after: int | None

    def is_interrupted(self, run: ListedRun) -> bool:
        """Was being driven, and nobody hosts it now."""
        if run.status not in _DRIVEN:
            return False
        return self.hosting == "not_hosted" or run.run_id in self.quarantined


def ps(arguments: argparse.Namespace) -> int:
    """Print the listing; always 0 unless the home cannot be read."""
    home = home_of(arguments.home)
    found = look(home, limit=arguments.limit, after=arguments.after, ended=arguments.all)
    if arguments.json:
        import json

        print(json.dumps(document(found, ended=arguments.all), ensure_ascii=False, indent=2))
        return 0
    if not home.is_dir():
        note(f"{home} does not exist yet")
    show(lines(found, ended=arguments.all, home=arguments.home))
    return 0


def look(home: Path, *, limit: int, after: int | None, ended: bool) -> Snapshot:
    """Read one page and what belongs to it. Raises Damaged, NewerFormat, StorageError."""
    now_ms = RealClock().wall_ms()
    # The lock before the rows: a run that shows as driven by nobody had no host when it was read.
    hosting = hosting_state(home)
    listing = Listing.open(home)
    if listing is None:
        return Snapshot(hosting, now_ms, [], {}, {}, *_unknown(home, ()), next_after=None)
    with listing:
        since = None if ended else now_ms - FINISHED_FOR_MS
        runs = listing.page(limit=limit + 1, after=after, ended_since_ms=since)
        more = len(runs) > limit
        runs = runs[:limit]
        counts, quarantined = listing.counts(), listing.quarantined()
        others = _unknown(home, listing.run_ids() | listing.forgotten())
    if hosting == "not_hosted":
        hosting = hosting_state(home)
    following = runs[-1].ordinal if more else None
    return Snapshot(hosting, now_ms, runs, counts, quarantined, *others, next_after=following)


def _unknown(
    home: Path, known: set[str] | tuple[str, ...]
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Folders that no run row knows: those that do not load, and those the next host takes in."""
    unreadable: list[dict[str, object]] = []
    not_imported: list[dict[str, object]] = []
    for count, stray in enumerate(strays(home, known)):
        if count >= STRAYS_READ_MAX and not stray.fault:
            unreadable.append({"run_id": stray.name, "reason": "not looked at: too many like it"})
            continue
        fault, status = (stray.fault, None) if stray.fault else _look_into(home, stray)
        entry: dict[str, object] = {"run_id": stray.name}
        if status is not None:
            entry["status"] = status
        if fault:
            unreadable.append(entry | {"reason": fault})
        else:
            not_imported.append(entry)
    return unreadable, not_imported


def _look_into(home: Path, stray: Stray) -> tuple[str, str | None]:
    """What is wrong with a folder, and the status word that its document carries."""
    # Only here: a home without strange folders never pays for these imports.
    from leviath.components.errors import DocumentError, LevError
    from leviath.components.run_id import check_run_id
    from leviath.persistence.run_meta import RunMeta

    try:
        check_run_id(stray.name)
        meta = RunMeta.load(home / "runs" / stray.name / "meta.json")
    except DocumentError as error:
        word = error.fields.get("status_word")
        return error.message, None if word is None else str(word)
    except (LevError, OSError) as error:
        return str(error), None
    if meta.run_id != stray.name:
        return f"its document is of run {meta.run_id!r}", meta.status.wire()
    return "", meta.status.wire()


# --- for programs -------------------------------------------------------------------------------


def document(found: Snapshot, *, ended: bool) -> dict[str, object]:
    """The listing as JSON values; key by key in docs/reference/lev.md."""
    recent = found.now_ms - FINISHED_FOR_MS
    live = [run for run in found.runs if run.status not in ENDED]
    over = [run for run in found.runs if run.status in ENDED]
    finished = [run for run in over if (run.ended_ms or run.updated_ms) >= recent]
    body: dict[str, object] = {
        "runs": [_entry(found, run) for run in live],
        "finished": [_entry(found, run) for run in finished],
        "health": {"agents": _agents(found)},
        "hosted": _HOSTED[found.hosting],
        "quarantined": list(found.quarantined),
        "unreadable": found.unreadable,
        "not_imported": found.not_imported,
        "next_after": found.next_after,
    }
    if ended:
        older = [run for run in over if (run.ended_ms or run.updated_ms) < recent]
        body["daemon_reachable"] = _HOSTED[found.hosting]
        body["not_running"] = [_ended(run) for run in older]
    return body


def _agents(found: Snapshot) -> dict[str, int | None]:
    counts = found.counts
    driven = sum(counts.get(word, 0) for word in _DRIVEN)
    lost = len(found.quarantined)
    active = {"hosted": driven - min(lost, driven), "not_hosted": 0, "unknown": None}
    return {
        "active": active[found.hosting],
        "interrupted": None
        if found.hosting == "unknown"
        else driven - (active[found.hosting] or 0),
        "waiting": counts.get("waiting_input", 0),
        "paused": counts.get("paused", 0),
        "idle": counts.get("complete_interactive", 0),
        "terminal": sum(counts.get(word, 0) for word in ENDED),
    }


def _seconds(ms: int | None) -> int | None:
    return None if ms is None else ms // 1_000


def _entry(found: Snapshot, run: ListedRun) -> dict[str, object]:
    is_quarantined = run.run_id in found.quarantined
    is_live = run.status in LIVE
    body: dict[str, object] = {
        "run_id": run.run_id,
        "title": run.title,
        "status": run.status,
        "hosted": False if is_quarantined or not is_live else _HOSTED[found.hosting],
        "interrupted": found.is_interrupted(run),
        "quarantined": is_quarantined,
    }
    if run.waiting_on is not None:
        body["wait_reason"] = run.waiting_on
    if run.error is not None:
        body["error"] = run.error
    return body | {
        "agent_name": run.agent_name,
        "parent_run_id": run.parent_run_id,
        "stage": run.stage,
        "stage_index": run.stage_index,
        "num_stages": run.num_stages,
        "iteration": run.iteration,
        "tool_calls": run.tool_calls,
        "started_at": _seconds(run.started_ms),
        "last_progress_at": _seconds(run.progress_ms),
        "unattended": bool(run.yolo),
        "empty_output": bool(run.empty_output),
        "splits_degraded": None,  # not in the index: unknown, which is not zero
        "has_final_output": bool(run.has_output),
    }


def _ended(run: ListedRun) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "status": run.status,
        "error": run.error,
        "started_at": _seconds(run.started_ms),
        "updated_at": _seconds(run.updated_ms),
        "last_progress_at": _seconds(run.progress_ms),
        "empty_output": bool(run.empty_output),
        "splits_degraded": None,
        "has_final_output": bool(run.has_output),
        "abandoned": False,
    }


# --- for people ---------------------------------------------------------------------------------


def lines(found: Snapshot, *, ended: bool, home: str | None) -> list[str]:
    """The listing as lines of text."""
    body = _table(found)
    if not body:
        body = ["no runs" if ended else "no agent runs active"]
    return body + _footers(found, home_option(home))


def _table(found: Snapshot) -> list[str]:
    titled = any(run.title for run in found.runs)
    head = ["RUN", *(["TITLE"] if titled else []), "STATUS", "STAGE", "ITER", "TOOLS", "AGE"]
    rows = [
        [
            "  " * depth + run.run_id,
            *([run.title or "-"] if titled else []),
            _status(found, run),
            _stage(run),
            str(run.iteration),
            str(run.tool_calls),
            age(run.progress_ms, found.now_ms),
        ]
        for depth, run in nested(found.runs)
    ]
    last = len(head) - 1
    return table([head, *rows], right=(last - 2, last - 1, last)) if rows else []


def nested(runs: list[ListedRun]) -> list[tuple[int, ListedRun]]:
    """The runs of a page with how deep each stands below another one of it: a run is followed by
    its children, oldest first; runs that stand alone keep their order."""
    known = {run.run_id for run in runs}
    below: dict[str, list[ListedRun]] = {}
    tops: list[ListedRun] = []
    for run in runs:
        if run.parent_run_id in known and run.parent_run_id != run.run_id:
            below.setdefault(str(run.parent_run_id), []).append(run)
        else:
            tops.append(run)
    found: list[tuple[int, ListedRun]] = []
    todo = [(0, run) for run in reversed(tops)]
    while todo:
        depth, run = todo.pop()
        found.append((depth, run))
        # Newest first, so that the oldest is taken next.
        todo += [(depth + 1, child) for child in below.pop(run.run_id, ())]
    # Runs whose documents name each other as parents have no top.
    return found + [(0, run) for runs in below.values() for run in runs]


def _status(found: Snapshot, run: ListedRun) -> str:
    if run.run_id in found.quarantined:
        return "quarantined"
    if found.is_interrupted(run):
        return "interrupted"
    reason = (run.waiting_on or "").replace("_", " ")
    if run.status == "waiting_input":
        return f"waiting: {reason}" if reason else "waiting"
    if run.status == "paused":
        return f"paused: {reason}" if reason else "paused"
    if run.status == "error":
        return f"error: {run.error or 'no message'}"[:60]
    return f"{run.status} (no output)" if run.empty_output else run.status


def _stage(run: ListedRun) -> str:
    if not run.stage:
        return "-"
    return (
        f"{run.stage} {run.stage_index + 1}/{run.num_stages}" if run.num_stages > 1 else run.stage
    )


def _footers(found: Snapshot, option: str) -> list[str]:
    notes: list[str] = []
    agents = _agents(found)
    if count := agents["waiting"]:
        verb = "waits" if count == 1 else "wait"
        notes.append(f"{plural(count, 'run')} {verb} for somebody: lev show{option} RUN")
    if lost := agents["interrupted"]:
        notes.append(f"{plural(lost, 'run')} interrupted: `lev host{option}` drives them on")
    if found.hosting == "unknown":
        notes.append("whether this home is hosted cannot be told: its lock cannot be looked at")
    notes += [f"quarantined: {name} ({one_line(why)})" for name, why in found.quarantined.items()]
    notes += [
        f"unreadable: {one_line(str(entry['run_id']))}: {one_line(str(entry['reason']))}"
        for entry in found.unreadable
    ]
    if found.not_imported:
        folders = plural(len(found.not_imported), "run folder")
        notes.append(f"{folders} that this home does not know yet: the next host takes them in")
    if found.next_after is not None:
        notes.append(f"more: lev ps{option} --after {found.next_after}")
    return ["", *notes] if notes else []

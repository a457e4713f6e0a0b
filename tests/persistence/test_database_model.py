"""A database against a model of dicts, with hosts that come, go and die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from leviath.persistence.database import (
    Batch,
    Database,
    JournalRow,
    LedgerRow,
    MirrorRow,
    StateRow,
    open_database,
)

OWNERS = st.integers(0, 3)
PARTS = st.sampled_from(["a", "b"])
BODIES = st.none() | st.binary(max_size=40)
DIGESTS = st.binary(min_size=1, max_size=2)


class DatabaseMachine(RuleBasedStateMachine):
    """``self.state`` is what a finished cut made valid, ``self.written`` what the next one will."""

    @initialize()
    def make(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.journal: dict[int, JournalRow] = {}
        self.entries: dict[bytes, bytes] = {}
        self.ledger: dict[tuple[int, int, int], LedgerRow] = {}
        self.mirror: dict[tuple[int, str], MirrorRow] = {}
        self.state: dict[tuple[int, str], tuple[int, bytes]] = {}
        self.written: dict[tuple[int, str, int], bytes | None] = {}
        self.gone: dict[int, int] = {}
        self.step = self.cut = self.epoch = 0
        self.db = self.opened()
        self.db.initialise("w", 5)
        self.claim()

    def opened(self) -> Database:
        return open_database(self.folder / "world.db", level="process")

    def claim(self) -> None:
        self.epoch += 1
        assert self.db.claim(self.epoch, "r") == self.epoch
        self.written.clear()

    @rule(
        skip=st.integers(1, 3),
        steps=st.integers(0, 3),
        entries=st.dictionaries(DIGESTS, st.binary(max_size=20), max_size=3),
        ledger=st.lists(st.tuples(OWNERS, st.integers(1, 2), st.integers(1, 2)), max_size=2),
        mirror=st.lists(st.tuples(OWNERS, PARTS), max_size=2),
        gone=st.none() | st.integers(1, 3),
    )
    def commit(
        self,
        skip: int,
        steps: int,
        entries: dict[bytes, bytes],
        ledger: list[tuple[int, int, int]],
        mirror: list[tuple[int, str]],
        gone: int | None,
    ) -> None:
        batch = Batch(entries=list(entries.items()))
        for step in range(self.step + skip, self.step + skip + steps):
            body = b"%d" % step
            batch.journal.append(JournalRow(step, self.epoch, 1, 2, body, body, body, body))
        step = batch.journal[-1].step if batch.journal else self.step
        for key in ledger:
            batch.ledger.append(LedgerRow(*key, "turn", "p", "m", 1, 2, 3, 4, None, "rates", step))
        for run, file in mirror:
            batch.mirror.append(MirrorRow(run, file, step, 3, b"before", b"%d" % step))
        if gone is not None:
            batch.gone.append(gone)
        self.db.commit(batch)
        self.step = step
        self.journal |= {row.step: row for row in batch.journal}
        self.entries = entries | self.entries  # written once: the first body stays
        self.ledger |= {(row.run, row.effect, row.attempt): row for row in batch.ledger}
        self.mirror |= {(row.run, row.file): row for row in batch.mirror}
        if gone is not None:
            self.gone[gone] = step
            self.ledger = {key: row for key, row in self.ledger.items() if key[0] != gone}
            self.mirror = {key: row for key, row in self.mirror.items() if key[0] != gone}

    @precondition(lambda self: self.step > self.cut)
    @rule(owner=OWNERS, part=PARTS, body=BODIES)
    def write_state(self, owner: int, part: str, body: bytes | None) -> None:
        self.db.write_state([StateRow(owner, part, self.step, zlib.crc32(body or b""), body)])
        self.written[owner, part, self.step] = body

    @precondition(lambda self: self.step > self.cut)
    @rule(history=st.none() | st.integers(0, 40))
    def finish_cut(self, history: int | None) -> None:
        self.db.finish_cut(self.step, keep_history_from=history)
        self.cut = self.step
        for (owner, part, cut), body in sorted(self.written.items(), key=lambda item: item[0][2]):
            if body is None:
                self.state.pop((owner, part), None)
            else:
                self.state[owner, part] = (cut, body)
        self.written.clear()
        self.state = {key: row for key, row in self.state.items() if key[0] not in self.gone}
        self.gone.clear()
        older = [step for step in self.journal if history is not None and step <= history]
        for step in sorted(older)[:-1]:
            del self.journal[step]

    @rule(clean=st.booleans())
    def restart(self, clean: bool) -> None:
        if clean:
            self.db.mark_clean()
        else:  # a process that dies leaves the files as they are now
            copy = Path(tempfile.mkdtemp())
            for name in ("world.db", "world.db-wal"):
                if (self.folder / name).exists():
                    shutil.copy(self.folder / name, copy)
            self.db.close()
            shutil.rmtree(self.folder)
            self.folder = copy
        self.db.close()
        self.db = self.opened()
        opening = self.db.openings()[-1]
        assert (opening.epoch, opening.clean) == (self.epoch, clean)
        self.claim()

    @invariant()
    def agrees(self) -> None:
        db = self.db
        world = db.world()
        assert world is not None
        assert (world.step, world.cut, world.epoch) == (self.step, self.cut, self.epoch)
        assert list(db.journal_after(0)) == [self.journal[step] for step in sorted(self.journal)]
        assert db.entries(self.entries) == self.entries
        assert db.mirror_rows() == [self.mirror[key] for key in sorted(self.mirror)]
        for run in range(4):
            rows = [row for key, row in sorted(self.ledger.items()) if key[0] == run]
            assert db.ledger(run) == rows
        state = [(row.owner, row.part, row.cut, row.body) for row in db.state_rows()]
        assert state == [(*key, *value) for key, value in sorted(self.state.items())]
        one = [(row.owner, row.part, row.cut, row.body) for row in db.owner_state(1)]
        assert one == [row for row in state if row[0] == 1]

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)


DatabaseMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
TestDatabase = DatabaseMachine.TestCase


COMMIT_FOR_EVER = """
import sys
from leviath.persistence.database import Batch, JournalRow, open_database
db = open_database(sys.argv[1], level="process")
if db.world() is None:
    db.initialise("w", 1)
epoch = db.claim(0, "r")
db.checkpoint_pages = 20
step = db.world().step
while True:
    step += 1
    db.commit(Batch(journal=[JournalRow(step, epoch, 0, 0, b"i" * 3000, b"", b"", b"d")]))
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


def test_what_was_committed_survives_a_killed_process(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    seen = 0
    for lines in (1, 17, 60):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOR_EVER, str(tmp_path / "world.db")],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for _ in range(lines):
            assert int(process.stdout.readline()) == seen + 1
            seen += 1
        process.send_signal(signal.SIGKILL)
        seen += len(process.communicate()[0].split("\n")) - 1
        db = open_database(tmp_path / "world.db", level="process")
        steps = [row.step for row in db.journal_after(0)]
        db.close()
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) in (seen, seen + 1)  # one may have been committed and not told
        seen = len(steps)

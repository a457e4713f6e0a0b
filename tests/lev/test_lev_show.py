"""``lev show`` and ``lev result``: one run as it is, the unknown as unknown, secrets not at all."""

from __future__ import annotations

import json

import pytest
import trio
from callback_receiver import Kept
from hypothesis import given
from hypothesis import strategies as st
from lev_commands import Place, finish, lines_until

from leviath.engine.world import open_world
from leviath.lev.progress import cost_text
from leviath.lev.run_parts import read_run
from leviath.persistence.database import open_database
from leviath.persistence.rows import LedgerRow
from leviath.providers.scripted import Scripted

CANARY = "canary-5f1d7c-never-to-be-seen"
BOTH = (
    "0.000000007 + at most 0.000000009 for 1 interrupted call"
    " + an unknown amount for 2 calls without a price"
)
ODD = "tea \x1b]0;title\x07 \x1b[2J\u202ereversed\x00 line\nnext"


def call(certainty: str, effect: int = 1) -> LedgerRow:
    nano = 5 if certainty == "provider" else None
    return LedgerRow(1, effect, 1, "turn", "p", "m", 0, 0, 0, 0, nano, certainty, 1)


@pytest.mark.parametrize(
    ("priced", "unpriced", "upper", "ledger", "expected"),
    [
        (0, 0, 0, [], "0"),
        (412_500_000, 0, 0, [call("provider")], "0.4125"),
        (412_500_000, 1, 30_000_000, [call("interrupted")],
         "0.4125 + at most 0.03 for 1 interrupted call"),
        (0, 2, 0, [call("interrupted"), call("interrupted", 2)],
         "0 + an unknown amount for 2 interrupted calls"),
        (7, 3, 9, [call("interrupted"), call("unknown", 2), call("unknown", 3)],
         BOTH),
    ],
)  # fmt: skip
def test_what_is_unknown_stands_beside_what_is_known(
    priced: int, unpriced: int, upper: int, ledger: list[LedgerRow], expected: str
) -> None:
    bounded = sum(row.certainty == "interrupted" for row in ledger) if upper else 0
    assert cost_text(priced, unpriced, upper, bounded, ledger) == expected


def test_a_run_shows_what_it_is_and_what_it_did(place: Place) -> None:
    body = place.spawn("--json", "--key", "k-1", "--metadata", "team=tea").document()
    shown = place.lev("show", body["run_id"]).out
    for text in (
        body["run_id"],
        "complete (by engine",
        "no: it has ended",
        str(place.path / "agent"),
        "Look.",
        "k-1",
        "team=tea",
        "0.0017",
        "812 prompt, 31 output, 640 cache read, 0 cache write",
        "2 model calls, 1 of tools",
        "9 bytes",
        f"lev result --home {place.home} {body['run_id']}",
    ):
        assert text in shown
    head, row = shown.split("STAGE  ")[1].splitlines()[:2]
    assert head.split() == [
        "STATUS",
        "VISITS",
        "PROMPT",
        "OUTPUT",
        "CACHE",
        "RD",
        "CACHE",
        "WR",
        "COST",
    ]
    assert row.split() == ["main", "complete", "1", "812", "31", "640", "0", "0.0017"]


def test_json_is_the_public_record_and_what_it_cannot_say(place: Place) -> None:
    place.write("agent/agent.leviath", (place.path / "agent/agent.leviath").read_text() + "\n")
    body = place.spawn("--json").document()
    shown = place.lev("show", body["run_id"], "--json").document()
    for name in ("run_id", "status", "workdir", "cost_usd", "prompt_tokens", "tool_calls"):
        assert shown[name] == body[name]
    assert shown["task"] == "Look."
    assert "callback_secret" not in shown or shown["callback_secret"] is None
    assert shown["waiting_calls"] == []
    assert shown["blueprint_drift"] is None
    assert shown["hosted"] is False
    assert shown["interrupted"] is False
    assert shown["cost_interrupted_at_most_usd"] is None


def test_a_hosted_run_is_shown_as_of_its_newest_durable_step(place: Place) -> None:
    process = place.start("run", "agent", "--task", "a b", "--script", "hangs.toml")
    list(lines_until(process, "stage main"))
    (run_id,) = place.ids()
    shown = place.lev("show", run_id)
    assert shown.code == 0
    assert "hosted    yes" in shown.out
    assert "and counting" in shown.out
    assert place.lev("result", run_id).code == 1
    process.kill()
    finish(process)


def test_a_blueprint_that_changed_or_is_gone_is_said_and_the_run_keeps_its_own(
    place: Place,
) -> None:
    place.spawn()
    (run_id,) = place.ids()
    manifest = place.path / "agent/agent.leviath"
    assert "this run keeps its own" not in place.lev("show", run_id).out
    text = manifest.read_text(encoding="utf-8")
    manifest.write_text(f"# a remark\n{text}", encoding="utf-8")
    assert "this run keeps its own" not in place.lev("show", run_id).out
    manifest.write_text(text.replace("1000", "2000"), encoding="utf-8")
    assert "has changed since; this run keeps its own" in place.lev("show", run_id).out
    manifest.write_text("not toml", encoding="utf-8")
    assert "cannot be read any more" in place.lev("show", run_id).out
    manifest.unlink()
    assert "is gone from there; this run keeps its own" in place.lev("show", run_id).out


def test_what_others_wrote_cannot_act_on_a_terminal(place: Place) -> None:
    content = json.dumps(ODD.replace("\x00", ""))
    place.write(
        "odd.toml",
        f'[[turn]]\ncalls = [{{ name = "submit_output", arguments = {{ content = {content} }} }}]\n'
        f"[[turn]]\ntext = {content}\n",
    )
    answers = [place.spawn("--metadata", f"label={ODD}", script="odd.toml", task=ODD)]
    assert answers[0].code == 0
    (run_id,) = place.ids()
    answers += [place.lev("show", run_id), place.lev("ps", "--all"), place.lev("result", run_id)]
    for answer in answers:
        for sign in "\x1b\x07\x00\u202e":
            assert sign not in answer.out + answer.err
    assert place.lev("result", run_id, "--json").document()["content"] == ODD.replace("\x00", "")
    raw = finish(place.start("result", run_id, "--raw"))
    assert raw.out == ODD.replace("\x00", "")


def test_no_output_is_an_error_and_nothing_on_stdout(place: Place) -> None:
    place.write("silent.toml", '[[turn]]\ntext = "nothing to hand in"\n')
    place.spawn(script="silent.toml")
    (run_id,) = place.ids()
    for words in ((), ("--raw",), ("--json",)):
        answer = place.lev("result", run_id, *words)
        assert answer.code == 1
        assert answer.out == ""
        assert "has no output" in answer.err


def test_a_long_task_is_cut_where_it_is_shown_and_whole_where_it_is_kept(place: Place) -> None:
    task = "tea " * 50_000
    place.spawn(task=task)
    (run_id,) = place.ids()
    shown = place.lev("show", run_id).out
    assert max(map(len, shown.splitlines())) < 400
    from leviath.components.identity import Launch

    parts = read_run(place.home, run_id)
    launch = parts.find(Launch)
    assert launch is not None
    assert parts.text(launch.task) == task


def test_a_run_that_cannot_be_decoded_is_shown_as_quarantined(place: Place) -> None:
    place.spawn("--model", "other")
    place.spawn()
    place.lev("run", str(place.path / "agent"), "--task", "a b")
    run_id = place.ids()[0]
    with open_database(place.home / "world.db", level="process") as database:
        row = database.run_by_id(run_id)
        assert row is not None
        database.connection.execute(
            "update state set body = x'ff', crc = 4278190080 where owner = ? and part = 'Effects'",
            (row.ordinal,),
        )
    answer = place.lev("show", run_id)
    assert answer.code == 0
    assert "no: quarantined" in answer.out
    assert "waiting_input" in answer.out
    hosted = place.lev("host", "--script", str(place.path / "replies.toml"))
    assert hosted.code == 0
    assert f"{run_id}  quarantined: its Effects cannot be decoded" in hosted.out
    listed = place.lev("ps", "--json").document()
    assert listed["quarantined"] == [run_id]
    (entry,) = (run for run in listed["runs"] if run["run_id"] == run_id)
    assert (entry["quarantined"], entry["hosted"]) == (True, False)
    assert f"quarantined: {run_id} (its Effects cannot be decoded" in place.lev("ps").out
    body = place.lev("show", run_id, "--json").document()
    assert body["status"] == "waiting_input"
    assert "Effects" in body["quarantined"]


async def with_secret(place: Place) -> str:
    scripted = Scripted(place.path / "replies.toml")
    async with open_world(place.home, providers=[scripted], callbacks=Kept()) as world:
        run = await world.spawn(
            place.path / "agent",
            task="Look.",
            workdir=place.path,
            callback_url="https://example.org/hook",
            callback_secret=CANARY,
        )
        await run.wait()
        return run.run_id


def test_a_callback_secret_is_in_no_output(place: Place) -> None:
    run_id = trio.run(with_secret, place)
    with open_database(place.home / "world.db", level="process", read_only=True) as database:
        (held,) = database.connection.execute("select value from secret").fetchall()
    assert held == (CANARY,)
    said: list[str] = []
    for words in (
        ("show", run_id),
        ("show", run_id, "-v"),
        ("show", run_id, "--json"),
        ("result", run_id),
        ("result", run_id, "--json"),
        ("ps", "--all"),
        ("ps", "--all", "--json"),
        ("pause", run_id, "-v"),
        ("resume", run_id, "-v"),
        ("cancel", run_id, "-v"),
        ("decide", run_id, "x", "--done", "-v"),
        ("host", "-v"),
        ("gc", "--keep", "5", "--dry-run"),
        ("gc", "--keep", "0"),
    ):
        answer = place.lev(*words)
        said.append(answer.out + answer.err)
    assert not [text for text in said if CANARY in text]
    assert any(run_id in text for text in said)


@given(st.text(), st.integers(1, 60))
def test_text_for_people_stays_on_its_line_and_in_its_width(text: str, width: int) -> None:
    from leviath.lev.text import cells, clip, many_lines, one_line

    line = one_line(text)
    assert len(line.splitlines()) <= 1
    assert not [sign for sign in line if ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0]
    line.encode()
    many_lines(text).encode()
    assert one_line(line) == line
    cut = clip(line, width)
    assert cells(cut) <= width
    assert cut == line or cut.endswith("…")


def test_a_narrow_terminal_cuts_lines_and_a_pipe_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    from leviath.lev.text import show, table

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "24")
    rows = table([["茶" * 10, "left", "1"], ["tea", "right", "200"]], right=(2,))
    assert [row.index(at) for row, at in zip(rows, ("1", "200"), strict=True)][1] > 0
    screen = Terminal()
    show(rows, screen)
    assert screen.getvalue().splitlines()[0] == "茶" * 10 + "  l…"
    pipe = io.StringIO()
    show(rows, pipe)
    assert pipe.getvalue().splitlines() == rows


def test_spans() -> None:
    from leviath.lev.text import age, parse_span, span

    assert [span(n) for n in (-5, 0, 59, 60, 3_600, 86_400 * 9)] == [
        "0s",
        "0s",
        "59s",
        "1m",
        "1h",
        "9d",
    ]
    assert age(None, 5) == "-"
    assert [parse_span(text) for text in ("90s", "15m", "12h", "30d", "2w")] == [
        90, 900, 43_200, 2_592_000, 1_209_600
    ]  # fmt: skip
    for text in ("", "d", "30", "1.5d", "-1d", "²d", "9" * 9 + "d"):
        with pytest.raises(ValueError, match="is no length of time"):
            parse_span(text)

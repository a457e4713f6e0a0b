"""The scripted provider answers by run, kind and ordinal, or by rule, or says why it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import trio
from provider_requests import ask, request

from leviath.components.errors import ConfigError, ProviderError
from leviath.engine.ports import (
    CallRequest,
    InferenceReply,
    InferenceRequest,
    Message,
    Provider,
    Usage,
)
from leviath.providers.scripted import (
    ErrorKind,
    Failure,
    Reply,
    Rule,
    RunScript,
    Script,
    Scripted,
    tool_call,
)

if TYPE_CHECKING:
    from pathlib import Path


def refused(provider: Provider, asked: InferenceRequest) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(provider, asked)
    return caught.value


def test_replies_come_by_ordinal_and_again_for_the_same_ordinal() -> None:
    provider = Scripted.of("one", "two")
    assert ask(provider, request(2))[0].text == "two"
    assert ask(provider, request(1))[0].text == "one"
    assert ask(provider, request(1, attempt=2))[0].text == "one"
    assert ask(provider, request(1, run_id="run-b"))[0].text == "one"


def test_a_reply_carries_calls_usage_cost_and_pieces() -> None:
    script = {
        "turn": [
            {
                "chunks": ["Look", "ing."],
                "calls": [
                    {"name": "read_file", "arguments": {"path": "ä.txt", "lines": [1, 2]}},
                    {"name": "shell", "arguments": "{not json", "id": "mine"},
                ],
                "usage": {"prompt": 10, "completion": 2, "cached": 3, "cache_write": 4},
                "cost_usd": "0.0012",
            }
        ]
    }
    reply, pieces = ask(Scripted(script), request())
    assert pieces == ["Look", "ing."]
    assert reply == InferenceReply(
        text="Looking.",
        calls=(
            CallRequest("call-1", "read_file", '{"path": "ä.txt", "lines": [1, 2]}'),
            CallRequest("mine", "shell", "{not json"),
        ),
        usage=Usage(10, 2, 3, 4),
        cost_nano_usd=1_200_000,
        stop_reason="tools",
    )


def test_a_reply_without_a_cost_has_an_unknown_one() -> None:
    reply, pieces = ask(Scripted.of(tool_call("list_dir", path=".")), request())
    assert reply.cost_nano_usd is None
    assert reply.calls == (CallRequest("call-1", "list_dir", '{"path": "."}'),)
    assert pieces == []


def test_a_loop_starts_again() -> None:
    provider = Scripted.of("one", "two", loop=True)
    assert [ask(provider, request(n))[0].text for n in (1, 2, 3, 1_000)] == [
        "one",
        "two",
        "one",
        "two",
    ]


def test_running_off_the_end_names_run_kind_ordinal_and_remedy() -> None:
    problem = refused(Scripted.of("only"), request(2))
    assert problem.kind == "script_exhausted"
    assert not problem.retryable
    assert str(problem) == (
        "run run-a asks for turn 2, and Scripted.of(...) has 1 such replies: "
        "add the reply, a rule that fits the call, or loop = true"
    )
    assert problem.fields["ordinal"] == 2
    assert "routing 1" in str(refused(Scripted.of("only"), request(1, kind="routing")))
    silent = refused(Scripted({"runs": [{"run": "other", "turn": [{"text": "x"}]}]}), request())
    assert "says nothing about this run" in str(silent)


def test_the_first_section_that_fits_the_run_answers() -> None:
    provider = Scripted(
        {
            "turn": [{"text": "anybody"}],
            "runs": [
                {"agent": "critic*", "key": "night-*", "turn": [{"text": "agent and key"}]},
                {"run": "run-b", "turn": [{"text": "named"}]},
                {"run": "run-[bc]", "turn": [{"text": "pattern"}], "title": [{"text": "T"}]},
                {"run": "run-c", "turn": [{"text": "named too late"}]},
            ],
        }
    )

    def says(run_id: str, **changes: Any) -> str:
        return ask(provider, request(run_id=run_id, **changes))[0].text

    assert says("run-a") == "anybody"
    assert says("run-b") == "named"
    assert says("run-c") == "pattern"
    assert says("run-c", kind="title") == "T"
    assert says("run-b", agent="critic-2", key="night-1") == "agent and key"
    assert says("run-b", agent="critic-2", key="day-1") == "named"


def test_rules_answer_what_the_run_has_no_reply_for() -> None:
    provider = Scripted(
        {
            "turn": [{"text": "first"}],
            "rules": [
                {"when": {"tool": "shell", "is_error": True}, "text": "it failed"},
                {"when": {"contains": "please", "stage": "work"}, "text": "polite"},
                {"when": {"kind": "routing", "model": "small"}, "text": "next"},
                {"when": {"kind": "turn"}, "text": "anything else"},
            ],
        }
    )

    def says(*messages: Message, ordinal: int = 2, **changes: Any) -> str:
        return ask(provider, request(ordinal, messages=messages, **changes))[0].text

    failed = Message("tool", "please", call_id="1", tool="shell", is_error=True)
    worked = Message("tool", "please", call_id="1", tool="shell")
    assert says(failed, ordinal=1) == "first"
    assert says(failed) == "it failed"
    assert says(worked) == "polite"
    assert says(worked, stage="rest") == "anything else"
    assert says() == "anything else"
    assert says(kind="routing") == "next"
    assert refused(provider, request(1, kind="routing", model="big")).kind == "script_exhausted"


def test_attempts_fail_as_written_and_then_the_reply_comes() -> None:
    provider = Scripted(
        {
            "turn": [
                {
                    "chunks": ["a", "b", "c"],
                    "errors": [
                        {"kind": "rate_limited", "retry_after_ms": 700},
                        {"kind": "transport", "message": "cut off", "after_chunks": 2},
                    ],
                },
                {"error": {"kind": "auth"}},
            ]
        }
    )
    first = refused(provider, request(1, attempt=1))
    assert (first.kind, first.retryable, first.retry_after_ms) == ("rate_limited", True, 700)
    assert str(refused(provider, request(1, attempt=2))) == "cut off"
    assert ask(provider, request(1, attempt=3))[1] == ["a", "b", "c"]
    for attempt in (1, 2, 9):
        assert refused(provider, request(2, attempt=attempt)).kind == "auth"
    assert refused(Scripted.of(Failure(kind=ErrorKind.SERVER)), request()).retryable


def test_pieces_stream_before_an_attempt_breaks_off() -> None:
    reply = Reply(
        chunks=("a", "b"), failures=((1, Failure(kind=ErrorKind.TRANSPORT, after_chunks=1)),)
    )
    pieces: list[str] = []

    async def main() -> None:
        with pytest.raises(ProviderError):
            await Scripted.of(reply).infer(request(), pieces.append)

    trio.run(main)
    assert pieces == ["a"]


def test_delays_go_to_the_given_sleep_in_seconds() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    reply = Reply(chunks=("a", "b", "c"), delay_ms=1_500, chunk_delay_ms=250)
    provider = Scripted.of(reply, "at once", sleep=sleep)
    ask(provider, request(1))
    assert slept == [1.5, 0.25, 0.25]
    ask(provider, request(2))
    assert len(slept) == 3


def test_a_delay_waits_on_trio_by_default(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> float:
        await Scripted.of(Reply(text="late", delay_ms=60_000)).infer(request(), None)
        return trio.current_time()

    started = autojump_clock.current_time()
    assert trio.run(main, clock=autojump_clock) >= started + 60


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def test_a_model_that_is_not_served_is_refused() -> None:
    provider = Scripted.of("x", models=["small"])
    assert ask(provider, request())[0].text == "x"
    problem = refused(provider, request(model="large"))
    assert problem.kind == "bad_request"
    assert str(problem) == "scripted serves small, not 'large'"


def test_a_script_can_be_built_in_python() -> None:
    script = Script(
        runs=(RunScript(agent="a*", replies=(("turn", ((2, Reply(text="second")),)),)),),
        rules=(Rule(reply=Reply(text="rule"), contains="Do"),),
    )
    provider = Scripted(script, name="mine")
    assert provider.name == "mine"
    assert ask(provider, request(1, agent="ab"))[0].text == "rule"
    assert ask(provider, request(2, agent="ab"))[0].text == "second"


@pytest.mark.parametrize(
    ("kind", "lines", "loop"),
    [("turns", ((1, Reply()),), False), ("turn", ((2, Reply()),), True), ("turn", (), False)],
)
def test_an_unreachable_reply_built_in_python_is_refused(
    kind: str, lines: tuple[tuple[int, Reply], ...], loop: bool
) -> None:
    with pytest.raises(ConfigError, match="runs #1"):
        Scripted(Script(runs=(RunScript(replies=((kind, lines),), loop=loop),)))


FAULTY = """
loops = true
loop = true

[[turn]]
ordinal = 2
text = 3
usage = { prompt = -1, total = 5 }
calls = [ { arguments = { when = 2026-01-01 } } ]
cost_usd = "cheap"

[[turn]]
ordinal = 2
chunks = ["a", 1]
errors = [ { kind = "tired" }, { kind = "server", attempt = 1, retry_after_ms = "soon" } ]

[[runs]]
turn = "hello"

[[rules]]
text = "x"
chunks = ["y"]
when = { kind = "turns", contain = "z" }
"""


def test_a_faulty_file_lists_every_fault_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "replies.toml"
    file.write_text(FAULTY, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        Scripted(file)
    assert str(caught.value).startswith(f"{file} has faults:\n")
    places = [fault.split(":")[0] for fault in caught.value.fields["faults"]]
    assert sorted(places) == sorted(
        [
            "loops",
            "turn",
            "turn #1.text",
            "turn #1.usage.prompt",
            "turn #1.usage.total",
            "turn #1.calls #1.name",
            "turn #1.calls #1.arguments",
            "turn #1.cost_usd",
            "turn #2.ordinal",
            "turn #2.chunks",
            "turn #2.errors #1.kind",
            "turn #2.errors #2.attempt",
            "turn #2.errors #2.retry_after_ms",
            "runs #1.turn",
            "runs #1.run",
            "rules #1.chunks",
            "rules #1.when.kind",
            "rules #1.when.contain",
        ]
    )


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "cannot be read"), (b"turn = [", "is not TOML"), (b"\xff", "is not TOML")],
)
def test_a_file_that_is_no_script_is_named(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    file = tmp_path / "replies.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=expected) as caught:
        Scripted(str(file))
    assert str(file) in str(caught.value)

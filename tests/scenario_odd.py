"""A world through odd text, bad JSON and every way of failing: prints its digest chain.

``python tests/scenario_odd.py > tests/golden/digest_chain.json`` writes the golden file again. That
is right only with a raised ``RULES``: worlds in the field are replayed by the rules they name.
"""

from __future__ import annotations

import json
import sys

from hand_agents import ALL, TALK, TOOLS, TWO_MODELS, agent

from leviath.components.commands import CallTool, Gather, Infer
from leviath.components.context import AskedCall
from leviath.components.error_kind import ErrorKind
from leviath.components.inputs import (
    Cancel,
    Decide,
    Gathered,
    HostClosing,
    Pause,
    Post,
    Release,
    Resume,
    Slept,
)
from leviath.components.money import Rates
from leviath.components.run_status import RunStatus
from leviath.components.text import inline
from leviath.components.world_facts import Policy, Priced, Prices
from leviath.simulation.hand import Hand
from leviath.systems.schedule import RULES

# Letters that lower case, line breaks, digits and printability treat in their own ways, and some
# that one Unicode version knows and another does not.
ODD = (
    "\u0130\u1e9e\ufb01\u03a3",
    "a\u2028b\u0085c\x1cd\x0b",
    "\U0001fae8\U0001f6dc\u0cf3\U00031350",
    "\u0661\u00b2\u2167 done",
    "\ufffd\ufeff\u202e\u00ad\u200d",
    "",
)
GRAPH = agent(
    f"""
[stages.look-first]
available_tools = {ALL}
max_iterations = 4
max_revisits = 1
system_prompt = "{ODD[0]}"
[[stages.look-first.edges]]
to = "choose"
gate = {{ require_modifications = true, max_attempts = 1 }}
[[stages.look-first.edges]]
to = "report"
condition = "error"
[[stages.look-first.edges]]
to = "report"
condition = "stuck"
stuck_after_tool_calls = 6
[stages.choose]
max_revisits = 1
allow_complete = true
[[stages.choose.edges]]
to = "look-first"
condition = "llm_choice"
hint = "{ODD[2]}"
[[stages.choose.edges]]
to = "report"
condition = "llm_choice"
transform = "clear"
[stages.report]
mode = "output"
max_revisits = 3
available_tools = {ALL}
max_iterations = 3
[context.regions]
notes = {{ kind = "hashmap", max_entries = 2 }}
files = {{ kind = "pinned", seed = {{ files = ["\u00fc.txt"] }} }}
[tool_permissions]
edit = "ask"
find = "deny"
[repetition_detection]
max_repeat_calls = 2
""",
    models=TWO_MODELS,
)
CALLS = (
    AskedCall("", "look", inline("{}")),
    AskedCall("a", "edit", inline(json.dumps({"p": ODD[1]}))),
    AskedCall("a", "send", inline('{"to": "' + ODD[2] + '"}')),
    AskedCall("b", "find", inline("{}")),
    AskedCall("c", ODD[2], inline("{}")),
    AskedCall("d", "look", inline("{oops"), "not JSON at character 1"),
    AskedCall("e", "submit_output", inline("{}"), fields=(("content", inline(ODD[3])),)),
    AskedCall(
        "f",
        "context_write",
        inline("{}"),
        fields=(
            ("region", inline("notes")),
            ("key", inline(ODD[0])),
            ("content", inline(ODD[4])),
        ),
    ),
    AskedCall("g", "context_write", inline("{}"), fields=(("region", inline(ODD[2])),)),
)


def answer(hand: Hand, turn: int) -> None:
    """Answer everything once, in ways that change from turn to turn."""
    for gather in hand.take(Gather):
        hand.post(Gathered(gather.run, gather.effect, gather.attempt, (("files", (inline("f"),)),)))
    for infer in hand.take(Infer):
        pick = turn + infer.run
        if pick % 5 == 4:
            kind = list(ErrorKind)[pick % len(ErrorKind)].value
            hand.fail(kind, ODD[pick % 6], infer=infer, retry_after_ms=(None, 50)[pick % 2])
            continue
        calls = CALLS[pick % 9 : pick % 9 + pick % 4] if pick % 3 else ()
        text = (*ODD, "report", "LOOK-FIRST\n", "x\nDone")[pick % 9]
        cost = None if pick % 2 else 17
        hand.post(
            hand.inferred(infer, text=inline(text), calls=calls, prompt=pick, cost_nano_usd=cost)
        )
    for call in hand.take(CallTool):
        pick = turn + call.effect
        hand.post(
            hand.finished(
                call,
                result=inline(ODD[pick % 6]),
                is_error=pick % 4 == 0,
                unknown=pick % 7 == 0,
                modified=(ODD[0],) if call.tool == "edit" else (),
            )
        )


def people(hand: Hand, turn: int) -> None:
    """What people do meanwhile."""
    runs = sorted(hand.world.owners())
    run = runs[turn % len(runs)]
    control = (Pause, Resume, Resume, Pause, Resume, Resume, Cancel)[turn % 7]
    hand.post(Post(run, inline(ODD[turn % 6]), 1, "s", "notes"), control(run, 2))
    for n in runs:
        if turn % 4 == 3 and hand.status(n).status is RunStatus.PAUSED:
            hand.post(Resume(n, 5))
        if hand.status(n).status is RunStatus.WAITING_INPUT:
            verdict = ("allow", "deny", "again", "done")[turn % 4]
            hand.post(Decide(n, "a", verdict, 3, ODD[2]), Resume(n, 4))


def play() -> Hand:
    """The whole scenario; the hand that is returned has all steps."""
    rates = Prices((Priced("scripted", "m", Rates(3, 15, 1, 4)),))
    policy = Policy(slots_default=3, breaker_failures=2, stall_ms=1_000, attempts_max=2)
    hand = Hand(
        providers=("scripted", "spare"), tools=TOOLS, policy=policy, prices=rates, check=False
    )
    for kind in ErrorKind:
        hand.spawn(TALK, task=kind.value)
        for infer in hand.take(Infer):
            hand.fail(kind.value, ODD[2], infer=infer)
        hand.sleep(500_000)
    for n in range(24):
        parent = len(ErrorKind) + 1 + n // 3 if n > 2 and n % 5 == 0 else 0
        hand.spawn(GRAPH, task=ODD[n % 6], yolo=n % 4 == 3, key=f"k{n % 20}", parent=parent)
    for turn in range(60):
        answer(hand, turn)
        people(hand, turn)
        hand.sleep((10, 1_000, 400_000)[turn % 3])
        if turn % 8 == 7:
            hand.post(Slept(9), HostClosing())
            hand.restart(away_ms=77)
        if turn % 10 == 9:
            hand.configure(providers=(("spare",), ("scripted", "spare"))[turn % 20 // 10])
    hand.post(*(Release(n, 1) for n in sorted(hand.world.owners())))
    return hand


def chain() -> list[str]:
    """The digest after each step, as hexadecimal heads."""
    return [row.digest.hex()[:16] for row in play().rows]


if __name__ == "__main__":
    json.dump({"rules": RULES, "digests": chain()}, sys.stdout, indent=0)
    sys.stdout.write("\n")

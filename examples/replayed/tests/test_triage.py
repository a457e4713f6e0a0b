"""What one run of the agent did once, as tests: offline, and in milliseconds."""

from pathlib import Path

import leviath
from leviath.testing import outcome_of

PROJECT = Path(__file__).parents[1]
WORLD = PROJECT / "tests" / "worlds" / "triage"


class Judge:
    """Stands for the model: it says "urgent" where the prompt speaks of paying customers."""

    name = "scripted"
    paid = False

    def __init__(self):
        self.turns = []

    async def infer(self, request, on_text):
        self.turns.append(request.ordinal)
        if request.messages[-1].role == "tool":
            return leviath.InferenceReply(text="Done.")
        prompt = " ".join(message.text for message in request.messages)
        word = "urgent" if "paying customers" in prompt else "high"
        call = leviath.CallRequest("c1", "submit_output", f'{{"content": "{word}"}}')
        return leviath.InferenceReply(calls=(call,), usage=leviath.Usage(prompt=170, completion=8))


def test_the_rules_still_do_the_same(leviath_replay):
    leviath_replay(WORLD).expect_same()


def test_a_sharper_prompt_from_the_second_turn_on(leviath_replay, leviath_world, tmp_path):
    saved = leviath_replay(WORLD)
    (run_id,) = saved.run_ids
    text = (PROJECT / "agent" / "agent.leviath").read_text()
    sharper = text.replace("Judge the bug report.", "What paying customers cannot do is urgent.")
    judge = Judge()
    with leviath_world(judge, home=tmp_path / "home") as world:
        fork = world.fork(
            run_id,
            at=saved.turn(run_id, 1),
            source=WORLD,
            workdir=tmp_path,
            blueprint=leviath.parse_blueprint(sharper, where="agent"),
        )
        fork.wait(timeout_s=60)
        after = outcome_of(fork)
    before = saved.outcome(run_id)
    assert (before.output, after.output) == ("high", "urgent")
    assert before.status == after.status == "complete"
    # The first turn was not made again: only what came after it.
    assert judge.turns == [2, 3]

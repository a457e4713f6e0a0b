"""One run through its turns, driven by hand."""

from __future__ import annotations

from leviath.components.run_status import RunStatus
from leviath.components.world_facts import OfferedTool
from leviath.engine.blueprints import parse_blueprint
from leviath.simulation.hand import Hand

ONE = """
[agent]
name = "one"
[stages.main]
available_tools = ["look"]
[stages.main.model]
models = [{ provider = "scripted", model = "m" }]
"""
LOOK = OfferedTool("look", "pure", 1000, b"look")


def test_a_run_of_one_stage_calls_a_tool_and_completes() -> None:
    hand = Hand(tools=(LOOK,))
    run = hand.spawn(parse_blueprint(ONE, where="one"))
    hand.reply("let me look", ("c1", "look", "{}"))
    hand.tool("seen")
    assert hand.status(run).status is RunStatus.RUNNING
    hand.reply("done")
    assert hand.status(run).status is RunStatus.COMPLETE

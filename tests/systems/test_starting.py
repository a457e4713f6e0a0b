"""Coming and going: intake, spawning, seeds, what the model is shown, messages, release."""

from __future__ import annotations

import pytest
from hand_agents import ALL, LOOK, ONE, TALK, TOOLS, agent, asked, stage, texts, wanted, word

from leviath.components.commands import Abort, Gather
from leviath.components.events import Spawned
from leviath.components.identity import Identity, Launch, Tree
from leviath.components.inputs import Cancel, Gathered, Pause, Post, Release, Resume, Spawn
from leviath.components.run_id import check_run_id
from leviath.components.text import inline
from leviath.components.world_facts import Offer, OfferedModel
from leviath.engine.step import StepResult
from leviath.simulation.hand import Hand

READS = agent(
    """
[stages.main]
[context.regions]
files = { kind = "pinned", seed = { files = ["a.txt"] } }
code = { kind = "pinned", seed = { glob = ["*.py"] } }
"""
)


def test_an_input_for_a_run_that_is_not_hosted_is_answered() -> None:
    hand = Hand()
    (ack,) = hand.post(Pause(7, ticket=3)).acks
    assert (ack.ticket, ack.code) == (3, "run_not_found")


def test_the_engine_mints_ids_that_may_name_folders_and_never_repeat() -> None:
    hand = Hand()
    runs = [hand.spawn(TALK) for _ in range(20)]
    ids = {hand.world.get(run, Identity).run_id for run in runs}
    assert len(ids) == 20 and all(check_run_id(run_id) for run_id in ids)


def test_a_second_spawn_with_a_key_returns_the_first_run_also_after_a_restart() -> None:
    hand = Hand()
    run = hand.spawn(TALK, key="order-7")
    assert hand.spawn(ONE, key="order-7") == run
    hand.restart()
    assert hand.spawn(TALK, key="order-7") == run
    assert list(hand.world.owners()) == [run]


def test_an_id_in_use_is_refused_and_nothing_is_made() -> None:
    hand = Hand()
    hand.spawn(TALK, run_id="mine")
    assert hand.spawn(TALK, run_id="mine") == 0
    assert hand.results[-1].acks[0].code == "spawn"
    assert len(list(hand.world.owners())) == 1


def test_a_spawn_that_cannot_be_carried_out_leaves_nothing_and_its_caller_hears_so() -> None:
    hand = Hand()
    launch = Launch(inline("x"), "/w", b"no such blueprint", 0)
    result = hand.post(Spawn(9, "a", "/a", launch))
    assert [(ack.ticket, ack.code) for ack in result.acks] == [(9, "world")]
    assert not list(hand.world.owners()) and not result.events
    assert hand.spawn(TALK) == 1


def test_a_run_without_seeds_asks_its_model_in_the_step_of_its_spawn() -> None:
    hand = Hand()
    run = hand.spawn(TALK)
    assert word(hand, run) == "running" and asked(hand).run == run
    assert isinstance(hand.results[-1].events[0], Spawned)


def test_files_are_read_before_the_first_request_and_the_run_is_starting_meanwhile() -> None:
    hand = Hand()
    run = hand.spawn(READS)
    (gather,) = hand.take(Gather)
    assert word(hand, run) == "starting"
    assert gather.seeds == (("files", "files", ("a.txt",)), ("code", "glob", ("*.py",)))
    hand.post(Gathered(run, 1, 1, (("files", (inline("A"),)), ("code", (inline("x"),)))))
    assert word(hand, run) == "running"
    assert texts(hand, run, "files") == ["A"] and texts(hand, run, "code") == ["x"]


def test_a_run_whose_files_cannot_be_read_ends_in_error_and_cannot_be_resumed() -> None:
    hand = Hand()
    run = hand.spawn(READS)
    hand.post(Gathered(run, 1, 1, error="/w is gone", workspace_lost=True))
    assert word(hand, run) == "error" and hand.status(run).error == "/w is gone"
    (ack,) = hand.post(Resume(run, 1)).acks
    assert ack.code == "run_conflict" and "spawn it again" in ack.message


def test_preparing_has_a_deadline_of_its_own() -> None:
    hand = Hand()
    run = hand.spawn(READS)
    hand.sleep(hand.world.policy.gather_deadline_ms)
    assert [(a.run, a.effect) for a in wanted(hand, Abort)] == [(run, 1)]
    hand.post(Gathered(run, 1, 1, error="out of time"))
    assert word(hand, run) == "error"


def _seed(text: str) -> str:
    return f'[stages.main]\n[context.regions]\nr = {{ kind = "pinned", seed = {text} }}\n'


@pytest.mark.parametrize(
    ("seed", "shown"),
    [
        ('"task_input"', ["the task"]),
        ('{ literal = "said" }', ["said"]),
        ('"input"', ["for r"]),
        ('"other"', ["for other"]),
        ('"absent"', []),
    ],
)
def test_seeds_fill_their_regions(seed: str, shown: list[str]) -> None:
    hand = Hand()
    given = (("other", inline("for other")),)
    if seed == '"input"':
        given = (("r", inline("for r")),)
    run = hand.spawn(agent(_seed(seed)), task="the task", region_inputs=given)
    assert texts(hand, run, "r") == shown


def test_the_request_shows_the_stages_regions_in_their_order_and_its_tools() -> None:
    hand = Hand(tools=TOOLS)
    both = agent(
        """
[stages.main]
available_tools = ["look"]
system_prompt = "Be brief."
[stages.main.context.regions]
own = { kind = "pinned", seed = { literal = "mine" } }
[context.regions]
shared = { kind = "pinned", seed = { literal = "hidden" } }
"""
    )
    hand.spawn(both)
    infer = asked(hand)
    names = [region.name for region in infer.regions]
    assert names[0] == "own" and "shared" not in names and "conversation" in names
    shown = {r.name: [entry.text.body for entry in r.entries] for r in infer.regions}
    assert shown["own"] == ["mine"] and shown["stage_instructions"] == ["Be brief."]
    assert infer.tools == (LOOK.spec,)


def test_regions_are_sized_by_the_entry_models_window() -> None:
    hand = Hand()
    hand.configure()
    half = agent('[stages.main]\n[context.regions]\nr = { kind = "pinned", budget = "50%" }\n')
    hand.offer = Offer(("scripted",), (), (OfferedModel("scripted", "m", 1_000),))
    hand.configure()
    hand.spawn(half)
    sizes = {region.name: region.max_tokens for region in asked(hand).regions}
    assert sizes["r"] == 500


def test_the_entry_stage_is_where_a_run_starts() -> None:
    hand = Hand()
    run = hand.spawn(
        agent(
            "[stages.late]\n[stages.late.transitions]\n[stages.early]\n[stages.early.transitions.late]\n",
            head='entry_stage = "early"',
        )
    )
    assert stage(hand, run) == "early"


def test_children_stand_under_their_parents_root() -> None:
    hand = Hand()
    root = hand.spawn(TALK)
    child = hand.spawn(TALK, parent=root)
    grandchild = hand.spawn(TALK, parent=child)
    tree = hand.world.get(grandchild, Tree)
    assert (tree.parent, tree.depth, tree.root) == (child, 2, root)


def test_messages_reach_the_model_once_before_its_next_request() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.post(Post(run, inline("hurry"), 1, "ann"), Post(run, inline("please"), 2, "ann"))
    assert texts(hand, run) == []
    hand.reply("", ("a", "look", "{}"))
    hand.tool("seen")
    assert texts(hand, run) == ["", "seen", "hurry", "please"]
    hand.reply("", ("b", "look", "{}"))
    hand.tool("seen")
    assert texts(hand, run).count("hurry") == 1


def test_a_message_is_not_delivered_again_by_the_retry_of_a_request() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(agent(f"[stages.main]\navailable_tools = {ALL}\nnudge = {{ max = 1 }}\n"))
    hand.post(Post(run, inline("hurry")))
    hand.fail("server")
    hand.sleep(2_000)
    hand.reply("hm")
    hand.fail("server")
    hand.sleep(2_000)
    assert texts(hand, run).count("hurry") == 1


def test_a_message_that_comes_during_a_backoff_waits_for_the_next_request() -> None:
    # A retry repeats its request: one idempotency key, one body.
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    first = asked(hand)
    hand.fail("server", retry_after_ms=5)
    hand.post(Post(run, inline("hurry")))
    hand.sleep(5)
    assert asked(hand).regions == first.regions
    hand.reply("", ("a", "look", "{}"))
    hand.tool("seen")
    assert texts(hand, run)[-1] == "hurry"


def test_messages_are_refused_by_ended_runs_stages_that_take_none_and_full_inboxes() -> None:
    hand = Hand()
    deaf = hand.spawn(agent("[stages.main]\naccepts_messages = false\n"))

    def code(result: StepResult) -> str:
        return result.acks[0].code

    assert code(hand.post(Post(deaf, inline("x"), 1))) == "run_conflict"
    hand.post(Cancel(deaf))
    assert code(hand.post(Post(deaf, inline("x"), 1))) == "run_conflict"
    run = hand.spawn(TALK)
    most = hand.world.policy.inbox_messages_max
    hand.post(*(Post(run, inline("x")) for _ in range(most)))
    assert code(hand.post(Post(run, inline("x"), 1))) == "run_conflict"


# --- leaving ------------------------------------------------------------------------------------


def test_a_run_is_released_when_it_has_ended_and_nothing_of_it_is_outside() -> None:
    hand = Hand()
    run = hand.spawn(TALK, run_id="mine")
    assert hand.post(Release(run, 1)).acks[0].code == "run_conflict"
    hand.post(Cancel(run))
    assert hand.post(Release(run, 1)).acks[0].code == "run_conflict"
    hand.fail("aborted")
    assert hand.post(Release(run, 1)).gone == (run,)
    assert run not in hand.world and hand.spawn(TALK, run_id="mine") == run + 1


def test_a_message_kept_for_a_paused_run_reaches_it() -> None:
    hand = Hand(tools=TOOLS)
    run = hand.spawn(ONE)
    hand.reply("", ("a", "look", "{}"))
    hand.post(Pause(run))
    hand.post(Post(run, inline("wait")))
    hand.tool()
    hand.restart()
    hand.post(Resume(run))
    assert texts(hand, run)[-1] == "wait"

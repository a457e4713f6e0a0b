"""Starting a run for another run, within what its tree is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from leviath.components.events import ChildSpawned
from leviath.components.family import TreeUse
from leviath.components.identity import Launch, Tree
from leviath.components.inputs import Spawn
from leviath.systems.moves import touch
from leviath.systems.run import Run
from leviath.systems.spawning import admit_run

if TYPE_CHECKING:
    from leviath.components.family import Worker
    from leviath.components.inputs import AgentFound
    from leviath.components.text import Text
    from leviath.systems.run import Tick
    from leviath.systems.world import World


def refusal(run: Run, tick: Tick, count: int) -> str:
    """Why ``run`` may not start so many children; "" when it may. The model hears it.

    Depth is a budget that shrinks on the way down; the others are numbers of the recorded policy.
    """
    policy = run.world.policy
    tree = run.get(Tree)
    depth = tree.depth + 1
    cap = min(tree.max_child_depth, policy.tree_depth_max)
    if depth > cap:
        return (
            f"depth cap: a child would have depth {depth}, and {cap} is the deepest allowed here; "
            "do the work yourself"
        )
    live = len(run.world.trees.live.get(run.n, ()))
    if live + count > policy.tree_children_max:
        return (
            f"breadth cap: {live} children are at work, {count} more would be over "
            f"{policy.tree_children_max}; wait for some, or ask for fewer"
        )
    use = tree_use(run.world, tree)
    if use.spawned + count > policy.tree_runs_max:
        return (
            f"total cap: the runs of this tree have started {use.spawned} runs, {count} more would "
            f"be over {policy.tree_runs_max}; do the rest yourself"
        )
    if _window(use, tick, policy.tree_window_ms).window_spawned + count > policy.tree_spawns_max:
        return (
            f"rate cap: this tree may start {policy.tree_spawns_max} runs in "
            f"{policy.tree_window_ms / 1_000:g} s; go on without, or try again later"
        )
    return ""


def tree_use(world: World, tree: Tree) -> TreeUse:
    """What a tree has used of its caps; nothing when its root is not hosted."""
    return world.find(tree.root, TreeUse) or TreeUse()


def _window(use: TreeUse, tick: Tick, window_ms: int) -> TreeUse:
    if tick.now.world_ms - use.window_ms >= window_ms:
        return replace(use, window_ms=tick.now.world_ms, window_spawned=0)
    return use


def count_spawned(run: Run, tick: Tick, count: int) -> None:
    """Take so many runs from the caps of the tree: when they are asked for, not when they start."""
    tree = run.get(Tree)
    if tree.root in run.world:
        use = _window(tree_use(run.world, tree), tick, run.world.policy.tree_window_ms)
        run.world.put(
            tree.root,
            replace(
                use,
                spawned=use.spawned + count,
                window_spawned=use.window_spawned + count,
            ),
        )


def start_child(
    run: Run, tick: Tick, found: AgentFound, task: Text, *, worker: Worker | None = None
) -> Run:
    """Start one run for ``run``. It inherits the workdir, who answers, and the model override; not
    the tools that were allowed, nor the callback."""
    mine = run.get(Launch)
    blueprint = run.world.blueprints[found.blueprint]
    launch = Launch(
        task=task,
        workdir=mine.workdir,
        blueprint=found.blueprint,
        started_ms=tick.now.wall_ms,
        model_override=mine.model_override,
        yolo=mine.yolo,
        yolo_profile=mine.yolo_profile,
        profile=mine.profile,
        output_request=None if worker is None else mine.output_request,
        num_stages=len(blueprint.stages),
        no_output_tools=found.no_output_tools,
        read_paths_declared=found.read_paths_declared,
    )
    spawn = Spawn(0, found.agent_name, found.agent_path, launch, parent=run.n)
    child = admit_run(run.world, tick, spawn, worker=worker)
    tick.events.append(
        ChildSpawned(
            tick.next_event,
            run.run_id,
            tick.now.wall_ms,
            child.run_id,
            found.agent_name,
            child.get(Tree).depth,
            "" if worker is None else worker.item,
        )
    )
    # The list of its children is part of its files.
    touch(run, tick, urgent=True)
    return child

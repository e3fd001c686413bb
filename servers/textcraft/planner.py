"""The expert: a short list of commands that makes an item out of whatever is held already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gym_agents.scenarios.textcraft import Craft, Get
from servers.textcraft.recipes import Ingredient, Recipe, RecipeBook


@dataclass(frozen=True)
class _Plan:
    """What is to be fetched and crafted so far, and what is then left to use."""

    stock: dict[str, int]
    gets: dict[str, int]
    crafts: tuple[Craft, ...]

    @property
    def cost(self) -> tuple[int, int]:
        """Turns, then units fetched: of two equally short plans, the one that uses more of what is held."""
        return len(self.gets) + len(self.crafts), sum(self.gets.values())


def plan(book: RecipeBook, goal: str, held: Mapping[str, int]) -> list[Get | Craft]:
    """The commands that make one more unit of `goal`, which must be craftable, out of what is held.

    All units of a base item are fetched in one turn. Each choice, among an item's recipes and among a
    group's items, goes to the one that adds the fewest turns to what is planned before it: that is near
    the shortest plan, not always the shortest.
    """
    start = _Plan(dict(held), {}, ())
    best = min((_follow(book, start, recipe) for recipe in book.by_item[goal]), key=_cost)
    return [*(Get(count, item) for item, count in best.gets.items()), *best.crafts]


def _cost(candidate: _Plan) -> tuple[int, int]:
    return candidate.cost


def _follow(book: RecipeBook, before: _Plan, recipe: Recipe) -> _Plan:
    """Crafts by the recipe once, its ingredients made first."""
    using, after = {}, before
    for ingredient in recipe.ingredients:
        item, after = _set_aside(book, after, ingredient)
        using[item] = ingredient.count
    craft = Craft(recipe.count, recipe.output, using)
    stock = after.stock | {recipe.output: after.stock.get(recipe.output, 0) + recipe.count}
    return _Plan(stock, after.gets, (*after.crafts, craft))


def _set_aside(book: RecipeBook, before: _Plan, ingredient: Ingredient) -> tuple[str, _Plan]:
    """Takes an ingredient out of the stock, and says which item serves."""
    options = ((item, _stock_up(book, before, item, ingredient.count)) for item in ingredient.items)
    item, after = min(options, key=lambda option: option[1].cost)
    stock = after.stock | {item: after.stock[item] - ingredient.count}
    return item, _Plan(stock, after.gets, after.crafts)


def _stock_up(book: RecipeBook, before: _Plan, item: str, count: int) -> _Plan:
    """Sees to it that the stock holds at least `count` units of the item."""
    missing = count - before.stock.get(item, 0)
    if missing <= 0:
        return before
    if item in book.base:
        gets = before.gets | {item: before.gets.get(item, 0) + missing}
        return _Plan(before.stock | {item: count}, gets, before.crafts)
    return min((_repeat(book, before, recipe, count) for recipe in book.by_item[item]), key=_cost)


def _repeat(book: RecipeBook, before: _Plan, recipe: Recipe, count: int) -> _Plan:
    """Crafts by the recipe until the stock holds `count` units of its output."""
    after = before
    while after.stock.get(recipe.output, 0) < count:
        after = _follow(book, after, recipe)
    return after

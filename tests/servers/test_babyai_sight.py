"""What the agent sees is what Minigrid's own view shows."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from minigrid.core.actions import Actions

from servers.babyai.game import Game
from servers.babyai.levels import build


def minigrids_view(level: Any) -> set[int]:
    """The cells that Minigrid's mask lights up, turned back into the grid's own coordinates."""
    _, mask = level.gen_obs_grid()
    corner = level.agent_pos + level.dir_vec * 6 - level.right_vec * 3
    places = [
        corner - level.dir_vec * j + level.right_vec * i for i in range(7) for j in range(7) if mask[i, j]
    ]
    return {
        int(x) + level.width * int(y) for x, y in places if 0 <= x < level.width and 0 <= y < level.height
    }


@settings(max_examples=40, deadline=None)
@given(
    item=st.integers(0, 40 * 20),
    actions=st.lists(st.sampled_from([a for a in Actions if a != Actions.done]), max_size=40),
)
def test_sight_is_minigrids(item: int, actions: list[Actions]) -> None:
    game = Game(build(item))
    for action in actions:
        assert {sight.cell for sight in game.view} == minigrids_view(game.level)
        game.act(action)
    assert {sight.cell for sight in game.view} == minigrids_view(game.level)

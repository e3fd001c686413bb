"""Each world's expert solves the evaluation items, through HTTP."""

from __future__ import annotations

import gymnasium
import pytest

from gym_agents.horizon import HorizonLimit
from gym_agents.tasks import env_id, load_scenario, scenario_row


def turns_to_success(scenario: str, limit: int) -> dict[int, int | None]:
    """Turns that the expert took for each evaluation item; `None` where it did not succeed within the limit."""
    row = scenario_row(scenario)
    envs = gymnasium.make_vec(env_id(row, None), num_envs=1, max_episode_steps=limit, expert=True)
    assert isinstance(envs, HorizonLimit)
    scenario_of_row = load_scenario(row)
    turns: dict[int, int | None] = {}
    for item in envs.items("eval"):
        envs.reset(seed=0, options={"item": item})
        turns[item], played, over = None, 0, False
        while not over:
            _, _, terminations, truncations, infos = envs.step(
                [scenario_of_row.reply(envs.expert(0), envs.connection.options)]
            )
            played += 1
            over = bool(terminations[0] or truncations[0])
            if infos["success"][0]:
                turns[item] = played
    envs.close()
    return turns


@pytest.mark.slow
def test_textcrafts_planner_solves_every_evaluation_item() -> None:
    turns = turns_to_success("textcraft", limit=200)
    assert len(turns) == 100
    solved = [count for count in turns.values() if count is not None]
    assert len(solved) == 100
    assert max(solved) <= scenario_row("textcraft").horizon


@pytest.mark.slow
def test_babyais_expert_solves_nearly_every_evaluation_item() -> None:
    turns = turns_to_success("babyai", limit=200)
    assert len(turns) == 90
    solved = [count for count in turns.values() if count is not None]
    assert len(solved) >= 0.98 * 90
    within = sum(count <= scenario_row("babyai").horizon for count in solved)
    assert within >= 0.8 * 90
    print(f"solved {len(solved)} of 90, {within} of them within the default horizon")


@pytest.mark.slow
def test_searchqas_expert_answers_the_evaluation_items_within_the_horizon() -> None:
    turns = turns_to_success("searchqa", limit=scenario_row("searchqa").horizon)
    assert len(turns) == 400
    solved = [count for count in turns.values() if count is not None]
    assert len(solved) >= 0.95 * 400
    assert min(solved) >= 2  # it searches first

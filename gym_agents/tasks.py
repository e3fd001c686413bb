"""The table: five scenarios, their 27 tasks, and the one loop that registers all 32 ids with Gymnasium."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gym_agents.errors import BackendMissing, UnknownTask, near_match
from gym_agents.scenario import Scenario

NAMESPACE = "AgentGym"


@dataclass(frozen=True)
class Task:
    """One row: a task as its backend knows it."""

    name: str
    """Short name, as in `AgentGym/TextCraft-<name>-v0`."""
    parts: tuple[int | str, ...]
    """What the backend calls it: depths, levels, simulator tasks, sites, data sets."""
    eval_items: int
    """How many evaluation items the paper counts."""


@dataclass(frozen=True)
class ScenarioRow:
    """One scenario: what it is called, where it lives, and how long its episodes last by default."""

    name: str
    title: str
    horizon: int
    """Default turn limit (`max_episode_steps`)."""
    scenario: str
    """`module:attribute` of the `Scenario`."""
    world: str
    """`module:Class` of the `World`, imported in the server process alone."""
    built: bool
    """False while the backend is still to come."""
    tasks: tuple[Task, ...]


SCENARIOS: tuple[ScenarioRow, ...] = (
    ScenarioRow(
        name="webarena",
        title="WebArena",
        horizon=15,
        scenario="gym_agents.scenarios.webarena:SCENARIO",
        world="servers.webarena.world:WebArenaWorld",
        built=False,
        tasks=(
            Task("Shopping", ("shopping",), 15),
            Task("CMS", ("shopping_admin",), 15),
            Task("Map", ("map",), 10),
            Task("GitLab", ("gitlab",), 5),
            Task("Reddit", ("reddit",), 5),
        ),
    ),
    ScenarioRow(
        name="searchqa",
        title="SearchQA",
        horizon=5,
        scenario="gym_agents.scenarios.searchqa:SCENARIO",
        world="servers.searchqa.world:SearchQAWorld",
        built=True,
        tasks=(
            Task("NQ", ("nq",), 50),
            Task("TriviaQA", ("triviaqa",), 50),
            Task("PopQA", ("popqa",), 50),
            Task("HotpotQA", ("hotpotqa",), 50),
            Task("2Wiki", ("2wikimultihopqa",), 50),
            Task("Musique", ("musique",), 100),
            Task("Bamboogle", ("bamboogle",), 50),
        ),
    ),
    ScenarioRow(
        name="textcraft",
        title="TextCraft",
        horizon=30,
        scenario="gym_agents.scenarios.textcraft:SCENARIO",
        world="servers.textcraft.world:TextCraftWorld",
        built=True,
        tasks=(
            Task("Depth1", (1,), 31),
            Task("Depth2", (2,), 41),
            Task("Depth3", (3,), 25),
            Task("Depth4", (4,), 3),
        ),
    ),
    ScenarioRow(
        name="babyai",
        title="BabyAI",
        horizon=20,
        scenario="gym_agents.scenarios.babyai:SCENARIO",
        world="servers.babyai.world:BabyAIWorld",
        built=True,
        tasks=(
            Task("GoTo", tuple(range(1, 12)), 55),
            Task("Pickup", (19, 20, 21), 15),
            Task("ActionObjDoor", (30,), 5),
            Task("FindObj", (31,), 5),
            Task("OneRoom", (33,), 5),
            Task("SynthLoc", (36,), 5),
        ),
    ),
    ScenarioRow(
        name="sciworld",
        title="SciWorld",
        horizon=30,
        scenario="gym_agents.scenarios.sciworld:SCENARIO",
        world="servers.sciworld.world:SciWorldWorld",
        built=True,
        tasks=(
            Task(
                "Measure",
                (
                    "use-thermometer",
                    "measure-melting-point-known-substance",
                    "measure-melting-point-unknown-substance",
                ),
                53,
            ),
            Task("TestConductivity", ("test-conductivity", "test-conductivity-of-unknown-substances"), 83),
            Task("Find", ("find-living-thing", "find-non-living-thing", "find-plant", "find-animal"), 44),
            Task(
                "ChemMix",
                (
                    "chemistry-mix",
                    "chemistry-mix-paint-secondary-color",
                    "chemistry-mix-paint-tertiary-color",
                ),
                5,
            ),
            Task(
                "Lifespan",
                (
                    "lifespan-longest-lived",
                    "lifespan-shortest-lived",
                    "lifespan-longest-lived-then-shortest-lived",
                ),
                15,
            ),
        ),
    ),
)


def scenario_row(name: str) -> ScenarioRow:
    """The row of a scenario.

    Raises:
        UnknownTask: if there is none, with the nearest name.
    """
    rows = {row.name: row for row in SCENARIOS}
    if name not in rows:
        raise UnknownTask(f"There is no scenario {name!r}.{near_match(name, rows)} Known: {', '.join(rows)}.")
    return rows[name]


def load_scenario(row: ScenarioRow) -> Scenario:
    """The row's `Scenario`.

    Raises:
        BackendMissing: if its backend is still to come.
    """
    if not row.built:
        raise BackendMissing(f"{row.title} is in the table of tasks, but its backend is not built yet.")
    module, _, attribute = row.scenario.partition(":")
    scenario: Scenario = getattr(importlib.import_module(module), attribute)
    return scenario


def env_id(row: ScenarioRow, task: str | None) -> str:
    """The Gymnasium id of a task, or of the whole scenario."""
    return f"{NAMESPACE}/{row.title}{f'-{task}' if task else ''}-v0"


def find_spec(id: str) -> EnvSpec:
    """The spec of an id; `module:Id` imports the module first, as `gymnasium.make` does.

    Raises:
        gymnasium.error.Error: if no such id is registered, with the nearest one.
        ImportError: if the module cannot be imported.
    """
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def registered_limit(scenario: str, task: str | None) -> int | None:
    """The turn limit that a scenario's (or a user's own world's) id is registered with; `None` if it has none."""
    specs = gymnasium.registry.values()
    own = (spec for spec in specs if spec.kwargs.get("scenario") == scenario)
    limits = (spec.max_episode_steps for spec in own if spec.kwargs.get("task") == task)
    return next(limits, None)


def register_all() -> None:
    """Registers the 32 ids with Gymnasium."""
    for row in SCENARIOS:
        for task in (None, *(task.name for task in row.tasks)):
            gymnasium.register(
                id=env_id(row, task),
                entry_point="gym_agents.env:TextEnv",
                vector_entry_point="gym_agents.horizon:make_vector_env",
                max_episode_steps=row.horizon,
                kwargs={"scenario": row.name, "task": task},
            )

"""The SciWorld world: numbering, splits, verdicts of the simulator, its limits, and what may not change it."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gym_agents.errors import ItemError, NotOffered, OptionError, SessionUnknown, UnknownTask, WorldFailure
from gym_agents.scenarios.sciworld import SciWorldOptions
from gym_agents.tasks import scenario_row
from servers.sciworld.simulator import Variation
from servers.sciworld.world import SciWorldEpisode, SciWorldWorld
from servers.world import Result

# The simulator's tasks in the order of its numbers, and how many variations each has: ScienceWorld's paper
# (arXiv 2203.07540), table 2, without 5-1, 5-2, 9-1, 9-2, 9-3, 10-1 and 10-2.
VARIATIONS = {
    "boil": 30,
    "melt": 30,
    "freeze": 30,
    "change-the-state-of-matter-of": 30,
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "find-animal": 300,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
}
FIRST = dict(zip(VARIATIONS, itertools.accumulate(VARIATIONS.values(), initial=0), strict=False))
ANIMAL = FIRST["find-animal"]


@pytest.fixture(scope="module")
def world() -> Iterator[SciWorldWorld]:
    made = SciWorldWorld()
    yield made
    made.close()


def start(world: SciWorldWorld, item: int, *simplifications: str, step_limit: int = 1000) -> SciWorldEpisode:
    return world.start(item, 0, SciWorldOptions(simplifications=simplifications, step_limit=step_limit))


def play(episode: SciWorldEpisode, *commands: str) -> Result:
    for command in commands:
        result = episode.step(command)
    return result


@pytest.fixture
def animal(world: SciWorldWorld) -> Iterator[SciWorldEpisode]:
    """Find an animal: the agent stands in the hallway, six doors around it, an orange in its hand."""
    episode = start(world, ANIMAL)
    yield episode
    episode.close()


@pytest.mark.parametrize("task", VARIATIONS)
def test_items_are_numbered_task_after_task(world: SciWorldWorld, task: str) -> None:
    first, last = FIRST[task], FIRST[task] + VARIATIONS[task] - 1
    assert world._items[first] == Variation(task, 0)
    assert world._items[last] == Variation(task, VARIATIONS[task] - 1)


def test_the_numbers_end_with_the_last_task(world: SciWorldWorld) -> None:
    assert sum(VARIATIONS.values()) == 4639
    for wrong in (-1, 4639):
        with pytest.raises(ItemError, match="0 to 4638"):
            world.task_of(wrong)
    with pytest.raises(UnknownTask, match="Did you mean 'Find'"):
        world.demand("find", "eval")


@pytest.mark.parametrize("task", scenario_row("sciworld").tasks, ids=lambda task: task.name)
def test_splits_keep_to_the_simulators_own_sets(world: SciWorldWorld, task: object) -> None:
    """The first half of a task's variations trains, the last quarter tests, as the paper of the simulator says."""
    (row,) = (one for one in scenario_row("sciworld").tasks if one is task)
    for item in world.items(row.name, "train"):
        variation = world._items[item]
        assert variation.task in row.parts
        assert variation.number < VARIATIONS[variation.task] / 2
    held_out = [world._items[item] for item in world.items(row.name, "eval")]
    assert all(one.number >= 0.7 * VARIATIONS[one.task] for one in held_out)
    assert {one.task for one in held_out} == set(row.parts)


def test_items_outside_the_five_tasks_belong_to_none(world: SciWorldWorld) -> None:
    assert world.task_of(FIRST["boil"]) is None
    assert world.task_of(FIRST["use-thermometer"]) == "Measure"
    assert world.task_of(FIRST["lifespan-longest-lived"] + 124) == "Lifespan"


def test_an_episode_opens_with_the_task_and_the_room(animal: SciWorldEpisode) -> None:
    task, room, *_ = animal.observation.splitlines()
    assert task.startswith("Your task is to find a(n) animal.")
    assert room == "This room is called the hallway. In it, you see: "
    assert animal.info == {"simulator_task": "find-animal", "variation": 0, "raw_score": 0, "moves": 0}


def test_an_unknown_command_changes_nothing(animal: SciWorldEpisode) -> None:
    result = animal.step("dance with the doors")
    assert result == Result(
        "No known action matches that input.", 0.0, valid=False, info={"raw_score": 0, "moves": 0}
    )


def test_time_passes_for_what_takes_time(animal: SciWorldEpisode) -> None:
    """A look costs nothing; `wait` is ten units of time on top of the one of the decision."""
    assert animal.step("look around").info["moves"] == 0
    assert animal.step("open door to kitchen").info["moves"] == 1
    assert animal.step("wait").info["moves"] == 12


def test_the_number_after_an_ambiguous_command_says_which(animal: SciWorldEpisode) -> None:
    question = animal.step("open door")
    assert question.observation.startswith("Ambiguous request")
    assert question.valid
    assert "0:\topen door between kitchen and hallway" in question.observation
    assert "1" in animal.actions()
    assert animal.step("0").observation == "The door is now open."
    assert animal.step("go to kitchen").observation == "You move to the kitchen."


def test_a_question_that_is_not_answered_is_dropped(animal: SciWorldEpisode) -> None:
    animal.step("open door")
    assert animal.step("never mind").observation.startswith("Unknown action.")
    assert animal.step("open door to kitchen").observation == "The door is now open."


def test_the_interfaces_own_words_take_no_time(animal: SciWorldEpisode) -> None:
    assert "focus on OBJ" in animal.step("help").observation
    assert "art studio door" in animal.step("objects").observation
    told = animal.step("task")
    assert "find a(n) animal" in told.observation
    assert (told.valid, told.info["moves"]) == (True, 0)


def test_a_wrong_focus_takes_back_what_was_earned_and_ends(animal: SciWorldEpisode) -> None:
    earned = play(animal, "open door to greenhouse", "go to greenhouse")
    assert 0.0 < earned.score < 1.0
    lost = animal.step("focus on door to hallway")
    assert (lost.score, lost.terminated, lost.success) == (0.0, True, False)
    assert lost.info["raw_score"] == -100


def test_the_worlds_own_limit_truncates(world: SciWorldWorld) -> None:
    episode = start(world, ANIMAL, step_limit=3)
    for command in ("open door to kitchen", "go to kitchen", "close door to hallway"):
        assert episode.step(command).truncation is None
    cut = episode.step("open door to hallway")
    assert cut.truncation == "The world's own limit of 3 moves was passed."
    assert (cut.terminated, cut.success) == (False, False)
    episode.close()


def test_a_win_beyond_the_limit_is_a_win(world: SciWorldWorld) -> None:
    episode = start(world, ANIMAL, step_limit=9)  # the path takes nine moves
    result = follow(episode)
    assert result.info["moves"] == 9
    episode.close()
    short = start(world, ANIMAL, step_limit=8)
    result = follow(short)
    assert (result.success, result.truncation) == (True, None)
    short.close()


def follow(episode: SciWorldEpisode) -> Result:
    """Plays the expert's path to its end."""
    result = Result("", 0.0)
    while not result.terminated:
        result = episode.step(episode.expert())
    return result


def test_the_expert_knows_one_path(animal: SciWorldEpisode) -> None:
    first = animal.expert()
    animal.step(first)
    assert animal.expert() != first
    animal.step("look at picture")
    with pytest.raises(NotOffered, match="not on it"):
        animal.expert()


def test_a_path_that_does_not_work_is_not_recommended(world: SciWorldWorld) -> None:
    """Two bees have one name here, and the simulator's planner can pick up neither."""
    episode = start(world, FIRST["find-living-thing"] + 42, "easy")
    with pytest.raises(NotOffered, match="does not solve find-living-thing 42"):
        episode.expert()
    episode.close()


def test_simplifications_are_the_simulators_own(world: SciWorldWorld) -> None:
    plain, easy = start(world, ANIMAL), start(world, ANIMAL, "teleportAction", "openDoors")
    assert plain.step("teleport to kitchen").valid is False
    assert "(that is open)" in easy.observation
    assert easy.step("teleport to kitchen").valid
    assert plain.step("open door to kitchen").observation == "The door is now open."
    plain.close()
    easy.close()


def test_wires_cannot_be_taken_from_a_task_about_wires(world: SciWorldWorld) -> None:
    with pytest.raises(OptionError, match="noElectricalAction"):
        start(world, FIRST["test-conductivity"], "noElectricalAction")


# Growing and breeding plants draws random numbers at every unit of time.
PLANTS = (
    "open door to hallway",
    "go to hallway",
    "open door to greenhouse",
    "go to greenhouse",
    "wait",
    "look around",
)


@pytest.mark.parametrize(
    "variation", [Variation("mendelian-genetics-known-plant", 1), Variation("grow-plant", 2)]
)
def test_looking_changes_nothing(world: SciWorldWorld, variation: Variation) -> None:
    """Valid actions, a view and an expert's path asked for at every turn leave the episode as it is."""
    transcripts = []
    for asks in (False, True):
        episode = SciWorldEpisode(world._pool, world._gold, variation, SciWorldOptions())
        transcripts.append([(episode.step(command), _asked(episode, asks))[0] for command in PLANTS])
        episode.close()
    assert transcripts[0] == transcripts[1]
    assert any(result.info["moves"] > 10 for result in transcripts[0])


def _asked(episode: SciWorldEpisode, asks: bool) -> None:
    if asks:
        assert "look around" in episode.actions()
        assert set(episode.view()) == {"task", "room", "inventory", "things"}


def test_the_view_is_plain_and_holds_what_the_room_holds(animal: SciWorldEpisode) -> None:
    view = animal.view()
    assert view["inventory"].split() == ["In", "your", "inventory,", "you", "see:", "an", "orange"]
    (hallway,) = [room for room in rooms(view["things"]) if room["name"] == "hallway"]
    assert {"picture", "agent"} <= {thing["name"] for thing in hallway["contents"]}


def rooms(things: dict[str, list[dict[str, object]]]) -> list[dict[str, object]]:
    found = list(things["contents"])
    for thing in found:
        found.extend(thing["contents"])  # type: ignore[arg-type]
    return found


def test_what_the_simulator_cannot_do_is_its_own_failure(animal: SciWorldEpisode) -> None:
    """NVIDIA-NeMo/Gym #1351: an environment's failure must not look like an answer."""
    animal._simulator._agent.setErrorState("out of chalk")
    with pytest.raises(WorldFailure, match="out of chalk"):
        animal.step("look around")
    assert not animal._simulator.usable


def test_one_session_keeps_to_one_connection(animal: SciWorldEpisode) -> None:
    """py4j opens a connection, and Java a thread, for each call that finds none free."""
    play(animal, *PLANTS)
    animal.actions()
    assert len(animal._simulator._gateway._gateway_client.deque) == 1


# py4j leaves the socket of a connection that could not be opened to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_dead_java_is_replaced_and_its_sessions_are_lost(world: SciWorldWorld) -> None:
    first, second = start(world, ANIMAL), start(world, ANIMAL)
    before = first.observation
    os.kill(world._pool.jvm.pid, signal.SIGKILL)
    for episode in (first, second):
        with pytest.raises(SessionUnknown, match="has died"):
            episode.step("look around")
        episode.close()
    third = start(world, ANIMAL)
    assert third.observation == before
    third.close()
    gc.collect()


def test_without_java_it_says_what_to_install(tmp_path: object) -> None:
    finished = subprocess.run(
        [sys.executable, "-m", "servers", "sciworld", "--port", "0"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert finished.returncode == 2
    assert "apt-get install default-jre-headless" in finished.stderr
    assert "brew install openjdk" in finished.stderr
    assert "Traceback" not in finished.stderr

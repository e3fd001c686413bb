"""The BabyAI world: hand-worked episodes, numbering, verdicts of the verifier, and whatever an agent may say."""

from __future__ import annotations

import io
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gym_agents.errors import ItemError, NotOffered, UnknownTask
from gym_agents.scenario import Invalid, Options
from gym_agents.scenarios.babyai import COLOURS, KINDS, SCENARIO
from servers.babyai.world import BabyAIEpisode, BabyAIWorld
from servers.world import Episode, Result

WORLD = BabyAIWorld()


def start(item: int) -> Episode:
    return WORLD.start(item, 0, Options())


def play(episode: Episode, *commands: str) -> Result:
    for command in commands:
        result = episode.step(command)
        assert result.valid, result.observation
    return result


# In the hand-worked episodes, (x, y) counts cells from the top left corner, which is (0, 0).


def test_a_ball_alone_worked_by_hand() -> None:
    """The agent stands at (6, 5) and looks left; the ball lies at (2, 2).

    The shortest way: four steps ahead, a turn to the right, two steps ahead.
    """
    episode = start(2)
    assert episode.observation == "Goal: go to the red ball\nred ball 1: 4 ahead 3 right\nwall: 6 ahead"
    assert episode.info == {"level": "GoToRedBallNoDists", "max_steps": 64}
    result = episode.step("go to red ball 1")
    assert result.score == pytest.approx(1 - 0.9 * 7 / 64)
    assert result == Result(
        "The goal is reached.", result.score, terminated=True, success=True, info={"steps": 7}
    )


def test_turning_and_remembering_worked_by_hand() -> None:
    """The agent stands at (3, 1) and looks down; the key lies at (4, 3) in a room of 4 by 4."""
    episode = start(3)
    assert episode.observation == "Goal: go to the blue key\nblue key 1: 2 ahead 1 left\nwall: 4 ahead"
    assert play(episode, "turn left").observation == "blue key 1: 1 ahead 2 right\nwall: 2 ahead"
    assert play(episode, "turn right", "turn right").observation == "wall: 3 ahead"
    assert play(episode, "move forward").observation == "wall: 2 ahead"
    # Behind the agent now, but seen: left, two steps down, left, one step to stand before it.
    result = play(episode, "go to blue key")
    assert result.info == {"steps": 4 + 5}
    assert result.score == pytest.approx(1 - 0.9 * 9 / 36)


def test_carrying_and_stable_names_worked_by_hand() -> None:
    """The agent stands at (4, 5) and looks up, a ball to its left, the grey key at (2, 4)."""
    episode = start(18)
    assert episode.observation == (
        "Goal: pick up the grey key\nred ball 1: 1 left\npurple key 1: 2 right\ngrey key 1: 1 ahead 2 left\n"
        "yellow key 1: 2 ahead 1 left\nyellow ball 1: 2 ahead 1 right\nwall: 5 ahead"
    )
    # The other purple key, nearer to the new view's middle, is the second that is seen.
    left = (
        "red key 1: 1 ahead 1 left\nyellow key 1: 1 ahead 2 right\npurple box 1: 2 ahead 1 left\n"
        "grey key 1: 2 ahead 1 right\npurple key 2: 3 ahead 1 left\nwall: 4 ahead\nYou carry red ball 1"
    )
    assert play(episode, "pick up red ball 1").observation == left
    full = episode.step("pick up grey key 1")
    assert (full.observation, full.valid) == ("You carry red ball 1; drop it first.", False)
    assert episode.step("go to red ball 1").observation == "You carry red ball 1."
    assert episode.step("go to purple key").observation == "Which one: purple key 1, purple key 2?"
    assert play(episode, "drop").observation.startswith("red ball 1: 1 ahead\nred key 1: 1 ahead 1 left\n")
    assert episode.step("drop").observation == "You carry nothing."
    assert play(episode, "turn right").observation == episode.observation.partition("\n")[2]
    result = play(episode, "pick up grey key")
    # Turn left, take, drop, turn right; then one ahead, a turn to the left, one ahead, take.
    assert (result.success, result.info) == (True, {"steps": 8})


def test_a_locked_door_worked_by_hand() -> None:
    """The agent stands at (4, 4), the door at (5, 4), its key at (4, 3), and a ball right behind the door."""
    episode = start(26)
    assert episode.observation == "Goal: pick up the purple box\ngreen door 1, locked: 1 left\nwall: 1 ahead"
    for command, reason in {
        "open green door 1": "green door 1 is locked; you need a green key in hand.",
        "go through green door 1": "green door 1 is locked; you need a green key in hand.",
        "pick up green door 1": "A door cannot be picked up.",
        "move forward": "A wall is in the way.",
        "toggle": "There is no door or box right in front of you.",
        "go to green key 1": "You have not seen green key 1.",
        "drop": "You carry nothing.",
    }.items():
        assert episode.step(command) == Result(reason, 0.0, valid=False, info={"steps": 0})
    assert play(episode, "turn left", "turn left").observation == (
        "green door 1, locked: 1 right\ngreen key 1: 1 ahead\ngrey ball 1: 1 ahead 1 left\n"
        "red key 1: 2 ahead 3 left"
    )
    # Taking the key, turning right, unlocking, and one step: the ball stops the second one.
    result = play(episode, "pick up green key 1", "go through green door 1")
    assert result.info == {"steps": 2 + 1 + 3}
    assert result.observation == (
        "yellow ball 1: 1 ahead\ngreen ball 1: 2 ahead 2 left\npurple box 1: 3 ahead 3 left\n"
        "You carry green key 1"
    )
    assert episode.step("move forward").observation == "yellow ball 1 is in the way."
    assert episode.step("go through yellow ball 1").observation == "yellow ball 1 is not a door."
    assert episode.step("pick up purple box 1").observation == "You carry green key 1; drop it first."
    assert episode.step("go to purple box 1").observation == "There is no free path to purple box 1."
    assert episode.step("open green door 1").observation == "green door 1 is open."


def test_a_late_success_is_a_success() -> None:
    """Farama-Foundation/Minigrid #332: slow wins earn less than 1 and were taken for failures.

    The shortest way to the ball has 8 steps: three ahead, right, three ahead, left.
    """
    episode = start(1)
    result = play(episode, *["turn left"] * 40, "go to red ball 1")
    assert (result.terminated, result.success, result.truncation) == (True, True, None)
    assert result.score == pytest.approx(1 - 0.9 * 48 / 64)
    assert 0 < result.score < 0.5


def test_the_levels_own_step_limit_is_lifted_and_its_score_clamped() -> None:
    """Minigrid would truncate at step 64 and, beyond it, pay less than 0.1."""
    episode = start(1)
    assert play(episode, *["turn right"] * 68).score == 0
    result = play(episode, "go to red ball 1")
    assert (result.terminated, result.success, result.info) == (True, True, {"steps": 76})
    assert result.score == pytest.approx(0.1)


def test_a_win_on_the_levels_last_step_is_a_win() -> None:
    """Minigrid sets both flags there."""
    result = play(start(1), *["turn left"] * 56, "go to red ball 1")
    assert (result.terminated, result.success, result.truncation) == (True, True, None)
    assert result.score == pytest.approx(0.1)


def test_a_failed_mission_terminates_without_success() -> None:
    """Farama-Foundation/Minigrid PR 518: termination was taken for victory in OpenDoorsOrderN4Debug, seed 0."""
    episode = start(15)
    assert episode.observation.startswith("Goal: open the purple door after you open the red door\n")
    result = play(episode, "turn left", "open purple door 1")
    assert (result.terminated, result.success, result.score) == (True, False, 0.0)
    assert result.observation == "The mission has failed."


def test_order_is_kept_in_the_mission_and_by_the_verifier() -> None:
    """In OpenRedBlueDoorsDebug the blue door may not come first."""
    assert "open the red door, then open the blue door" in start(14).observation
    episode = start(14)
    play(episode, *["turn left"] * 4)
    failed = play(episode, "open blue door 1")
    assert (failed.terminated, failed.success) == (True, False)
    episode = start(14)
    play(episode, *["turn left"] * 4)
    assert not play(episode, "open red door 1").terminated
    assert play(episode, "open blue door 1").success


@pytest.mark.parametrize(
    ("item", "level", "task"),
    [
        (0, "GoToRedBallGrey", "GoTo"),
        (3, "GoToObjS6", "GoTo"),
        (10, "GoToObjDoor", "GoTo"),
        (11, "Open", None),
        (15, "OpenDoorsOrderN4Debug", None),
        (18, "PickupLoc", "Pickup"),
        (20, "PickupAbove", "Pickup"),
        (25, "KeyInBox", None),
        (29, "ActionObjDoor", "ActionObjDoor"),
        (30, "FindObjS7", "FindObj"),
        (32, "OneRoomS20", "OneRoom"),
        (35, "SynthLoc", "SynthLoc"),
        (39, "BossLevelNoUnlock", None),
        (45 * 40 + 5, "GoToObjMazeS7", "GoTo"),
        (10**12 * 40 + 19, "PickupDistDebug", "Pickup"),
    ],
)
def test_numbering(item: int, level: str, task: str | None) -> None:
    assert WORLD.task_of(item) == task
    assert start(item).info["level"] == level


def test_every_level_starts() -> None:
    missions = [start(item).observation for item in range(40)]
    assert all(mission.startswith("Goal: ") for mission in missions)


def test_splits() -> None:
    counts = {task: len(WORLD.items(task, "eval")) for task in WORLD.tasks}
    assert counts == {
        "GoTo": 55,
        "Pickup": 15,
        "ActionObjDoor": 5,
        "FindObj": 5,
        "OneRoom": 5,
        "SynthLoc": 5,
    }
    train, held_out = WORLD.items(None, "train"), WORLD.items(None, "eval")
    assert (len(train), len(held_out)) == (810, 90)
    assert {item // 40 for item in train} == set(range(45))
    assert {item // 40 for item in held_out} == set(range(45, 50))


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ItemError, match="-1"):
        WORLD.task_of(-1)
    with pytest.raises(ItemError, match="test"):
        WORLD.demand("GoTo", "test")
    with pytest.raises(UnknownTask, match="Did you mean 'FindObj'"):
        WORLD.demand("FindObjs", "train")
    with pytest.raises(NotOffered, match="no expert"):
        start(25).expert()


def test_generating_prints_nothing_and_draws_from_no_shared_generator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Minigrid prints every layout that it rejects; item 1 has one."""
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    play(start(1), "turn left", "go to red ball 1")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]
    assert capsys.readouterr().out == ""


def test_questions_change_nothing() -> None:
    asked, plain = start(5), start(5)
    for _ in range(6):
        command = asked.expert()
        assert command in asked.actions()
        asked.view()
        asked.picture()
        assert asked.step(command) == plain.step(command)


def test_actions_are_those_that_the_world_takes() -> None:
    """All of them by hand: in the room alone with a ball that lies free."""
    assert start(2).actions() == [
        "turn left",
        "turn right",
        "move forward",
        "go to red ball 1",
        "pick up red ball 1",
    ]


def test_view_is_plain_data() -> None:
    view = start(2).view()
    assert (view["width"], view["height"], view["mission"]) == (8, 8, "go to the red ball")
    assert view["agent"] == {"cell": 6 + 8 * 5, "direction": 2}
    assert view["names"] == {"red ball 1": 2 + 8 * 2}
    assert view["cells"][2 + 8 * 2] == {"kind": "ball", "colour": "red"}
    assert sum(cell is not None for cell in view["cells"]) == 4 * 7 + 1


def test_picture_is_a_png_of_the_grid() -> None:
    image = Image.open(io.BytesIO(start(2).picture()))
    assert (image.format, image.mode) == ("PNG", "RGB")
    assert image.size[0] == image.size[1] == 8 * 24
    assert image.getpixel((12, 12)) == (100, 100, 100)  # a wall
    assert image.getpixel((2 * 24 + 12, 2 * 24 + 12))[0] > 200  # type: ignore[index]  # the ball


names = st.builds(
    "{} {}{}".format, st.sampled_from(COLOURS), st.sampled_from(KINDS), st.sampled_from(["", " 1", " 2"])
)
lines = st.one_of(
    st.sampled_from(["turn left", "turn right", "move forward", "drop", "toggle"]),
    st.builds("{} {}".format, st.sampled_from(["go to", "pick up", "open", "go through"]), names),
    st.text(max_size=20),
)


@settings(max_examples=60, deadline=None)
@given(item=st.integers(0, 40 * 60), data=st.data())
def test_anything_may_be_said(item: int, data: st.DataObject) -> None:
    episode = start(item)
    score = 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        command = SCENARIO.parse(
            data.draw(st.sampled_from(episode.actions()) | lines), Options(grammar="bare")
        )
        if isinstance(command, Invalid):
            assert command.reason
            continue
        before = episode.view()
        result = episode.step(command.text)
        assert 0 <= result.score <= 1
        assert result.success == (result.score > 0)
        assert result.terminated or (not result.success and result.score == score)
        assert result.valid or episode.view() == before
        if result.terminated:
            break


TRANSCRIPT = """
from gym_agents.scenario import Options
from servers.babyai.world import BabyAIWorld
world = BabyAIWorld()
for item in [46 * 40 + level for level in range(40) if level not in (15, 25)]:
    episode = world.start(item, 0, Options())
    print(item, episode.observation, episode.actions())
    for _ in range(8):
        result = episode.step(episode.expert())
        print(result)
        if result.terminated:
            break
"""


def test_the_same_transcript_under_two_hash_seeds() -> None:
    transcripts = [
        subprocess.run(
            [sys.executable, "-c", TRANSCRIPT],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    ]
    assert transcripts[0] == transcripts[1]
    assert transcripts[0].count("Goal: ") == 38


def test_opened_boxes_are_gone_and_their_names_stay_unused() -> None:
    """In KeyInBox the door's key lies in a box."""
    episode = start(25)
    assert isinstance(episode, BabyAIEpisode)
    for _ in range(4):
        episode.step("turn left")
    boxes = [name for name in episode.view()["names"] if " box " in name]
    assert len(boxes) == 1
    assert play(episode, f"go to {boxes[0]}").valid
    result = play(episode, "toggle")
    assert boxes[0] not in result.observation
    assert " key 1: 1 ahead" in result.observation
    assert episode.step(f"go to {boxes[0]}").observation == f"You have not seen {boxes[0]}."

"""A world whose steps wait: played in threads, one call of a session at a time, no session delaying another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from gym_agents import protocol as wire
from gym_agents.errors import SessionClosed
from servers.sessions import Sessions
from servers.world import World
from tests import fakes
from tests.servers.test_sessions import Clock, act, create, make

T = TypeVar("T")


async def threaded(world: World, names: str) -> Sessions:
    sessions = Sessions(world, lease=60.0, max_sessions=8)
    for name in names:
        await sessions.answer(create(name))
        await sessions.answer(wire.Reset(name, 1, seed=0, item=0))
    return sessions


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, timeout=30))


def test_calls_of_one_session_wait_for_each_other_in_their_order() -> None:
    async def work() -> list[Any]:
        sessions = await threaded(fakes.SleepingWorld(), "a")
        turns = [sessions.answer(act(turn, "add 1", name="a")) for turn in (1, 2, 3)]
        answers = await asyncio.gather(*turns, sessions.answer(wire.Look("a", "view")))
        await sessions.shut_down()
        return answers

    *steps, look = run(work())
    assert [step.observation for step in steps] == [f"The count is {n}." for n in (1, 2, 3)]
    assert look.content == {"count": 3}


def test_a_session_that_sleeps_delays_no_other() -> None:
    async def work() -> tuple[float, bool]:
        sessions = await threaded(fakes.SleepingWorld(), "ab")
        slow = asyncio.create_task(sessions.answer(act(1, "add 20", name="a")))
        await asyncio.sleep(0.05)
        began = time.monotonic()
        await sessions.answer(act(1, "add 0", name="b"))
        waited, still_slow = time.monotonic() - began, not slow.done()
        await slow
        await sessions.shut_down()
        return waited, still_slow

    waited, still_slow = run(work())
    assert still_slow
    assert waited < 1.5


def test_closing_twice_during_a_step_waits_for_it_and_closes_once() -> None:
    world = fakes.SleepingWorld()

    async def work() -> list[Any]:
        sessions = await threaded(world, "a")
        step = asyncio.create_task(sessions.answer(act(1, "add 3", name="a")))
        await asyncio.sleep(0.05)
        answers = await asyncio.gather(
            sessions.answer(wire.Close("a")),
            sessions.answer(wire.Close("a")),
            sessions.answer(act(2, "add 1", name="a")),
            return_exceptions=True,
        )
        return [*answers, await step, world.started[0].closed, len(sessions)]

    first, second, late, step, closed, left = run(work())
    assert first == second == wire.Closed("a")
    assert isinstance(late, SessionClosed)
    assert step.observation == "The count is 3."
    assert (closed, left) == (1, 0)


def test_a_caller_that_gives_up_leaves_the_step_to_finish_and_to_be_asked_again() -> None:
    world = fakes.SleepingWorld()

    async def work() -> Any:
        sessions = await threaded(world, "a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sessions.answer(act(1, "add 3", name="a")), timeout=0.05)
        return await sessions.answer(act(1, "add 3", name="a"))

    assert run(work()).observation == "The count is 3."
    assert world.started[0].count == 3


def test_a_running_step_keeps_its_session_and_an_ended_lease_closes_the_episode() -> None:
    world, clock = fakes.SleepingWorld(), Clock()

    async def work() -> tuple[int, int]:
        sessions = make(world, clock=clock)
        await sessions.answer(create())
        await sessions.answer(wire.Reset("s", 1, seed=0, item=0))
        step = asyncio.create_task(sessions.answer(act(1, "add 2")))
        await asyncio.sleep(0.05)
        clock.now += 20.0
        sessions.sweep()
        during = len(sessions)
        await step
        clock.now += 20.0
        sessions.sweep()
        after = len(sessions)
        await sessions.shut_down()
        return during, after

    assert run(work()) == (1, 0)
    assert world.started[0].closed == 1


def test_shutting_down_closes_every_episode_and_the_world() -> None:
    world = fakes.SleepingWorld()

    async def work() -> None:
        sessions = await threaded(world, "abc")
        await sessions.shut_down()

    run(work())
    assert [episode.closed for episode in world.started] == [1, 1, 1]
    assert world.closed == 1

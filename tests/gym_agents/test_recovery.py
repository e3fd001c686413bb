"""Lost answers, lost servers, lost sessions: nothing plays twice and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from gym_agents.client import Client, Job
from gym_agents.env import TextEnv
from gym_agents.errors import (
    DeadlineExceeded,
    EnvironmentFailure,
    ReplayMismatch,
    VectorFailure,
    VersionMismatch,
)
from gym_agents.horizon import HorizonLimit, make_vector_env
from gym_agents.launcher import LocalServer, local_server
from gym_agents.protocol import CLIENT_KEEP_ALIVE, SERVER_KEEP_ALIVE, Started

WORLD = "tests.fakes:CountingWorld"
ADD = "Action: add 1"


@pytest.fixture
def server() -> Iterator[LocalServer]:
    made = LocalServer(WORLD)
    made.start()
    yield made
    made.close()


class CuttingProxy:
    """Forwards whole requests; every second answer is thrown away and the connection cut."""

    def __init__(self, target: str, hold: float = 0.0) -> None:
        self.target_port = int(target.rsplit(":", 1)[1])
        self.hold = hold
        self.requests = 0
        self.cut = 0
        self._ending = asyncio.Event()
        self._open: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, ...]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(5)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = (writer,)  # at once, so that an end that comes now waits for it
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        self._open[task] = (writer, up_writer)
        try:
            while request := await self._request(reader):
                self.requests += 1
                up_writer.write(request)
                answer = await self._answer(up_reader)
                if b"/v1/batch" in request.split(b"\r\n", 1)[0] and self.requests % 2:
                    self.cut += 1
                    await self._hold()
                    break
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (up_writer, writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()
            del self._open[task]

    async def _hold(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), self.hold)

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        return head + await self._body(head, reader)

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        return head + await self._body(head, reader)

    @staticmethod
    async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
        return await reader.readexactly(int(fields.get(b"content-length", 0)))

    async def _end(self) -> None:
        """Ends each connection by closing it: a cancelled task may leave a socket that nobody closes."""
        self._ending.set()
        self._server.close()
        await asyncio.sleep(0.05)  # connections just accepted reach `_serve`
        while self._open:
            for writer in [writer for pair in self._open.values() for writer in pair]:
                writer.close()
            await asyncio.wait(self._open, timeout=0.1)
        await asyncio.sleep(0.05)  # transports close in the loop's next rounds

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


def test_a_cut_connection_never_plays_a_move_twice(server: LocalServer) -> None:
    """aio-libs/aiohttp #10790 and #6138; AltimateAI/altimate-code #1222: the request landed, the reply was lost."""
    proxy = CuttingProxy(server.start())
    env = TextEnv(WORLD, server=f"http://127.0.0.1:{proxy.port}")
    env.reset(seed=1, options={"item": 0})
    observations = [env.step(ADD)[0] for _ in range(5)]
    assert observations == [f"The count is {n}." for n in range(1, 6)]
    assert proxy.cut >= 3
    env.close()
    proxy.close()


def test_an_answer_past_the_deadline_is_a_typed_error(server: LocalServer) -> None:
    proxy = CuttingProxy(server.start(), hold=30)
    env = TextEnv(WORLD, server=f"http://127.0.0.1:{proxy.port}", deadline=1.0)
    with pytest.raises(DeadlineExceeded, match="within 1 s"):
        play_episodes(env, 4)
    env.close()
    proxy.close()


def play_episodes(env: TextEnv, count: int) -> None:
    for _ in range(count):
        env.reset(seed=1, options={"item": 0})


def play(envs: HorizonLimit, kill: LocalServer | None) -> list[tuple[str, ...]]:
    seen = [envs.reset(seed=3)[0]]
    for turn in range(6):
        if kill is not None and turn == 3:
            assert kill.pid is not None
            os.kill(kill.pid, signal.SIGKILL)
        observations, rewards, *_ = envs.step([ADD] * 8)
        seen.append((*observations, str(rewards.tolist())))
    return seen


def test_a_killed_local_server_is_started_again_and_the_episodes_go_on() -> None:
    envs = make_vector_env(8, WORLD, max_episode_steps=-1)
    undisturbed = play(envs, None)
    assert play(envs, local_server(WORLD)) == undisturbed
    envs.close()


def test_the_sessions_of_a_lost_replica_move_to_the_other_one(server: LocalServer) -> None:
    other = LocalServer(WORLD)
    addresses = f"{server.start()},{other.start()}"
    envs = make_vector_env(8, WORLD, server=addresses, max_episode_steps=-1)
    undisturbed = play(envs, None)
    envs.reset(seed=3)
    assert play(envs, other) == undisturbed
    envs.close()
    other.close()


@pytest.mark.parametrize(
    ("world", "error", "why"),
    [
        ("FickleWorld", ReplayMismatch, "turn 1 differs"),
        ("UnrepeatableWorld", EnvironmentFailure, "cannot be replayed"),
    ],
)
def test_what_cannot_be_rebuilt_as_it_was_is_an_error(
    world: str, error: type[EnvironmentFailure], why: str
) -> None:
    env = make_vector_env(1, f"tests.fakes:{world}", max_episode_steps=-1)
    kill_target = local_server(f"tests.fakes:{world}")
    env.reset(seed=1, options={"item": 0})
    env.step([ADD])
    assert kill_target.pid is not None
    os.kill(kill_target.pid, signal.SIGKILL)
    with pytest.raises(VectorFailure, match=why) as caught:
        env.step([ADD])
    assert type(caught.value.failures[0]) is error
    env.close()


def test_a_full_server_answers_busy_and_takes_the_next_one_once_there_is_room() -> None:
    """huggingface/OpenEnv PR 1000: slots held by dead clients, every reset refused after a day."""

    async def scenario(url: str) -> None:
        client, crashed = (Client("counting", [url], token=None, deadline=20) for _ in range(2))
        held = [crashed.open(None, {}) for _ in range(4)]
        for session in held:
            assert isinstance(await crashed.ask(Job(session, session.reset(0, 0, "train"))), Started)
        assert crashed._renewal is not None
        crashed._renewal.cancel()  # the client is gone: nobody renews its leases
        impatient = Client("counting", [url], token=None, deadline=0.5)
        session = impatient.open(None, {})
        with pytest.raises(DeadlineExceeded, match="Last seen: .*4"):
            await impatient.ask(Job(session, session.reset(0, 0, "train")))
        sessions = [client.open(None, {}) for _ in range(4)]
        started = await asyncio.gather(*(client.ask(Job(s, s.reset(0, 0, "train"))) for s in sessions))
        assert all(isinstance(answer, Started) for answer in started)
        for each in (client, crashed, impatient):
            await each.close()

    small = LocalServer(WORLD, arguments=("--lease", "2", "--max-sessions", "4"))
    asyncio.run(scenario(small.start()))
    small.close()


def test_the_client_drops_idle_connections_before_the_server_does() -> None:
    """NVIDIA-NeMo/Gym PR 1555: the server dropped idle connections first, and steps failed at random."""
    assert CLIENT_KEEP_ALIVE < SERVER_KEEP_ALIVE


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_pauses_of_any_length_break_nothing(server: LocalServer) -> None:
    """NVIDIA-NeMo/Gym PR 1555, marin-community/marin PR 2818: a reset after a training update."""
    idle = (16, 31, 61, 76)
    # a deadline of its own gives each vector a client, and connections, of its own
    vectors = {
        s: make_vector_env(64, WORLD, server=server.start(), deadline=100.0 + s, max_episode_steps=-1)
        for s in idle
    }
    for envs in vectors.values():
        envs.reset(seed=0, options={"item": 0})
        envs.step([ADD] * 64)
    started = time.monotonic()
    for seconds, envs in vectors.items():
        time.sleep(max(0.0, started + seconds - time.monotonic()))
        assert_next_step_is(envs, turn=2)
    rng = random.Random(0)
    for turn in range(3, 9):
        time.sleep(rng.uniform(4.8, 5.2))
        assert_next_step_is(vectors[76], turn)
    for envs in vectors.values():
        envs.close()


def assert_next_step_is(envs: HorizonLimit, turn: int) -> None:
    observations, *_ = envs.step([ADD] * 64)
    assert observations == (f"The count is {turn}.",) * 64
    assert all(len(lane.session._played) == turn + 1 for lane in envs.env._lanes)


def test_replicas_of_different_backends_do_not_mix(server: LocalServer) -> None:
    strange = LocalServer("tests.fakes:OtherVersionWorld")
    env = TextEnv(WORLD, server=f"{server.start()},{strange.start()}")
    with pytest.raises(VersionMismatch, match=r"counting 1\.0.*counting 2\.0"):
        env.reset()
    strange.close()


def test_a_session_is_rebuilt_beside_its_stale_self(server: LocalServer) -> None:
    """A replica that was out of reach for a while may still hold the session that has moved away."""
    env = TextEnv(WORLD, server=server.start())
    env.reset(seed=1, options={"item": 0})
    env.step(ADD)
    env.step(ADD)
    assert env._session is not None
    env._session.opened = False  # as after a move to another replica, and back
    assert env.step(ADD)[0] == "The count is 3."
    assert env.step(ADD)[0] == "The count is 4."
    env.close()

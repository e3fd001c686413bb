"""The HTTP edge: routes, batches, limits, tokens, and typed errors under their status codes."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest
from starlette.testclient import TestClient

from gym_agents import protocol as wire
from gym_agents.launcher import LocalServer
from servers.app import create_app
from servers.world import World
from tests import fakes


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(create_app(fakes.CountingWorld())) as client:
        yield client


def call(client: TestClient, message: Any) -> tuple[int, dict[str, Any]]:
    response = client.post(wire.CALL, content=msgspec.json.encode(message))
    return response.status_code, response.json()


def batch(client: TestClient, *calls: Any) -> list[tuple[int, dict[str, Any]]]:
    """(at, answer) of each line, in the order of the lines."""
    response = client.post(wire.BATCH, content=msgspec.json.encode(calls))
    assert response.status_code == 200
    return [(line["at"], line["answer"]) for line in map(json.loads, response.text.splitlines())]


def opened(client: TestClient, *names: str) -> None:
    batch(client, *(wire.Create(name, "r", None, {}) for name in names))
    batch(client, *(wire.Reset(name, 1, seed=0, item=0) for name in names))


def act(name: str, turn: int, command: str) -> wire.Step:
    return wire.Step(name, 1, turn, f"Action: {command}")


def test_the_handshake_names_what_is_served() -> None:
    with TestClient(create_app(fakes.CountingWorld(), lease=7.0, max_sessions=3)) as client:
        hello = msgspec.json.decode(client.get(wire.HELLO).content, type=wire.Hello)
        assert hello == wire.Hello(
            version=1,
            scenario="counting",
            numbering="counting",
            backend="counting 1.0",
            tasks=("Low", "High"),
            replays=True,
            lease=7.0,
            max_sessions=3,
            server=hello.server,
        )
    with TestClient(create_app(fakes.CountingWorld())) as other:
        assert msgspec.json.decode(other.get(wire.HELLO).content, type=wire.Hello).server != hello.server


@pytest.mark.parametrize(
    ("query", "items"),
    [
        ("?task=Low&split=train", [0, 1, 2, 3]),
        ("?task=Low&split=eval", [4]),
        ("?split=train", [0, 1, 2, 3, 10, 11]),
        ("?task=High&split=eval", []),
        ("", [0, 1, 2, 3, 10, 11]),
    ],
)
def test_the_items_of_a_split(client: TestClient, query: str, items: list[int]) -> None:
    assert client.get(wire.ITEMS + query).json() == {"numbering": "counting", "items": items}


@pytest.mark.parametrize(
    ("query", "status", "code"), [("?task=Lo", 404, "unknown_task"), ("?split=x", 400, "bad_item")]
)
def test_items_of_nothing(client: TestClient, query: str, status: int, code: str) -> None:
    response = client.get(wire.ITEMS + query)
    assert (response.status_code, response.json()["code"]) == (status, code)


class TestCall:
    def test_a_whole_episode(self, client: TestClient) -> None:
        assert call(client, wire.Create("s", "r", "Low", {})) == (200, {"answer": "created", "session": "s"})
        status, started = call(client, wire.Reset("s", 1, seed=0, item=2))
        assert (status, started["answer"], started["item"], started["task"]) == (200, "started", 2, "Low")
        status, stepped = call(client, act("s", 1, "add 5"))
        assert (status, stepped) == (
            200,
            {
                "answer": "stepped",
                "observation": "The count is 7.",
                "reward": 1.0,
                "score": 1.0,
                "terminated": False,
                "truncated": False,
                "success": False,
                "valid": True,
                "command": "add 5",
                "info": {},
            },
        )
        assert call(client, wire.Look("s", "view")) == (200, {"answer": "looked", "content": {"count": 7}})
        assert call(client, wire.Close("s")) == (200, {"answer": "closed", "session": "s"})

    @pytest.mark.parametrize(
        ("message", "status", "code"),
        [
            (wire.Create("t", "r", "Lo", {}), 404, "unknown_task"),
            (wire.Create("t", "r", None, {"x": 1}), 400, "bad_option"),
            (wire.Reset("s", 2, seed=0, item=77), 400, "bad_item"),
            (wire.Step("s", 1, 5, "Action: stop"), 409, "turn_conflict"),
            (wire.Step("t", 1, 1, "Action: stop"), 404, "session_unknown"),
            (wire.Step("s", 1, 1, "x" * (wire.MAX_REPLY_BYTES + 1)), 413, "reply_too_long"),
        ],
    )
    def test_errors_are_typed(self, client: TestClient, message: Any, status: int, code: str) -> None:
        opened(client, "s")
        got, body = call(client, message)
        assert (got, body["answer"], body["code"]) == (status, "failed", code)
        assert body["message"]

    def test_closed_and_over_are_told_apart(self, client: TestClient) -> None:
        opened(client, "s")
        call(client, act("s", 1, "stop"))
        status, body = call(client, act("s", 2, "add 1"))
        assert (status, body["code"]) == (409, "reset_needed")
        call(client, wire.Close("s"))
        status, body = call(client, act("s", 3, "add 1"))
        assert (status, body["code"]) == (410, "session_closed")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"call": "jump", "session": "s"}',
            b'{"call": "step", "session": "s", "episode": 1, "turn": "1", "reply": ""}',
            b'{"call": "step", "session": "s", "episode": 1, "turn": 1, "reply": "\xff\xfe"}',
            b'{"call": "step", "session": "s", "episode": 1, "turn": 1, "reply": "\\ud800"}',
            b'{"call": "create", "session": "t", "run": "r", "task": null, "options": {"k": NaN}}',
            b'{"call": "create", "session": "t", "run": "r", "task": null, "options": '
            + b'{"k":' * 9000
            + b"1"
            + b"}" * 9001,
        ],
    )
    def test_a_body_that_does_not_fit_the_protocol(self, client: TestClient, body: bytes) -> None:
        response = client.post(wire.CALL, content=body)
        assert (response.status_code, response.json()["code"]) == (400, "bad_request")

    def test_busy_says_when_to_come_back(self) -> None:
        with TestClient(create_app(fakes.CountingWorld(), max_sessions=1, lease=30.0)) as client:
            opened(client, "s")
            response = client.post(wire.CALL, content=msgspec.json.encode(wire.Create("t", "r", None, {})))
            assert response.status_code == 503
            assert response.json()["code"] == "busy"
            assert 25.0 < response.json()["retry_after"] <= 30.0
            assert 25 < int(response.headers["Retry-After"]) <= 30

    def test_a_world_that_raises_is_a_typed_failure_with_its_first_cause(self) -> None:
        """NVIDIA-NeMo/Gym issue 1351: an environment's failure that came back as an answer."""
        with TestClient(create_app(fakes.RaisingWorld())) as client:
            opened(client, "s")
            status, body = call(client, act("s", 1, "add 3"))
            assert (status, body["code"]) == (500, "world_failure")
            assert "ConnectionError: the helper went away \ufffd" in body["message"]


class TestBatch:
    def test_every_call_has_its_line(self, client: TestClient) -> None:
        opened(client, "a", "b")
        answers = dict(batch(client, act("a", 1, "add 1"), act("b", 1, "add 2"), act("c", 1, "add 3")))
        assert [answers[at]["answer"] for at in range(3)] == ["stepped", "stepped", "failed"]
        assert answers[1]["observation"] == "The count is 2."
        assert answers[2]["code"] == "session_unknown"

    @pytest.mark.parametrize("world", [fakes.CountingWorld, fakes.SleepingWorld])
    def test_calls_of_one_session_are_played_in_their_order(self, world: type[World]) -> None:
        with TestClient(create_app(world())) as client:
            answers = batch(
                client,
                wire.Create("s", "r", None, {}),
                wire.Reset("s", 1, seed=0, item=0),
                act("s", 1, "add 1"),
                act("s", 2, "add 1"),
                wire.Close("s"),
                act("s", 3, "add 1"),
            )
        assert [at for at, _ in answers] == list(range(6))
        assert [answer["answer"] for _, answer in answers] == [
            "created",
            "started",
            "stepped",
            "stepped",
            "closed",
            "failed",
        ]

    def test_lines_come_in_the_order_in_which_calls_finish(self) -> None:
        names = [f"s{n}" for n in range(16)]
        with TestClient(create_app(fakes.SleepingWorld())) as client:
            opened(client, *names)
            lines = batch(client, *(act(name, 1, "add 5" if name == "s3" else "add 0") for name in names))
        assert lines[-1][0] == 3
        assert sorted(at for at, _ in lines) == list(range(16))

    def test_a_repeated_batch_plays_nothing_twice(self, client: TestClient) -> None:
        """aio-libs/aiohttp issues 10790 and 6138: a request that landed is sent again."""
        opened(client, "a", "b")
        calls = (act("a", 1, "add 1"), act("b", 1, "add 1"))
        first, again = (client.post(wire.BATCH, content=msgspec.json.encode(calls)).content for _ in range(2))
        assert first == again
        assert call(client, wire.Look("a", "view"))[1]["content"] == {"count": 1}

    @pytest.mark.parametrize("world", [fakes.CountingWorld, fakes.SleepingWorld])
    def test_a_call_that_does_not_fit_fails_alone(self, world: type[World]) -> None:
        with TestClient(create_app(world())) as client:
            opened(client, "a", "b")
            answers = dict(batch(client, act("a", 1, "add 0"), {"call": "jump"}, act("b", 1, "add 0")))
        assert [answers[at]["answer"] for at in range(3)] == ["stepped", "failed", "stepped"]
        assert answers[1]["code"] == "bad_request"

    def test_a_reply_over_the_limit_fails_alone_and_costs_no_turn(self, client: TestClient) -> None:
        names = [f"s{n}" for n in range(64)]
        opened(client, *names)
        huge = "x" * (wire.MAX_REPLY_BYTES + 1)
        calls = [wire.Step(name, 1, 1, huge) if name == "s9" else act(name, 1, "add 1") for name in names]
        answers = dict(batch(client, *calls))
        assert [at for at, answer in answers.items() if answer["answer"] == "failed"] == [9]
        assert answers[9]["code"] == "reply_too_long"
        assert call(client, act("s9", 1, "add 1"))[1]["observation"] == "The count is 1."

    def test_a_body_that_is_no_list(self, client: TestClient) -> None:
        response = client.post(wire.BATCH, content=b'{"call": "close", "session": "s"}')
        assert (response.status_code, response.json()["code"]) == (400, "bad_request")

    def test_an_empty_batch_is_answered_with_nothing(self, client: TestClient) -> None:
        assert batch(client) == []


class TestRuns:
    def test_runs_are_renewed_and_closed_together(self, client: TestClient) -> None:
        opened(client, "a", "b")
        run = msgspec.json.encode(wire.Run("r"))
        assert client.post(wire.RENEW, content=run).json() == {"sessions": 2}
        assert client.post(wire.CLOSE_RUN, content=run).json() == {"sessions": 2}
        assert client.post(wire.CLOSE_RUN, content=run).json() == {"sessions": 0}
        assert call(client, act("a", 1, "add 1"))[1]["code"] == "session_closed"

    def test_leases_end_without_anyone_calling(self) -> None:
        world = fakes.CountingWorld()
        with TestClient(create_app(world, lease=0.4)) as client:
            opened(client, "a")
            deadline = time.monotonic() + 20
            while not world.started[0].closed and time.monotonic() < deadline:
                time.sleep(0.05)
            assert world.started[0].closed == 1

    @pytest.mark.parametrize("world", [fakes.CountingWorld(), fakes.SleepingWorld()])
    def test_the_end_of_the_application_closes_everything(self, world: fakes.CountingWorld) -> None:
        with TestClient(create_app(world)) as client:
            opened(client, "a", "b")
        assert [episode.closed for episode in world.started] == [1, 1]
        assert world.closed == 1


class TestRoutes:
    def test_health_and_metrics(self) -> None:
        with TestClient(create_app(fakes.NaNWorld())) as client:
            opened(client, "a", "b")
            batch(client, act("a", 1, "stop"), act("b", 1, "add 1"))
            assert client.get(wire.HEALTH).text == "ok"
            lines = client.get(wire.METRICS).text.splitlines()
        assert "agentgym_sessions_open 2.0" in lines
        assert "agentgym_episodes_started_total 2.0" in lines
        assert 'agentgym_failures_total{code="world_failure"} 2.0' in lines
        assert 'agentgym_request_seconds_count{route="batch"} 3.0' in lines

    def test_metrics_tell_how_episodes_ended(self, client: TestClient) -> None:
        opened(client, "a", "b")
        batch(client, act("a", 1, "add 5"), act("a", 2, "stop"), act("b", 1, "stop"))
        lines = client.get(wire.METRICS).text.splitlines()
        assert "agentgym_steps_total 3.0" in lines
        assert 'agentgym_episodes_ended_total{outcome="success"} 1.0' in lines
        assert 'agentgym_episodes_ended_total{outcome="failure"} 1.0' in lines

    def test_an_unknown_route_and_a_wrong_method_are_typed(self, client: TestClient) -> None:
        unknown, wrong = client.get("/v1/nothing"), client.get(wire.CALL)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_offered")
        assert (wrong.status_code, wrong.json()["code"]) == (405, "bad_request")

    def test_a_mistake_of_the_servers_own_is_an_error_too(self) -> None:
        world = fakes.CountingWorld()
        app = create_app(world)
        with TestClient(app, raise_server_exceptions=False) as client:
            world.tasks = None  # type: ignore[assignment]
            response = client.get(wire.ITEMS + "?task=Low")
        assert (response.status_code, response.json()["code"]) == (500, "error")


class TestTokens:
    def test_every_route_but_health_wants_the_token(self) -> None:
        with TestClient(create_app(fakes.CountingWorld(), token="geheim")) as client:
            for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "geheim"}):
                for route in (wire.HELLO, wire.ITEMS, wire.METRICS, "/nothing"):
                    response = client.get(route, headers=headers)
                    assert (response.status_code, response.json()["code"]) == (401, "unauthorized")
                assert client.post(wire.CALL, content=b"{}", headers=headers).status_code == 401
            assert client.get(wire.HEALTH).status_code == 200
            assert client.get(wire.HELLO, headers={"Authorization": "Bearer geheim"}).status_code == 200

    def test_the_expert_has_a_route_and_a_token_of_its_own(self, client: TestClient) -> None:
        body = msgspec.json.encode(wire.Expert("s"))
        absent = client.post(wire.EXPERT, content=body)
        assert (absent.status_code, absent.json()["code"]) == (404, "not_offered")
        app = create_app(fakes.CountingWorld(), expert_token="meister")
        with TestClient(app) as client:
            opened(client, "s")
            assert client.post(wire.EXPERT, content=body).status_code == 401
            advice = client.post(wire.EXPERT, content=body, headers={"Authorization": "Bearer meister"})
            assert advice.json() == {"command": "add 1"}
            assert call(client, wire.Look("s", "view"))[1]["content"] == {"count": 0}

    def test_both_tokens_at_once(self) -> None:
        app = create_app(fakes.CountingWorld(), token="geheim", expert_token="meister")
        body = msgspec.json.encode(wire.Expert("s"))
        with TestClient(app) as client:
            shown = client.post(wire.EXPERT, content=body, headers={"Authorization": "Bearer meister"})
            assert shown.json()["code"] == "session_unknown"
            other = client.post(wire.EXPERT, content=body, headers={"Authorization": "Bearer geheim"})
            assert other.status_code == 401
            assert client.get(wire.HELLO, headers={"Authorization": "Bearer meister"}).status_code == 401


class TestBodyLimits:
    """Kludex/uvicorn issue 2097: large bodies ended in an aborted connection without an answer."""

    @pytest.mark.parametrize("size", [100, 64 * 1024, wire.MAX_REPLY_BYTES - 1, wire.MAX_REPLY_BYTES])
    def test_replies_up_to_the_limit_are_answered(self, client: TestClient, size: int) -> None:
        opened(client, "s")
        head = "Action: add 1\n"
        status, answer = call(client, wire.Step("s", 1, 1, head + "\u0001" * (size - len(head))))
        assert (status, answer["observation"]) == (200, "The count is 1.")

    @pytest.mark.parametrize(
        ("route", "limit"), [(wire.CALL, wire.MAX_CALL_BYTES), (wire.BATCH, wire.MAX_BATCH_BYTES)]
    )
    @pytest.mark.parametrize("chunked", [False, True])
    def test_a_body_over_the_limit_is_refused_with_the_limit(
        self, client: TestClient, route: str, limit: int, chunked: bool
    ) -> None:
        def chunks() -> Iterator[bytes]:
            for _ in range(limit // 65536 + 2):
                yield b" " * 65536

        response = client.post(route, content=chunks() if chunked else b" " * (limit + 1))
        assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
        assert str(limit) in response.json()["message"]

    def test_a_batch_of_too_many_calls_is_refused_whole(self, client: TestClient) -> None:
        call = '{"call":"close","session":"none"}'
        for count, status in ((wire.MAX_BATCH_CALLS, 200), (wire.MAX_BATCH_CALLS + 1, 413)):
            response = client.post(wire.BATCH, content=f"[{','.join([call] * count)}]")
            assert response.status_code == status
        assert response.json()["code"] == "body_too_large"
        assert str(wire.MAX_BATCH_CALLS) in response.json()["message"]

    def test_a_slow_sender_of_far_too_much_is_refused_at_once_and_holds_nobody_up(self) -> None:
        server = LocalServer("tests.fakes:CountingWorld")
        url = server.start()
        port = int(url.rpartition(":")[2])
        assert server.pid is not None
        process = psutil.Process(server.pid)
        before = process.memory_info().rss
        declared = 200 * 1024 * 1024
        with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
            slow.sendall(
                f"POST {wire.CALL} HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n".encode()
            )
            assert slow.recv(65536).startswith(b"HTTP/1.1 413")
            for _ in range(20):
                slow.sendall(b" " * 65536)
                assert _health(port).startswith(b"HTTP/1.1 200")
        assert process.memory_info().rss - before < 2 * wire.MAX_BATCH_BYTES
        server.close()


def _health(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as peer:
        peer.sendall(f"GET {wire.HEALTH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return peer.recv(4096)

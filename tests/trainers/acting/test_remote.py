"""The engines on a server: the wire, what a server may lack, and what may go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.responses import JSONResponse, Response

from gym_agents import background
from gym_agents.errors import UsageError
from tests.trainers.acting.model_server import TinyServer, serving
from trainers.acting.characters import CharacterLayout
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.api import ApiEngine
from trainers.acting.engines.base import Completion, Engine, Request, Sampling
from trainers.acting.engines.hf import HFEngine
from trainers.acting.engines.http import ModelServer
from trainers.acting.engines.remote import RemoteEngine, probe
from trainers.acting.engines.transfer import AdapterSync, FullSync, routes
from trainers.config import PolicyConfig
from trainers.embedded import tiny_model, tiny_tokenizer
from trainers.errors import EngineFailure, EngineRefusal, EvaluationOnly
from trainers.models import Policy, load_policy

LAYOUT = ChatLayout(tiny_tokenizer())
PROMPT = LAYOUT.opening("Count.", "1")
BUSY = Response("Come back.", status_code=503, headers={"Retry-After": "0"})
REFUSED = JSONResponse({"error": {"message": "No such parameter."}}, status_code=400)


@pytest.fixture
def tiny() -> Iterator[TinyServer]:
    with serving(TinyServer()) as server:
        yield server


def connect(tiny: TinyServer, transfer: Any = None, *, max_context: int = 512, **how: Any) -> RemoteEngine:
    server = ModelServer(tiny.address, **how)
    try:
        offer = probe(server, "tiny", PROMPT, max_context)
    except BaseException:
        background.run(server.close())
        raise
    tiny.asked.clear()
    made = transfer and transfer(server)
    return RemoteEngine(server, offer, max_context=max_context, encode=LAYOUT.supervised, transfer=made)


def request(
    name: str, ids: Sequence[int] = PROMPT, *, seed: int = 0, temperature: float = 1.0, most: int = 6
) -> Request:
    return Request(name, ids, Sampling(temperature, max_new_tokens=most), LAYOUT.stop_ids, (seed,))


def answers(engine: Engine, *requests: Request) -> dict[str, Completion]:
    for one in requests:
        engine.submit(one)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        done |= {str(completion.conversation): completion for completion in engine.collect()}
    return done


@torch.no_grad()
def scored(ids: Sequence[int], given: int) -> list[float]:
    """Log-probability that the tiny model gives each id after the first `given`."""
    shares = tiny_model()(torch.tensor([list(ids)])).logits[0].log_softmax(-1)
    return [float(shares[at - 1, ids[at]]) for at in range(given, len(ids))]


def test_what_the_server_sampled_arrives_with_its_log_probabilities(tiny: TinyServer) -> None:
    engine = connect(tiny)
    done = answers(engine, *(request(str(seed), seed=seed) for seed in range(5)))
    for completion in done.values():
        assert 0 < len(completion.sampled_ids) <= 6
        assert (completion.finish == "stop") == (completion.sampled_ids[-1] in LAYOUT.stop_ids)
        expected = scored((*PROMPT, *completion.sampled_ids), len(PROMPT))
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)
    assert len({completion.sampled_ids for completion in done.values()}) > 1
    again = answers(engine, request("again", seed=3))["again"]
    assert again.sampled_ids == done["3"].sampled_ids
    assert engine.missing == ("a way to give it new weights",)
    engine.close()


def test_a_request_carries_the_ids_of_its_whole_conversation_and_nothing_is_left_to_the_server(
    tiny: TinyServer,
) -> None:
    engine = connect(tiny)
    first = answers(engine, request("a"))["a"]
    more = LAYOUT.following("2", ended=first.finish == "stop")
    answers(engine, request("a", more, temperature=0.0))
    opened, extended = tiny.asked
    assert opened["prompt"] == list(PROMPT)
    assert extended["prompt"] == [*PROMPT, *first.sampled_ids, *more]
    assert (opened["temperature"], extended["temperature"]) == (1.0, 0.0)
    assert opened["stop_token_ids"] == sorted(LAYOUT.stop_ids)
    distribution = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    assert [opened[name] for name in distribution] == [1, -1, 0, 1, 0, 0]
    engine.close()


def test_the_context_is_filled_to_its_last_token_and_no_further(tiny: TinyServer) -> None:
    engine = connect(tiny, max_context=len(PROMPT) + 1)
    assert len(answers(engine, request("a"))["a"].sampled_ids) == 1
    assert answers(engine, request("a", [5]))["a"] == Completion("a", (), (), "length", 0)
    assert len(tiny.asked) == 1
    engine.close()


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(tiny: TinyServer) -> None:
    engine = connect(tiny, attempts=3)
    tiny.faults = [BUSY, BUSY]
    assert answers(engine, request("a"))["a"].sampled_ids
    tiny.faults = [BUSY] * 3
    with pytest.raises(EngineFailure, match="503: Come back"):
        answers(engine, request("b"))
    tiny.faults = [REFUSED]
    with pytest.raises(EngineRefusal, match="400: .*No such parameter"):
        answers(engine, request("c"))
    assert len(tiny.asked) == 3 + 3 + 1
    engine.close()


def test_no_answer_within_the_deadline_is_a_failure(tiny: TinyServer) -> None:
    engine = connect(tiny, deadline=0.3)
    tiny.faults = [2.0]
    with pytest.raises(EngineFailure, match=r"no answer within 0.3 s"):
        answers(engine, request("a"))
    engine.close()


def test_no_server_at_all_is_a_failure() -> None:
    server = ModelServer("http://127.0.0.1:9/v1", attempts=2)
    with pytest.raises(EngineFailure, match="No answer from http://127.0.0.1:9/v1/models"):
        probe(server, "tiny", PROMPT, 512)
    background.run(server.close())


def test_a_released_conversation_is_given_up_and_its_name_is_free(tiny: TinyServer) -> None:
    engine = connect(tiny)
    tiny.faults = [1.0]
    engine.submit(request("a"))
    with pytest.raises(UsageError, match="under way"):
        engine.submit(request("a"))
    engine.release("a")
    assert engine.collect() == []
    assert answers(engine, request("a"))["a"].sampled_ids
    assert tiny.asked[-1]["prompt"] == list(PROMPT)
    engine.close()


# What a server gives.


@pytest.mark.parametrize(
    ("lacks", "missing"),
    [
        ({}, ("a way to give it new weights",)),
        ({"logprobs": False}, ("their log-probabilities", "a way to give it new weights")),
        (
            {"token_ids": False},
            ("the ids that it sampled", "their log-probabilities", "a way to give it new weights"),
        ),
    ],
)
def test_what_a_server_lacks_is_found_at_the_start(lacks: dict[str, bool], missing: tuple[str, ...]) -> None:
    with serving(TinyServer(**lacks)) as tiny:  # type: ignore[arg-type]
        engine = connect(tiny)
        assert engine.missing == missing
        greedy = answers(engine, request("a", temperature=0.0))["a"]
        assert bool(greedy.logprobs) is (not lacks)
        assert LAYOUT.decode(greedy.sampled_ids) == spoken()
        with pytest.raises(EvaluationOnly, match="takes no new weights"):
            engine.sync(1)
        engine.close()


def spoken() -> str:
    """What the tiny model says greedily after `PROMPT`, by the engine in this process."""
    engine = HFEngine(tiny_model())
    return LAYOUT.decode(answers(engine, request("a", temperature=0.0))["a"].sampled_ids)


@pytest.mark.parametrize(
    ("asked", "room", "said"),
    [
        ("tinny", 512, "serves tiny; engine.model is 'tinny'. Did you mean 'tiny'?"),
        ("tiny", 9000, "room for 8192 tokens, but policy.max_context is 9000"),
    ],
)
def test_a_server_of_something_else_is_refused(tiny: TinyServer, asked: str, room: int, said: str) -> None:
    server = ModelServer(tiny.address)
    with pytest.raises(EngineRefusal, match=said):
        probe(server, asked, PROMPT, room)
    background.run(server.close())


def test_an_adapter_that_a_killed_run_left_is_not_taken_for_the_model(
    tiny: TinyServer, tmp_path: Path
) -> None:
    left = connect(tiny, lambda server: AdapterSync(server, policy(lora_rank=2).save, tmp_path))
    left.sync(1)
    left.close()
    server = ModelServer(tiny.address)
    assert probe(server, "", PROMPT, 512).model == "tiny"
    background.run(server.close())


def test_an_end_that_is_not_among_the_ids_is_a_failure_and_not_a_cut(tiny: TinyServer) -> None:
    engine = connect(tiny)
    tiny.faults = [JSONResponse({"choices": [{"finish_reason": "stop", "token_ids": [70, 71]}]})]
    with pytest.raises(EngineFailure, match="the token at which it ended"):
        answers(engine, request("a"))
    engine.close()


# New weights.


def policy(**how: Any) -> Policy:
    """A policy whose trainable weights are not those that it was loaded with."""
    made = load_policy(PolicyConfig("tiny", **how), torch.device("cpu"))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in made.trainable.values():
            parameter += 0.05 * torch.randn_like(parameter)
    return made


def greedy(engine: Engine, *names: str) -> list[Completion]:
    done = answers(engine, *(request(name, temperature=0.0, most=12) for name in names))
    return [done[name] for name in names]


@pytest.mark.parametrize("rank", [0, 4], ids=["whole weights", "adapter"])
def test_after_a_sync_the_server_is_the_policy(tiny: TinyServer, tmp_path: Path, rank: int) -> None:
    learned = policy(lora_rank=rank)

    def transfer(server: ModelServer) -> AdapterSync | FullSync:
        paths = routes(server)
        assert AdapterSync.offered(paths)
        assert FullSync.offered(paths)
        return (
            AdapterSync(server, learned.save, tmp_path)
            if rank
            else FullSync(server, learned.save, tmp_path, "tiny")
        )

    engine = connect(tiny, transfer)
    assert engine.missing == ()
    before = greedy(engine, "a")[0].sampled_ids
    engine.sync(3)
    [after] = greedy(engine, "a")
    [expected] = greedy(HFEngine(learned.model), "a")
    assert (after.weight_version, after.sampled_ids) == (3, expected.sampled_ids)
    assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert after.sampled_ids != before
    engine.close()


def test_one_adapter_is_loaded_at_a_time_under_a_name_of_its_own(tiny: TinyServer, tmp_path: Path) -> None:
    """Also where a weight version is synced twice, as a warm start does."""
    learned = policy(lora_rank=2)
    engine = connect(tiny, lambda server: AdapterSync(server, learned.save, tmp_path))
    for version in (0, 0, 1):
        engine.sync(version)
    names = [word.split()[1] for word in tiny.called if word.startswith("load")]
    assert len(set(names)) == 3
    assert tiny.called == [
        *(f"load {names[0]}", f"load {names[1]}", f"unload {names[0]}"),
        *(f"load {names[2]}", f"unload {names[1]}"),
    ]
    assert [path.name for path in tmp_path.iterdir()] == [names[2]]
    greedy(engine, "a")
    assert tiny.asked[-1]["model"] == names[2]
    engine.close()


def test_whole_weights_are_read_anew_and_cached_prefixes_forgotten(tiny: TinyServer, tmp_path: Path) -> None:
    learned = policy(lora_rank=0)
    engine = connect(tiny, lambda server: FullSync(server, learned.save, tmp_path, "tiny"))
    engine.sync(1)
    assert tiny.called == ["reload_weights", "forget"]
    engine.close()


@pytest.mark.parametrize("missing", ["/v1/load_lora_adapter", "/collective_rpc", "/reset_prefix_cache"])
def test_a_way_is_offered_only_where_its_routes_are(missing: str) -> None:
    with serving(
        TinyServer(
            routes=tuple({"/v1/load_lora_adapter", "/collective_rpc", "/reset_prefix_cache"} - {missing})
        )
    ) as tiny:
        server = ModelServer(tiny.address)
        paths = routes(server)
        background.run(server.close())
    assert AdapterSync.offered(paths) is (missing != "/v1/load_lora_adapter")
    assert FullSync.offered(paths) is (missing == "/v1/load_lora_adapter")


# API models.


def test_an_api_model_is_asked_in_messages(tiny: TinyServer) -> None:
    layout = CharacterLayout()
    engine = ApiEngine(ModelServer(tiny.address), "gpt", layout)
    ids = layout.opening("Count.", "1")
    said = answers(engine, Request("a", ids, Sampling(0.0, max_new_tokens=9), layout.stop_ids, (0,)))["a"]
    assert (layout.decode(said.sampled_ids), said.finish, said.logprobs) == ("Action: inventory", "stop", ())
    tiny.finish = "length"
    cut = answers(engine, Request("a", layout.following("2", ended=True), Sampling(), layout.stop_ids, (0,)))[
        "a"
    ]
    assert (layout.decode(cut.sampled_ids), cut.finish) == ("Action: inventory", "length")
    assert tiny.asked[0] == {
        "model": "gpt",
        "messages": [{"role": "user", "content": "Count.\n\n1"}],
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 9,
    }
    assert tiny.asked[1]["messages"] == [
        {"role": "user", "content": "Count.\n\n1"},
        {"role": "assistant", "content": "Action: inventory"},
        {"role": "user", "content": "2"},
    ]
    with pytest.raises(EvaluationOnly):
        engine.sync(1)
    engine.close()


def test_a_conversation_that_an_api_finds_too_long_is_a_length_cut(tiny: TinyServer) -> None:
    layout = CharacterLayout()
    engine = ApiEngine(ModelServer(tiny.address), "gpt", layout)
    tiny.faults = [JSONResponse({"error": {"code": "context_length_exceeded"}}, status_code=400), REFUSED]
    asked = Request("a", layout.opening("Count.", "1"), Sampling(), layout.stop_ids, (0,))
    assert answers(engine, asked)["a"].sampled_ids == ()
    with pytest.raises(EngineRefusal):
        answers(engine, asked)
    engine.close()


def test_the_key_travels_as_a_bearer_token(tiny: TinyServer) -> None:
    for key, sent in (("secret", "Bearer secret"), ("", None)):
        server = ModelServer(tiny.address, key=key)
        probe(server, "tiny", PROMPT, 512)
        background.run(server.close())
        assert tiny.authorization == sent

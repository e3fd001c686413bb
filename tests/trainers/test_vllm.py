"""The engine on a real vLLM, whose program is `vllm` on the path or what the variable VLLM names."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Completion, Engine, Request, Sampling
from trainers.acting.engines.hf import HFEngine
from trainers.acting.engines.http import ModelServer
from trainers.acting.engines.remote import RemoteEngine, probe
from trainers.acting.engines.transfer import AdapterSync, FullSync, routes
from trainers.config import PolicyConfig
from trainers.embedded import smollm2_folder
from trainers.models import Policy, load_policy

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
PORT = 18731
SWITCHES = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": "1"}
FLAGS = "--dtype float32 --enforce-eager --max-model-len 1024 --enable-lora --max-lora-rank 16"
QUESTION = ("Answer in one short sentence.", "What is the capital of France?")


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    words = [os.environ.get("VLLM", "vllm"), "serve", str(smollm2_folder()), "--served-model-name", "smollm2"]
    words += ["--host", "127.0.0.1", "--port", str(PORT), *FLAGS.split()]
    process = subprocess.Popen(words, env={**os.environ, **SWITCHES})
    try:
        wait_for(f"http://127.0.0.1:{PORT}/health", process)
        yield f"http://127.0.0.1:{PORT}/v1"
    finally:
        process.terminate()
        process.wait(timeout=60)


def wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + 600
    while True:
        assert process.poll() is None
        assert time.monotonic() < ends
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)


def answers(engine: Engine, layout: ChatLayout, temperature: float, count: int) -> list[Completion]:
    how = Sampling(temperature, max_new_tokens=16)
    for seed in range(count):
        engine.submit(Request(seed, layout.opening(*QUESTION), how, layout.stop_ids, (seed,)))
    done: dict[object, Completion] = {}
    while len(done) < count:
        done |= {completion.conversation: completion for completion in engine.collect()}
    for seed in range(count):
        engine.release(seed)
    return [done[seed] for seed in range(count)]


@pytest.mark.parametrize(
    "rank", [8, 0], ids=["adapter", "whole weights"]
)  # the latter change the server's model
def test_vllm_samples_what_the_policy_would_and_takes_its_weights(
    vllm: str, tmp_path: Path, rank: int
) -> None:
    policy = load_policy(PolicyConfig("smollm2", lora_rank=rank), torch.device("cpu"))
    layout, server = ChatLayout(policy.tokenizer), ModelServer(vllm)
    offer = probe(server, "smollm2", layout.opening(*QUESTION), 1024)
    assert AdapterSync.offered(routes(server))
    assert FullSync.offered(routes(server))
    transfer = (
        AdapterSync(server, policy.save, tmp_path)
        if rank
        else FullSync(server, policy.save, tmp_path, offer.model)
    )
    remote = RemoteEngine(server, offer, max_context=1024, encode=layout.supervised, transfer=transfer)
    with closing(remote):
        compare(remote, policy, layout)


def compare(remote: RemoteEngine, policy: Policy, layout: ChatLayout) -> None:
    """Both say the same before and after a change of the weights; the server keeps its seeds."""
    assert remote.missing == ()
    own, heard = HFEngine(policy.model, max_context=1024), []
    for version in range(2):
        own.sync(version)
        remote.sync(version)
        [said], [expected] = answers(remote, layout, 0.0, 1), answers(own, layout, 0.0, 1)
        assert said.sampled_ids == expected.sampled_ids
        assert said.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        heard.append(said)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in policy.trainable.values():
                parameter += 0.02 * torch.randn_like(parameter)
    assert heard[0].logprobs != pytest.approx(heard[1].logprobs, abs=1e-2)
    once, again = ([said.sampled_ids for said in answers(remote, layout, 1.0, 4)] for _ in range(2))
    assert once == again
    assert len(set(once)) > 1

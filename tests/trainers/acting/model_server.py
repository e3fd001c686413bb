"""A small OpenAI-compatible server around the tiny model, with vLLM's extensions, each of which can be missing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import AutoModelForCausalLM

from trainers.config import PolicyConfig
from trainers.embedded import tiny_model, tiny_tokenizer
from trainers.models import load_policy

ROUTES = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/collective_rpc", "/reset_prefix_cache")


@dataclass
class TinyServer:
    """What the server gives, what it was asked, and what goes wrong with it."""

    token_ids: bool = True
    logprobs: bool = True
    routes: tuple[str, ...] = ROUTES
    max_model_len: int = 8192
    said: str | None = None
    """What the chat model says."""
    finish: str = "stop"
    faults: list[Response | float] = field(default_factory=list)
    """Answers that come instead, or seconds to sleep first: one for each call of a model, in turn."""
    address: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The bodies of every call, in turn."""
    authorization: str | None = None
    """How the last caller showed who it is."""
    called: list[str] = field(default_factory=list)
    """The paths of every call that changes something, in turn."""

    def __post_init__(self) -> None:
        self.tokenizer = tiny_tokenizer()
        self.models: dict[str, Any] = {"tiny": tiny_model()}
        self.lock = threading.Lock()

    async def list_models(self, request: Request) -> Response:
        room = {"max_model_len": self.max_model_len}
        adapters = [{"id": name, "parent": "tiny", **room} for name in self.models if name != "tiny"]
        return JSONResponse({"data": [{"id": "tiny", "parent": None, **room}, *adapters]})

    async def describe(self, request: Request) -> Response:
        return JSONResponse({"paths": {path: {} for path in self.routes}})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.authorization = request.headers.get("Authorization")
        return await self.fault(body) or await run_in_threadpool(self.completion, body)

    async def fault(self, body: dict[str, Any]) -> Response | None:
        self.asked.append(body)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, float):
            await asyncio.sleep(fault)
            return None
        return fault

    @torch.no_grad()
    def completion(self, body: dict[str, Any]) -> Response:
        ids, sampled, logprobs = body["prompt"], list[int](), list[float]()
        generator = torch.Generator().manual_seed(body["seed"] % 2**31)
        with self.lock:
            while len(sampled) < body["max_tokens"] and sampled[-1:] not in [
                [s] for s in body["stop_token_ids"]
            ]:
                logits = self.models[body["model"]](torch.tensor([[*ids, *sampled]])).logits[0, -1]
                shares = logits.log_softmax(-1)
                drawn = torch.multinomial(shares.exp(), 1, generator=generator)
                token = int(drawn if body["temperature"] else shares.argmax())
                sampled.append(token)
                logprobs.append(float(shares[token]))
        stopped = sampled[-1] in body["stop_token_ids"]
        choice: dict[str, Any] = {
            "text": self.tokenizer.decode(sampled[:-1] if stopped else sampled),
            "finish_reason": "stop" if stopped else "length",
        }
        if self.token_ids:
            choice |= {"token_ids": sampled, "prompt_token_ids": ids}
        if self.logprobs:
            choice["logprobs"] = {"token_logprobs": logprobs}
        return JSONResponse({"choices": [choice]})

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        answer = {"message": {"content": self.said or "Action: inventory"}, "finish_reason": self.finish}
        return await self.fault(body) or JSONResponse({"choices": [answer]})

    async def load_adapter(self, request: Request) -> Response:
        body = await request.json()
        self.called.append(f"load {body['lora_name']}")
        self.models[body["lora_name"]] = load_policy(
            PolicyConfig(body["lora_path"]), torch.device("cpu")
        ).model
        return Response("Loaded.")

    async def unload_adapter(self, request: Request) -> Response:
        body = await request.json()
        self.called.append(f"unload {body['lora_name']}")
        del self.models[body["lora_name"]]
        return Response("Unloaded.")

    async def call_workers(self, request: Request) -> Response:
        body = await request.json()
        self.called.append(body["method"])
        path = Path(body["kwargs"]["weights_path"])
        self.models["tiny"] = AutoModelForCausalLM.from_pretrained(path).eval()
        return JSONResponse({"results": [None]})

    async def forget_prefixes(self, request: Request) -> Response:
        self.called.append("forget")
        return Response()

    def app(self) -> Starlette:
        offered = {
            "/v1/load_lora_adapter": self.load_adapter,
            "/v1/unload_lora_adapter": self.unload_adapter,
            "/collective_rpc": self.call_workers,
            "/reset_prefix_cache": self.forget_prefixes,
        }
        posts = {path: offered[path] for path in self.routes}
        posts |= {"/v1/completions": self.complete, "/v1/chat/completions": self.chat}
        return Starlette(
            routes=[
                Route("/v1/models", self.list_models),
                Route("/openapi.json", self.describe),
                *(Route(path, answer, methods=["POST"]) for path, answer in posts.items()),
            ]
        )


@contextmanager
def serving(tiny: TinyServer) -> Iterator[TinyServer]:
    """Has it listen, on a thread of its own."""
    config = uvicorn.Config(tiny.app(), host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        tiny.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
        yield tiny
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive()

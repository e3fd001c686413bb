"""How a model server gets the policy's weights: through files that both can read.

Both ways are vLLM's own. An adapter is loaded while the server runs
(https://docs.vllm.ai/en/latest/features/lora/, which wants `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True` and
`--enable-lora`); whole weights are read anew from a folder by its workers (`reload_weights`, through the routes
that `VLLM_SERVER_DEV_MODE=1` opens).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gym_agents import background
from trainers.acting.engines.http import ModelServer
from trainers.errors import EngineRefusal

LOAD_ADAPTER, UNLOAD_ADAPTER = "/load_lora_adapter", "/unload_lora_adapter"
CALL_WORKERS, FORGET_PREFIXES = "/collective_rpc", "/reset_prefix_cache"

Save = Callable[[Path], None]
"""Writes the policy into a folder: its adapter alone, or the whole model."""


class WeightSync(Protocol):
    """Gives a server the policy's weights."""

    def __call__(self, weight_version: int) -> str:
        """Returns the name to ask the server for from now on."""
        ...


class _Routes(msgspec.Struct):
    paths: dict[str, Any]


def routes(server: ModelServer) -> frozenset[str]:
    """The paths that a server says it has; none, where it does not describe itself.

    Raises:
        EngineFailure: it gives no usable answer.
    """
    try:
        return frozenset(background.run(server.describe(_Routes)).paths)
    except EngineRefusal:
        return frozenset()


class AdapterSync:
    """Loads each version of a LoRA adapter under a name of its own, and unloads the one before.

    Cached prefixes go by the adapter's name, so that none is ever mixed with another version's.
    """

    def __init__(self, server: ModelServer, save: Save, folder: Path) -> None:
        self._server = server
        self._save = save
        self._folder = folder.resolve()
        self._family = f"policy-{secrets.token_hex(4)}"  # a server may outlive the runs that it serves
        self._loaded = 0

    @staticmethod
    def offered(paths: frozenset[str]) -> bool:
        """Whether a server with these paths takes adapters."""
        return f"/v1{LOAD_ADAPTER}" in paths

    def __call__(self, weight_version: int) -> str:
        before, name = self._name, f"{self._family}-{self._loaded + 1}"
        self._save(self._folder / name)
        body = {"lora_name": name, "lora_path": str(self._folder / name)}
        background.run(self._server.post(LOAD_ADAPTER, body, bytes))
        self._loaded += 1
        if before:
            background.run(self._server.post(UNLOAD_ADAPTER, {"lora_name": before}, bytes))
            shutil.rmtree(self._folder / before)
        return name

    @property
    def _name(self) -> str:
        return f"{self._family}-{self._loaded}" if self._loaded else ""


class FullSync:
    """Writes the whole model into a folder and has the server's workers read it in place of theirs."""

    def __init__(self, server: ModelServer, save: Save, folder: Path, model: str) -> None:
        self._server = server
        self._save = save
        self._folder = folder.resolve()
        self._model = model

    @staticmethod
    def offered(paths: frozenset[str]) -> bool:
        """Whether a server with these paths reads weights anew."""
        return {CALL_WORKERS, FORGET_PREFIXES} <= paths

    def __call__(self, weight_version: int) -> str:
        self._save(self._folder)
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}
        background.run(self._server.control(CALL_WORKERS, body))
        background.run(self._server.control(FORGET_PREFIXES, {}))
        return self._model

"""Which engine a configuration asks for, and what it must give."""

from __future__ import annotations

import os
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import DistributedType, broadcast_object_list

from gym_agents import background
from trainers.acting.chat import ChatLayout
from trainers.acting.engines.base import Engine
from trainers.acting.engines.hf import HFEngine
from trainers.acting.engines.http import ModelServer
from trainers.acting.engines.remote import RemoteEngine, probe
from trainers.acting.engines.transfer import AdapterSync, FullSync, Save, WeightSync, routes
from trainers.config import Config, EngineConfig
from trainers.errors import EvaluationOnly, ShardedWeights
from trainers.models import Policy

SHARDING = frozenset({DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM})


def make_engine(
    config: Config, policy: Policy, layout: ChatLayout, accelerator: Accelerator, served: Path
) -> Engine:
    """What generates for a policy: the policy itself, or a server that is given its weights.

    Args:
        served: folder through which a server is given weights; it must be able to read it.

    Raises:
        EngineFailure: the server gives no usable answer.
        EngineRefusal: it does not serve what it is asked for.
        UsageError: this process cannot generate with such a model.
    """
    if config.engine.name == "hf":
        return HFEngine(policy.model, max_batch=config.env.num_envs, max_context=config.policy.max_context)
    server = model_server(config.engine)
    try:
        return _remote(config, policy, layout, accelerator, served, server)
    except BaseException:
        background.run(server.close())
        raise


def model_server(config: EngineConfig) -> ModelServer:
    """The server that is named, with the key that the environment holds for it."""
    key = os.environ.get(config.key, "")
    return ModelServer(config.server, key=key, deadline=config.deadline, attempts=config.attempts)


def demand_training(engine: Engine) -> None:
    """Refuses an engine that serves evaluation alone.

    Raises:
        EvaluationOnly: naming what it does not give.
    """
    if engine.missing:
        raise EvaluationOnly(
            f"The engine can only be evaluated with: it does not give {', nor '.join(engine.missing)}."
        )


def demand_whole_weights(accelerator: Accelerator) -> None:
    """Refuses a launch that would cut the model into shards: each process generates with, and trains, a whole one.

    Raises:
        ShardedWeights: saying how to launch instead.
    """
    if accelerator.distributed_type in SHARDING:
        raise ShardedWeights(
            f"The launch asks for {accelerator.distributed_type.value}, which shards weights, but every process "
            "holds the whole model. Launch with trainers/accelerate/one_machine.yaml or several_machines.yaml; a "
            "model too large for one GPU's training fits as a LoRA adapter on a bfloat16 base with "
            "policy.gradient_checkpointing, sampled by a server of its own (engine.name = remote)."
        )


def _remote(
    config: Config,
    policy: Policy,
    layout: ChatLayout,
    accelerator: Accelerator,
    served: Path,
    server: ModelServer,
) -> RemoteEngine:
    max_context = config.policy.max_context
    offer = probe(server, config.engine.model, layout.opening("", ""), max_context)
    transfer = _transfer(server, policy.adapted, policy.save, served, offer.model)
    return RemoteEngine(
        server,
        offer,
        max_context=max_context,
        encode=layout.supervised,
        transfer=transfer and _by_the_main_process(transfer, accelerator),
    )


def _transfer(server: ModelServer, adapted: bool, save: Save, served: Path, model: str) -> WeightSync | None:
    """How the server takes such weights, if it does."""
    paths = routes(server)
    if adapted:
        return AdapterSync(server, save, served) if AdapterSync.offered(paths) else None
    return FullSync(server, save, served, model) if FullSync.offered(paths) else None


def _by_the_main_process(transfer: WeightSync, accelerator: Accelerator) -> WeightSync:
    """All processes ask the server for what the main one has given it."""

    def sync(weight_version: int) -> str:
        name = transfer(weight_version) if accelerator.is_main_process else None
        everyones: str = broadcast_object_list([name])[0]
        return everyones

    return sync

"""The two commands: the only place that turns a configuration into objects, and the order of a run's phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from gym_agents.launcher import local_server
from gym_agents.tasks import find_spec
from trainers import agentevol, dpo, rl, sft
from trainers.acting.agents import make_agent
from trainers.acting.chat import ChatLayout
from trainers.acting.demos import expert_episodes
from trainers.acting.engines.hf import HFEngine
from trainers.acting.worlds import make_worlds
from trainers.checkpoint import Checkpoints, is_complete, restore
from trainers.config import Config, RLConfig
from trainers.folder import RunFolder, replace_episodes
from trainers.learning.algorithms import ALGORITHMS
from trainers.metrics import Stopwatch, TimedEngine
from trainers.models import Policy, load_policy
from trainers.report import draw_curve, final_lines
from trainers.run import Run
from trainers.screen import Screen
from trainers.settings import ConfigError, load


class Method(NamedTuple):
    """What `run.method` may name."""

    train: Callable[[Run], None]
    """Makes its updates, from where the run stands."""
    needs_reference: Callable[[Config], bool]
    """Whether it looks back at the policy that it started from."""


METHODS = {
    "rl": Method(rl.train, lambda config: config.rl.kl_coef > 0),
    "sft": Method(sft.train, lambda config: False),
    "dpo": Method(dpo.train, lambda config: True),
    "evolve": Method(agentevol.train, lambda config: True),
}


def train(config: Config, folder: Path) -> None:
    """Warm start, evaluation, the method, evaluation, report; what an earlier start has finished is not done again.

    Raises:
        ConfigError: if the folder holds another run.
        AgentGymError: whatever else stops a run; it can be resumed.
    """
    run = build(config, folder)
    if not run.resume() and config.warm_start.steps:
        sft.warm_start(run)
    method = METHODS[config.run.method]
    if method.needs_reference(config) and run.state.update == 0:
        run.policy.freeze_reference()
    before = run.judge(0)
    method.train(run)
    after = run.judge(config.updates)
    if run.is_main:
        draw_curve(run.folder, title=f"{config.env.id}, items of {after.numbering}")
        run.policy.save(run.folder.policy)
    for line in final_lines(run.folder.path, config.run.method, before, after):
        run.screen.say(line)
    run.envs.close()


def evaluate(config: Config, folder: Path, checkpoint: str | None) -> None:
    """Plays the held-out items with a checkpoint, or with the policy as it was loaded.

    Raises:
        ConfigError: if there is no such checkpoint.
    """
    path = _checkpoint(Path(checkpoint)) if checkpoint else None
    run = build(config, folder)
    if path is not None:
        run.state = restore(path, run.policy)
        run.engine.sync(run.state.update)
    run.evaluation(run.state.update)
    run.screen.say(f"Episodes: {run.folder.evaluations}")
    run.envs.close()


def write_demonstrations(config: Config, path: Path) -> None:
    """Has the expert play `warm_start.episodes` training episodes, and writes those that it solves into a file.

    Raises:
        NotOffered: the scenario has no expert.
    """
    episodes = expert_episodes(config, config.warm_start.episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_episodes(path, episodes)
    Screen().say(f"{len(episodes)} of {config.warm_start.episodes} expert episodes: {path}")


def export(folder: Path, checkpoint: str, path: Path) -> None:
    """Writes a run's policy as one whole model, which plain transformers can load.

    Raises:
        ConfigError: if there is no such checkpoint.
    """
    transformers.utils.logging.disable_progress_bar()
    found = _checkpoint(Path(checkpoint))
    config = load([f"@{RunFolder(folder).config}"])
    policy = load_policy(config.policy, torch.device("cpu"), seed=config.run.seed)
    state = restore(found, policy)
    policy.save_whole(path)
    Screen().say(f"The policy after {state.update} updates: {path}")


def build(config: Config, path: Path) -> Run:
    """The run's objects; its folder is made last, so that nothing is left behind where a part is missing."""
    transformers.utils.logging.disable_progress_bar()
    accelerator = Accelerator()
    folder = RunFolder(Path(broadcast_object_list([str(path)])[0]))
    folder.demand_fit(config)
    screen = Screen(quiet=not accelerator.is_main_process)
    policy = load_policy(config.policy, accelerator.device, seed=config.run.seed)
    if ALGORITHMS[config.rl.algorithm].needs_critic:
        policy.add_critic(config.run.seed)
    screen.say(f"Policy: {policy.describe()}.")
    if config.run.note:
        screen.say(f"Note: {config.run.note}.")
    envs = make_worlds(config.env, server=_shared_servers(config, accelerator))
    layout = ChatLayout(policy.tokenizer, config.agent.instruction)
    watch = Stopwatch()
    engine = HFEngine(policy.model, max_batch=config.env.num_envs, max_context=config.policy.max_context)
    run = Run(
        config=config,
        folder=folder,
        accelerator=accelerator,
        policy=policy,
        optimizer=make_optimizer(policy, config.rl),
        layout=layout,
        agent=make_agent(config.agent, layout),
        engine=TimedEngine(engine, watch),
        envs=envs,
        screen=screen,
        watch=watch,
    )
    if run.is_main:
        folder.make(config, backend=envs.backend, policy=policy.describe())
    accelerator.wait_for_everyone()
    return run


def make_optimizer(policy: Policy, config: RLConfig) -> torch.optim.Optimizer:
    """Over the policy's trained weights, and over its critic's as a second group."""
    groups: list[dict[str, Any]] = [{"params": [*policy.trainable.values()]}]
    if policy.critic is not None:
        groups.append({"params": [*policy.critic.parameters()], "lr": config.critic_learning_rate})
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)


def _shared_servers(config: Config, accelerator: Accelerator) -> str:
    """On several processes the main one starts the servers, and all share their addresses."""
    if config.env.server or accelerator.num_processes == 1:
        return config.env.server
    addresses: list[str] = []
    if accelerator.is_main_process:
        world = find_spec(config.env.id).kwargs["scenario"]
        addresses = [local_server(world, number).start() for number in range(config.env.replicas)]
    shared: str = broadcast_object_list([",".join(addresses)])[0]
    return shared


def _checkpoint(path: Path) -> Path:
    """A checkpoint's folder: the path itself, or the newest of the run that it names."""
    found = path if is_complete(path) else Checkpoints(RunFolder(path).checkpoints).newest()
    if found is None:
        raise ConfigError([f"--checkpoint: {path} is neither a checkpoint nor a run that has one"])
    return found

"""The two commands: the only place that turns a configuration into objects, and the order of a run's phases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from gym_agents.connect import load_world_scenario, server_variable
from gym_agents.launcher import local_server
from gym_agents.tasks import find_spec
from trainers import agentevol, dpo, rl, sft
from trainers.acting.agents import make_agent
from trainers.acting.characters import CharacterLayout
from trainers.acting.chat import ChatLayout
from trainers.acting.demos import expert_episodes
from trainers.acting.engines.api import ApiEngine
from trainers.acting.worlds import Part, make_worlds
from trainers.checkpoint import Checkpoints, is_complete, read_state, restore
from trainers.config import Config, RLConfig
from trainers.engines import demand_training, demand_whole_weights, make_engine, model_server
from trainers.folder import RunFolder, replace_episodes
from trainers.learning.algorithms import ALGORITHMS
from trainers.metrics import Stopwatch, TimedEngine
from trainers.models import Policy, load_policy
from trainers.report import draw_curve, final_lines
from trainers.run import Evaluator, Run
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
        ConfigError: if the folder holds another run, or an API model is to be trained.
        EvaluationOnly: if the engine does not give what training needs.
        AgentGymError: whatever else stops a run; it can be resumed.
    """
    if config.engine.name == "api":
        raise ConfigError(["engine.name: is 'api', whose models can be evaluated and no more"])
    _demand_more_updates(config, RunFolder(folder))
    run = build(config, folder)
    with closing(run.engine):
        demand_training(run.engine)
        run.engine.sync(0)
        _train(run, config)
    run.close()


def _demand_more_updates(config: Config, folder: RunFolder) -> None:
    """A run does not go back: what it was after fewer updates is not kept."""
    newest = Checkpoints(folder.checkpoints).newest()
    done = read_state(newest).update if newest else 0
    if config.updates < done:
        name = f"{config.run.method}.updates"
        raise ConfigError([f"{name}: is {config.updates}, but the run in {folder.path} has made {done}"])


def _train(run: Run, config: Config) -> None:
    if not run.resume() and config.warm_start.steps:
        sft.warm_start(run)
    method = METHODS[config.run.method]
    if method.needs_reference(config) and run.state.update == 0:
        run.policy.freeze_reference()
    before = run.judge(0)
    method.train(run)
    after = run.judge(config.updates)
    if run.is_main:
        ids = ", ".join(part.env.id for part in config.parts.values())
        draw_curve(run.folder, title=f"{ids}, items of {', '.join(after.by_numbering())}")
        run.policy.save(run.folder.policy)
    for line in final_lines(run.folder, config.run.method, before, after):
        run.screen.say(line)


def evaluate(config: Config, folder: Path, checkpoint: str | None) -> None:
    """Plays the held-out items with a checkpoint, or with the policy as it was loaded, or with an API model.

    Raises:
        ConfigError: if there is no such checkpoint, or the folder holds the evaluation of another.
        EvaluationOnly: if the engine cannot be given a checkpoint's weights.
    """
    path = _checkpoint(Path(checkpoint)) if checkpoint else None
    api = config.engine.name == "api"
    evaluator = build_api(config, folder) if api else build(config, folder)
    with closing(evaluator.engine):
        if isinstance(evaluator, Run):
            _give_weights(evaluator, path)
        elif path is not None:
            raise ConfigError(["--checkpoint: an API model has none"])
        _demand_same_weights(evaluator)
        evaluator.evaluation(evaluator.state.update)
    evaluator.screen.say(f"Episodes: {evaluator.folder.evaluations}")
    evaluator.close()


def _give_weights(run: Run, checkpoint: Path | None) -> None:
    """Has the engine act with a checkpoint's weights, or with those that were loaded, as far as it takes any."""
    if checkpoint is not None:
        run.state = restore(checkpoint, run.policy)
    if run.engine.missing:
        run.screen.say(
            f"The engine serves evaluation alone: it does not give {', nor '.join(run.engine.missing)}."
        )
    if checkpoint is not None or not run.engine.missing:
        run.engine.sync(run.state.update)


def _demand_same_weights(evaluator: Evaluator) -> None:
    """What the folder holds of other weights is not to be lost."""
    update, folder = evaluator.state.update, evaluator.folder
    known = evaluator.from_main(lambda: folder.read_evaluation(update))
    if known and known.weights != evaluator.weights():
        raise ConfigError(
            [f"run.folder: {folder.path} holds the evaluation of other weights, also after {update} updates"]
        )


def write_demonstrations(config: Config, path: Path) -> None:
    """Has the expert play `warm_start.episodes` training episodes, and writes those that it solves into a file.

    Raises:
        NotOffered: the scenario has no expert.
    """
    episodes = expert_episodes(config)
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
    accelerator, folder, screen = _begin(config, path)
    policy = load_policy(config.policy, accelerator.device, seed=config.run.seed)
    if ALGORITHMS[config.rl.algorithm].needs_critic:
        policy.add_critic(config.run.seed)
    screen.say(f"Policy: {policy.describe()}.")
    layout = ChatLayout(policy.tokenizer, config.agent.instruction)
    watch = Stopwatch()
    run = Run(
        config=config,
        folder=folder,
        accelerator=accelerator,
        policy=policy,
        optimizer=make_optimizer(policy, config.rl),
        layout=layout,
        agent=make_agent(config.agent, layout),
        engine=TimedEngine(make_engine(config, policy, layout, accelerator, folder.served), watch),
        parts=_parts(config, accelerator),
        screen=screen,
        watch=watch,
    )
    _make_folder(run, policy.describe())
    return run


def build_api(config: Config, path: Path) -> Evaluator:
    """What evaluates a model that stands behind an API: no policy is loaded."""
    accelerator, folder, screen = _begin(config, path)
    layout = CharacterLayout(config.agent.instruction)
    watch = Stopwatch()
    evaluator = Evaluator(
        config=config,
        folder=folder,
        accelerator=accelerator,
        agent=make_agent(config.agent, layout),
        engine=TimedEngine(ApiEngine(model_server(config.engine), config.engine.model, layout), watch),
        parts=_parts(config, accelerator),
        screen=screen,
        watch=watch,
    )
    _make_folder(evaluator, f"{config.engine.model} at {config.engine.server}")
    return evaluator


def _begin(config: Config, path: Path) -> tuple[Accelerator, RunFolder, Screen]:
    transformers.utils.logging.disable_progress_bar()
    trackers = list(config.run.trackers)
    accelerator = Accelerator(log_with=trackers or None, project_dir=path)
    demand_whole_weights(accelerator)
    folder = RunFolder(Path(broadcast_object_list([str(path)])[0]))
    folder.demand_fit(config)
    screen = Screen(quiet=not accelerator.is_main_process)
    if config.run.note:
        screen.say(f"Note: {config.run.note}.")
    return accelerator, folder, screen


def _make_folder(evaluator: Evaluator, policy: str) -> None:
    if evaluator.is_main:
        backends = ", ".join(part.envs.backend for part in evaluator.parts)
        evaluator.folder.make(evaluator.config, backend=backends, policy=policy)
        named = {name: {"name": evaluator.folder.path.name} for name in ("wandb", "trackio")}
        evaluator.accelerator.init_trackers("gym-agents", init_kwargs=named)
    evaluator.accelerator.wait_for_everyone()


def make_optimizer(policy: Policy, config: RLConfig) -> torch.optim.Optimizer:
    """Over the policy's trained weights, and over its critic's as a second group."""
    groups: list[dict[str, Any]] = [{"params": [*policy.trainable.values()]}]
    if policy.critic is not None:
        groups.append({"params": [*policy.critic.parameters()], "lr": config.critic_learning_rate})
    return torch.optim.AdamW(groups, lr=config.learning_rate, weight_decay=config.weight_decay)


def _parts(config: Config, accelerator: Accelerator) -> tuple[Part, ...]:
    """The scenarios that the run plays, each with its worlds."""
    return tuple(
        Part(name, place, part, make_worlds(part.env, server=_shared_servers(part, accelerator)))
        for place, (name, part) in enumerate(config.parts.items())
    )


def _shared_servers(config: Config, accelerator: Accelerator) -> str:
    """On several processes the main one starts the servers, and all share their addresses."""
    world = find_spec(config.env.id).kwargs["scenario"]
    named = config.env.server or server_variable(load_world_scenario(world))
    if named or accelerator.num_processes == 1:
        return named
    addresses: list[str] = []
    if accelerator.is_main_process:
        addresses = [local_server(world, number).start() for number in range(config.env.replicas)]
    shared: str = broadcast_object_list([",".join(addresses)])[0]
    return shared


def _checkpoint(path: Path) -> Path:
    """A checkpoint's folder: the path itself, or the newest of the run that it names."""
    found = path if is_complete(path) else Checkpoints(RunFolder(path).checkpoints).newest()
    if found is None:
        raise ConfigError([f"--checkpoint: {path} is neither a checkpoint nor a run that has one"])
    return found

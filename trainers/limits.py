"""Which values a configuration may hold, beyond their types."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gym_agents.connect import load_world_scenario
from gym_agents.errors import AgentGymError, ItemError, OptionError, near_match
from gym_agents.items import read_ids
from gym_agents.scenario import make_options
from gym_agents.tasks import SCENARIOS, find_spec
from trainers.config import GROUPED, Config, MixConfig, RLConfig

TRACKERS = ("tensorboard", "wandb", "trackio")
"""Trackers that figures can be sent to, by the names of their packages."""

Broken = Iterator[tuple[str, str]]
"""`("section.key", "is 0, but must be ...")` for each mistake."""


@dataclasses.dataclass(frozen=True)
class _Limit:
    words: str
    holds: Callable[[float], bool]


_COUNT = _Limit("at least 1", lambda value: value >= 1)
_NOT_NEGATIVE = _Limit("at least 0", lambda value: value >= 0)
_POSITIVE = _Limit("above 0", lambda value: value > 0)
_SHARE = _Limit("between 0 and 1", lambda value: 0 <= value <= 1)
_PART = _Limit("above 0 and at most 1", lambda value: 0 < value <= 1)

_NUMBERS: dict[str, _Limit] = {
    "run.seed": _NOT_NEGATIVE,
    "run.checkpoint_every": _COUNT,
    "run.keep_checkpoints": _COUNT,
    "env.num_envs": _COUNT,
    "env.replicas": _COUNT,
    "env.max_error_rate": _SHARE,
    "policy.lora_rank": _NOT_NEGATIVE,
    "policy.lora_alpha": _POSITIVE,
    "policy.max_context": _COUNT,
    "agent.window": _COUNT,
    "engine.deadline": _POSITIVE,
    "engine.attempts": _COUNT,
    "sampling.temperature": _POSITIVE,
    "sampling.top_p": _PART,
    "sampling.max_new_tokens": _COUNT,
    "horizon.every": _COUNT,
    "horizon.window": _COUNT,
    "horizon.raise_at_success": _SHARE,
    "horizon.raise_at_cut": _SHARE,
    "warm_start.steps": _NOT_NEGATIVE,
    "warm_start.episodes": _COUNT,
    "warm_start.batch_size": _COUNT,
    "warm_start.learning_rate": _NOT_NEGATIVE,
    "warm_start.stop_at": _SHARE,
    "warm_start.check_every": _COUNT,
    "warm_start.check_episodes": _COUNT,
    "rl.updates": _COUNT,
    "rl.groups": _COUNT,
    "rl.group_size": _COUNT,
    "rl.learning_rate": _NOT_NEGATIVE,
    "rl.warmup_updates": _NOT_NEGATIVE,
    "rl.weight_decay": _NOT_NEGATIVE,
    "rl.grad_clip": _POSITIVE,
    "rl.max_grad_norm": _POSITIVE,
    "rl.clip_range": _POSITIVE,
    "rl.dual_clip": _Limit("0, or above 1", lambda value: value == 0 or value > 1),
    "rl.ratio_cap": _NOT_NEGATIVE,
    "rl.epochs": _COUNT,
    "rl.minibatches": _COUNT,
    "rl.kl_coef": _NOT_NEGATIVE,
    "rl.kl_target": _NOT_NEGATIVE,
    "rl.entropy_coef": _NOT_NEGATIVE,
    "rl.gamma": _SHARE,
    "rl.gae_lambda": _SHARE,
    "rl.critic_learning_rate": _NOT_NEGATIVE,
    "rl.tokens_per_batch": _COUNT,
    "rl.refill_groups": _NOT_NEGATIVE,
    "sft.min_score": _SHARE,
    "sft.updates": _COUNT,
    "sft.batch_size": _COUNT,
    "sft.learning_rate": _NOT_NEGATIVE,
    "dpo.items": _COUNT,
    "dpo.attempts": _Limit("at least 2, since a pair is two episodes", lambda value: value >= 2),
    "dpo.min_score": _SHARE,
    "dpo.min_gap": _PART,
    "dpo.pairs_per_item": _COUNT,
    "dpo.beta": _POSITIVE,
    "dpo.updates": _COUNT,
    "dpo.batch_size": _COUNT,
    "dpo.learning_rate": _NOT_NEGATIVE,
    "evolve.updates": _COUNT,
    "evolve.items": _COUNT,
    "evolve.attempts": _COUNT,
    "evolve.min_score": _SHARE,
    "evolve.steps": _COUNT,
    "evolve.batch_size": _COUNT,
    "evolve.learning_rate": _NOT_NEGATIVE,
    "eval.attempts": _COUNT,
    "eval.horizon": _NOT_NEGATIVE,
    "eval.every": _NOT_NEGATIVE,
    "eval.limit": _NOT_NEGATIVE,
}


def broken_limits(config: Config) -> Broken:
    """Every value that cannot be; nothing is started to find out."""
    yield from _numbers(config)
    yield from _algorithm(config.rl)
    yield from _trackers(config.run.trackers)
    yield from _files(config)
    yield from _engine(config)
    yield from _mix(config)
    for name, part in config.parts.items():
        for place, words in (*_stages(part.horizon.stages), *_items(part), *_environment(part)):
            yield _in_mix(name, place) if name else place, words


def _mix(config: Config) -> Broken:
    """What a mix cannot be, and what is said beside it and would not be heard."""
    if config.mix and config.run.method != "rl":
        yield "run.method", f"is {config.run.method!r}, but only rl mixes scenarios"
    for name, part in config.mix.items():
        if part.groups < 1:
            yield f"mix.{name}.groups", f"is {part.groups}, but must be at least 1"
        if part.eval_horizon < 0:
            yield f"mix.{name}.eval_horizon", f"is {part.eval_horizon}, but must be at least 0"
    if config.mix and config.env.server:
        yield (
            "env.server",
            "is set beside [mix], whose servers are named by variables such as AGENTGYM_BABYAI_URL",
        )
    yield from _twice(config.mix)
    plain = Config()
    for place in _OF_EACH if config.mix else ():
        section, key = place.split(".")
        if getattr(getattr(config, section), key) != getattr(getattr(plain, section), key):
            yield place, f"is set beside [mix], whose scenarios each have a {_OF_EACH[place]!r} of their own"


def _twice(mix: Mapping[str, MixConfig]) -> Broken:
    """Scenarios of the mix that play in one world: their items could not be told apart."""
    worlds: dict[str, str] = {}
    for name, part in mix.items():
        with suppress(gymnasium.error.Error):  # named where the ids are looked at
            world = find_spec(part.id).kwargs["scenario"]
            if worlds.setdefault(world, name) != name:
                yield f"mix.{name}.id", f"is of the world of mix.{worlds[world]}: mix its tasks by 'tasks'"


_OF_EACH = {
    "env.id": "id",
    "env.tasks": "tasks",
    "env.items": "items",
    "env.options": "options",
    "horizon.stages": "stages",
    "rl.groups": "groups",
    "eval.tasks": "eval_tasks",
    "eval.horizon": "eval_horizon",
}
"""What each scenario of a mix says for itself: setting -> its name there."""


def _in_mix(name: str, place: str) -> str:
    return f"mix.{name}.{_OF_EACH[place]}"


def _numbers(config: Config) -> Broken:
    for name, limit in _NUMBERS.items():
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if not (math.isfinite(value) and limit.holds(value)):
            yield name, f"is {value}, but must be {limit.words}"


def _stages(stages: tuple[int, ...]) -> Broken:
    if not stages:
        yield "horizon.stages", "is empty, but needs at least one turn limit"
    elif min(stages) < 1:
        yield "horizon.stages", f"is {list(stages)}, but every turn limit must be at least 1"
    elif any(later <= earlier for earlier, later in itertools.pairwise(stages)):
        yield "horizon.stages", f"is {list(stages)}, but the turn limits must increase"


def _algorithm(rl: RLConfig) -> Broken:
    """What only makes sense together."""
    if rl.algorithm in GROUPED and rl.group_size == 1:
        yield "rl.group_size", f"is 1, but {rl.algorithm} compares a group with itself: at least 2"
    if rl.algorithm not in GROUPED and rl.refill_groups:
        yield "rl.refill_groups", f"replaces groups of equal scores, from which {rl.algorithm} does learn"
    if rl.clip_range_high is not None and not rl.clip_range <= rl.clip_range_high < math.inf:
        yield "rl.clip_range_high", f"is {rl.clip_range_high}, but must be at least rl.clip_range"
    if rl.kl_coef and rl.kl_in == "loss" and rl.kl_estimator == "k1":
        yield "rl.kl_estimator", "is 'k1', whose gradient in the loss is 0 on average: take k2 or k3"
    if rl.kl_target and not rl.kl_coef:
        yield "rl.kl_target", "adapts rl.kl_coef, which must be above 0 to start from"


def _trackers(names: tuple[str, ...]) -> Broken:
    for name in names:
        if name not in TRACKERS:
            yield (
                "run.trackers",
                f"names {name!r}, but {', '.join(TRACKERS)} are known.{near_match(name, TRACKERS)}",
            )
        elif importlib.util.find_spec(name) is None:
            yield "run.trackers", f"names {name!r}, which is not installed: run `pip install {name}`"


def _files(config: Config) -> Broken:
    for name, files in (("sft.files", config.sft.files), ("dpo.files", config.dpo.files)):
        for file in files:
            if not Path(file).is_file():
                yield name, f"names {file!r}, which is no file"
    if not all(_is_address(part.strip()) for part in config.env.server.split(",") if part):
        yield "env.server", f"is {config.env.server!r}, but must hold addresses, http:// or https://"
    if config.env.server and config.env.replicas > 1:
        yield "env.replicas", "counts local servers, but env.server names running ones"


def _items(config: Config) -> Broken:
    if not config.env.items:
        return
    try:
        read_ids(Path(config.env.items))
    except ItemError as error:
        yield "env.items", f"cannot be used: {error}"


def _is_address(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _engine(config: Config) -> Broken:
    """What each kind of engine needs, and what a server's log-probabilities do not cover."""
    engine, sampling = config.engine, config.sampling
    if engine.name != "hf" and not _is_address(engine.server):
        yield (
            "engine.server",
            f"is {engine.server!r}, but {engine.name} needs an address, http:// or https://",
        )
    if engine.name == "api" and not engine.model:
        yield "engine.model", "is empty, but an API serves many models"
    for name in ("temperature", "top_p"):
        value = getattr(sampling, name)
        if engine.name == "remote" and value != 1:
            yield f"sampling.{name}", f"is {value}, but a server's log-probabilities are those at 1"


def _environment(config: Config) -> Broken:
    """The id, its tasks and its options."""
    try:
        spec = find_spec(config.env.id)
        scenario = load_world_scenario(spec.kwargs.get("scenario", ""))
    except (gymnasium.error.Error, AgentGymError, ImportError) as error:
        yield "env.id", f"is {config.env.id!r}: {error}"
        return
    yield from _tasks(config, spec)
    try:
        make_options(scenario.options, config.env.options)
    except OptionError as error:
        yield "env.options", f"cannot be used: {error}"


def _tasks(config: Config, spec: EnvSpec) -> Broken:
    """Tasks that the id does not hold; those of a user's own world are its server's to know."""
    rows = {row.name: row for row in SCENARIOS}
    if spec.kwargs["scenario"] not in rows:
        return
    task = spec.kwargs["task"]
    known = [task] if task else [task.name for task in rows[spec.kwargs["scenario"]].tasks]
    for name, tasks in (("env.tasks", config.env.tasks), ("eval.tasks", config.eval.tasks)):
        for asked in tasks:
            if asked not in known:
                near = near_match(asked, known)
                yield name, f"names {asked!r}, but {config.env.id} holds {', '.join(known)}.{near}"

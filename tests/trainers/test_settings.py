"""Recipes and flags: what is read, and what is said of mistakes."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

import gym_agents
from gym_agents.scenario import Options
from tests.fakes import COUNTING
from trainers.commands import main
from trainers.config import Config, EnvConfig
from trainers.settings import ConfigError, load, to_toml

RECIPES = sorted((Path(__file__).parents[2] / "trainers" / "recipes").glob("*.toml"))


@dataclasses.dataclass(frozen=True)
class LimitedOptions(Options):
    limit: int | None = 5


class Limited:
    """As much of a world as a configuration looks at."""

    scenario = dataclasses.replace(COUNTING, options=LimitedOptions)


gym_agents.register_world("Fake/Limit-v0", f"{__name__}:Limited", max_episode_steps=2)


def mistakes(*arguments: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(arguments)
    return caught.value.mistakes


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return f"@{path}"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_loads_and_survives_a_round_trip(path: Path, tmp_path: Path) -> None:
    config = load([f"@{path}"])
    assert load([recipe(tmp_path, to_toml(config))]) == config


def test_the_paper_is_followed_from_the_instruct_model_alone() -> None:
    for path in RECIPES:
        config = load([f"@{path}"])
        if path.stem.endswith(("_fixed", "_scaling")):
            assert (config.warm_start.steps, config.policy.lora_rank) == (0, 0)
            assert config.rl.kl_coef == 0.001
    assert load([f"@{RECIPES[0].parent}/textcraft_scaling.toml"]).horizon.stages == (10, 20, 30)
    assert load([f"@{RECIPES[0].parent}/babyai_scaling.toml"]).horizon.stages == (6, 13, 20)


PAPER = {  # arXiv 2509.08755, tables 2 to 5: overall success of the 7B model, fixed horizon and ScalingInter-RL
    ("textcraft", "fixed"): "89.0%",
    ("textcraft", "scaling"): "91.0%",
    ("babyai", "fixed"): "92.2%",
    ("babyai", "scaling"): "96.7%",
    ("sciworld", "fixed"): "50.5%",
    ("sciworld", "scaling"): "57.0%",
    ("searchqa", "fixed"): "34.0%",
    ("searchqa", "scaling"): "38.3%",
}


@pytest.mark.parametrize(("env", "schedule"), PAPER, ids="-".join)
def test_the_papers_recipes_pass_a_dry_run_and_say_where_they_are_from(
    env: str, schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RECIPES[0].parent / f"{env}_{schedule}.toml"
    assert main([f"@{path}", "--dry-run"]) == 0
    printed = tomllib.loads(capsys.readouterr().out)
    assert "arXiv 2509.08755" in printed["run"]["note"]
    assert f"it reports {PAPER[env, schedule]} after training" in printed["run"]["note"]
    assert "arXiv 2509.08755" in path.read_text("utf-8").partition("[run]")[0]
    assert printed["horizon"]["schedule"] == {"fixed": "fixed", "scaling": "stepwise"}[schedule]
    assert printed["policy"]["model"] == "Qwen/Qwen2.5-7B-Instruct"


def test_nothing_given_is_the_default() -> None:
    assert load([]) == Config()


def test_flags_win_over_the_recipe_and_are_read_by_their_type(tmp_path: Path) -> None:
    config = load(
        [
            recipe(tmp_path, "[rl]\nupdates = 9\ngroups = 3\n[env]\noptions.distractors = 4\n"),
            *(
                "--rl.updates",
                "3",
                "--rl.learning_rate",
                "1",
                "--policy.model=0.5",
                "--horizon.stages",
                "4",
                "8",
            ),
            *(
                "--env.tasks",
                "Depth1",
                "Depth2",
                "--run.deterministic",
                "False",
                "--env.options.grammar",
                "bare",
            ),
        ]
    )
    assert (config.rl.updates, config.rl.groups) == (3, 3)
    assert isinstance(config.rl.learning_rate, float)
    assert config.policy.model == "0.5"
    assert config.horizon.stages == (4, 8)
    assert config.env.tasks == ("Depth1", "Depth2")
    assert config.run.deterministic is False
    assert config.env.options == {"distractors": 4, "grammar": "bare"}


def test_every_mistake_is_named_at_once_with_its_place(tmp_path: Path) -> None:
    """A misspelt setting must not be ignored: unslothai/unsloth PR 10452, meta-pytorch/torchtune PR 2979."""
    text = """\
learning_rat = 1e-5

[policy]
lora-r = 8
updates = 3

[horizon]
every = -5
stages = [10, 10, 30]

[rl]
group_size = "eight"
"""
    source = recipe(tmp_path, text)
    place = source[1:]
    assert mistakes(source, "--rl.stepz", "3", "--env.id", "AgentGym/Textcraft-v0", "--rl.epochs") == [
        "--rl.epochs: needs a value",
        f"{place}:1: unknown name 'learning_rat' at top level. Did you mean 'learning_rate' in "
        "[warm_start] or [rl] or [sft] or [dpo] or [evolve]?",
        f"{place}:4: unknown key 'lora-r' in [policy]. Did you mean 'lora_rank'?",
        f"{place}:5: unknown key 'updates' in [policy]. 'updates' belongs to "
        "[rl] or [sft] or [dpo] or [evolve].",
        f"{place}:12: rl.group_size is 'eight', but must be a whole number",
        "--rl.stepz: unknown key 'stepz' in [rl]. Did you mean 'steps' in [warm_start] or [evolve]?",
        f"{place}:8: horizon.every is -5, but must be at least 1",
        f"{place}:9: horizon.stages is [10, 10, 30], but the turn limits must increase",
        "--env.id: env.id is 'AgentGym/Textcraft-v0': Environment `Textcraft` doesn't exist in namespace "
        "AgentGym. Did you mean: `TextCraft`?",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rl]\nupdates = 1\n\n\n\n\nepochs = = 2\n", ":7: is not TOML"),
        ("[rl]\nupdates = true\n", ":2: rl.updates is True, but must be a whole number"),
        ("[rl]\nlearning_rate = nan\n", ":2: rl.learning_rate is nan, but must be at least 0"),
        ("[rl]\nlearning_rate = inf\n", ":2: rl.learning_rate is inf, but must be at least 0"),
        (
            "[horizon]\nstages = [4, -8]\n",
            ":2: horizon.stages is [4, -8], but every turn limit must be at least 1",
        ),
        ("[horizon]\nstages = []\n", ":2: horizon.stages is empty"),
        (
            "[horizon]\nschedule = 'step'\n",
            ":2: horizon.schedule is 'step', but must be one of 'fixed', 'stepwise'",
        ),
        ("policy = 'smollm2'\n", ":1: [policy] must be a table"),
        ("rl.updats = 1\n", ":1: unknown key 'updats' in [rl]. Did you mean 'updates'?"),
        ("[env.options]\ndistractor = 1\n", ":1: env.options cannot be used: unknown option 'distractor'"),
        (
            "[env]\ntasks = ['Depth9']\n",
            ":2: env.tasks names 'Depth9', but AgentGym/TextCraft-v0 holds Depth1, ",
        ),
        ("[env]\nid = 'AgentGym/WebArena-v0'\n", "backend is not built yet"),
        (
            "[rl]\ngroup_size = 1\n",
            ":2: rl.group_size is 1, but grpo compares a group with itself: at least 2",
        ),
        (
            "[rl]\nalgorithm = 'ppo'\nrefill_groups = 2\n",
            ":3: rl.refill_groups replaces groups of equal scores, from which ppo does learn",
        ),
        (
            "[rl]\nkl_coef = 0.1\nkl_estimator = 'k1'\n",
            ":3: rl.kl_estimator is 'k1', whose gradient in the loss is 0 on average: take k2 or k3",
        ),
        ("[rl]\nkl_target = 0.1\n", ":2: rl.kl_target adapts rl.kl_coef, which must be above 0"),
        ("[rl]\nclip_range_high = 0.1\n", ":2: rl.clip_range_high is 0.1, but must be at least"),
        ("[rl]\ndual_clip = 0.5\n", ":2: rl.dual_clip is 0.5, but must be 0, or above 1"),
        ("[rl]\ngamma = 1.5\n", ":2: rl.gamma is 1.5, but must be between 0 and 1"),
        (
            "[env]\nitems = 'nowhere.json'\n",
            ":2: env.items cannot be used: nowhere.json is not a JSON list of item ids",
        ),
        ("[run]\ntrackers = ['tensorbord']\n", ":2: run.trackers names 'tensorbord', but tensorboard, "),
        ("[run]\ntrackers = ['wandb']\n", "which is not installed: run `pip install wandb`"),
        ("[agent]\nwindow = 0\n", ":2: agent.window is 0, but must be at least 1"),
        ("[engine]\nname = 'remote'\n", "engine.server is '', but remote needs an address"),
        ("[engine]\nname = 'api'\nserver = 'http://a/v1'\n", "engine.model is empty"),
        (
            "[sampling]\ntop_p = 0.9\n[engine]\nname = 'remote'\nserver = 'http://a/v1'\n",
            ":2: sampling.top_p is 0.9, but a server's log-probabilities are those at 1",
        ),
        ("[env]\nserver = 'http://a, b:1'\n", ":2: env.server is 'http://a, b:1', but must hold addresses"),
        ("[env]\nserver = 'http://a'\nreplicas = 2\n", ":3: env.replicas counts local servers"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    [mistake] = mistakes(recipe(tmp_path, text))
    assert said in mistake


def test_a_missing_recipe_is_named_beside_the_other_mistakes(tmp_path: Path) -> None:
    (tmp_path / "textcraft.toml").write_text("")
    missing, flag = mistakes(f"@{tmp_path}/textcraf.toml", "--rl.updates", "0")
    assert (
        "textcraf.toml: cannot be read: No such file or directory. Did you mean 'textcraft.toml'?" in missing
    )
    assert flag == "--rl.updates: rl.updates is 0, but must be at least 1"


@pytest.mark.parametrize("word", ["textcraft", "-v"])
def test_a_word_that_is_no_flag_is_refused(word: str) -> None:
    [mistake] = mistakes(word)
    assert mistake.startswith(f"{word}: not understood")


@pytest.mark.parametrize(
    "value", [None, "\x7f\n\"'\\ü", {"a b": {"c": 1}}, [1, 2], [{"a": [True]}], float("inf"), 1e-30, "nan"]
)
def test_any_option_survives_a_round_trip(value: object, tmp_path: Path) -> None:
    """TOML knows no null and no raw control characters."""
    config = Config(env=EnvConfig(options={"distractors": value}))
    written = tomllib.loads(to_toml(config))["env"]["options"]["distractors"]
    assert written == ("None" if value is None else value)


def test_an_option_without_a_value_survives_a_round_trip(tmp_path: Path) -> None:
    world = ["--env.id", "Fake/Limit-v0", "--env.options.limit"]
    config = load([*world, "None"])
    assert config.env.options == {"limit": None}
    assert load([recipe(tmp_path, to_toml(config))]) == config

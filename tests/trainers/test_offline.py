"""Runs that learn from episodes: imitation, preferences, evolution; and what is made of a run afterwards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gym_agents
from gym_agents import trajectory
from gym_agents.trajectory import Trajectory
from tests.trainers.acting.templates import TEMPLATES, tokenizer
from trainers import agentevol, runner
from trainers.acting.evaluate import Evaluation, success
from trainers.commands import main
from trainers.config import PolicyConfig
from trainers.embedded import tiny_model
from trainers.folder import RunFolder
from trainers.metrics import without_times
from trainers.models import load_policy
from trainers.settings import load

RECIPE = "@trainers/recipes/tiny_textcraft.toml"
ONE_ITEM = ("--eval.limit", "1", "--eval.attempts", "1", "--warm_start.steps", "0")
LETTERS = (
    *(
        "--env.id",
        "Fake/LettersOnFile-v0",
        "--env.num_envs",
        "64",
        "--policy.model",
        "tiny",
        "--policy.lora_rank",
        "0",
    ),
    *("--policy.max_context", "256", "--sampling.max_new_tokens", "1", "--horizon.stages", "3"),
)
gym_agents.register_world("Fake/LettersOnFile-v0", "tests.fakes:LettersWorld", max_episode_steps=3)


def train(folder: Path, *flags: str) -> None:
    runner.train(load(flags), folder)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [without_times(json.loads(line)) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path, update: int) -> bytes:
    return (folder / f"checkpoints/update-{update:04d}/weights.safetensors").read_bytes()


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Expert episodes of TextCraft, written from the command line."""
    path = tmp_path_factory.mktemp("demos") / "new" / "demos.jsonl"
    assert main(["demos", RECIPE, "--warm_start.episodes", "6", "--output", str(path)]) == 0
    return path


# Files.


def test_demonstrations_are_written_from_the_command_line(
    demos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = list(trajectory.read(demos))
    assert len(episodes) == 6
    assert all(episode.success and episode.scenario == "textcraft" for episode in episodes)
    assert main(["demos", RECIPE, "--output", str(demos)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert list(trajectory.read(demos)) == episodes


def test_our_files_and_agentgyms_teach_the_same(demos: Path, tmp_path: Path) -> None:
    """The same episodes as conversations: the policy after two steps is the same to the last bit."""
    conversations = tmp_path / "conversations.json"
    conversations.write_text(json.dumps([as_conversation(episode) for episode in trajectory.read(demos)]))
    learned = []
    for name, file in (("own", demos), ("theirs", conversations)):
        flags = (
            "--run.method",
            "sft",
            "--sft.files",
            str(file),
            "--sft.updates",
            "2",
            "--sft.batch_size",
            "3",
        )
        train(tmp_path / name, RECIPE, *ONE_ITEM, *flags)
        learned.append(weights(tmp_path / name, 2))
    assert learned[0] == learned[1]
    assert learned[0] != weights_at_start(tmp_path / "own")


def as_conversation(episode: Trajectory) -> dict[str, Any]:
    """In AgentGym's form, without a reward, as its files of demonstrations are."""
    spoken = [("human", episode.instruction, None), ("gpt", "OK.", False)]
    for turn in episode.turns:
        spoken += [("human", turn.observation, None), ("gpt", turn.reply, True)]
    spoken += [("human", episode.final_observation, None)]
    rows = [{"from": speaker, "loss": loss, "value": value} for speaker, value, loss in spoken]
    return {"item_id": episode.item_id, "conversations": rows}


def weights_at_start(folder: Path) -> bytes:
    return (folder / "checkpoints/best/weights.safetensors").read_bytes()


def test_files_that_teach_nothing_end_the_run_before_its_first_step(
    demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """marin-community/marin #7237, huggingface/trl PR 4201: trained on nothing, and nobody said so.

    Upstream's DPO has no limit of length at all: here an episode that is too long is left out whole, and said.
    """
    sft_flags = ("--run.method", "sft", "--sft.files", str(demos), "--policy.max_context", "20")
    dpo_flags = ("--run.method", "dpo", "--dpo.files", str(demos))
    for name, flags, words in (
        ("sft", sft_flags, "0 of 6 episodes, 6 are longer than 20 tokens"),
        ("dpo", dpo_flags, "6 episodes make no pair"),
    ):
        assert main([RECIPE, *ONE_ITEM, *flags, "--run.folder", str(tmp_path / name)]) == 1
        assert words in capsys.readouterr().err
        assert not (tmp_path / name / "metrics.jsonl").exists()


def test_a_file_that_is_not_there_is_a_mistake_in_the_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main([RECIPE, "--run.folder", str(folder), "--dpo.files", "nowhere.json", "--dpo.beta", "0"]) == 2
    said = capsys.readouterr().err
    assert "--dpo.files: dpo.files names 'nowhere.json', which is no file" in said
    assert "--dpo.beta: dpo.beta is 0.0, but must be above 0" in said
    assert not folder.exists()


# Learning.

METHODS = {
    "sft": ("--warm_start.episodes", "16", "--sft.updates", "15", "--sft.learning_rate", "3e-3"),
    "dpo": (
        *("--dpo.items", "8", "--dpo.attempts", "32", "--dpo.min_score", "0.3", "--dpo.pairs_per_item", "8"),
        *("--dpo.updates", "30", "--dpo.learning_rate", "5e-3"),
    ),
    "evolve": (
        *(
            "--evolve.items",
            "8",
            "--evolve.attempts",
            "16",
            "--evolve.min_score",
            "0.6",
            "--evolve.updates",
            "4",
        ),
        *("--evolve.steps", "10", "--evolve.learning_rate", "3e-3"),
    ),
}


def settings(method: str) -> list[str]:
    return [*LETTERS, "--run.method", method, *METHODS[method]]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method: str, tmp_path: Path) -> None:
    flags = ("--eval.limit", "8", "--eval.attempts", "16", "--run.checkpoint_every", "99")
    train(tmp_path / "run", *settings(method), *flags)
    evaluations = RunFolder(tmp_path / "run").read_evaluations()
    before, after = (success(found, "sampled") for found in evaluations)
    assert before.mean < 0.1
    assert after.low > before.high


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_resumes_where_it_was(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Order, optimizer and what was kept go on where they were: huggingface/accelerate #2823, #963.

    The interruption comes in update 3, after a checkpoint of update 2.
    """
    flags = [
        *settings(method),
        "--eval.limit",
        "1",
        "--eval.attempts",
        "1",
        f"--{method}.updates",
        "4",
    ]
    train(tmp_path / "whole", *flags)

    advance = runner.Run.advance

    def interrupted(run: runner.Run, state: Any) -> None:
        if state.update == 3:
            raise KeyboardInterrupt
        advance(run, state)

    with monkeypatch.context() as patch:
        patch.setattr(runner.Run, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "halves", *flags)
    train(tmp_path / "halves", *flags)
    assert [row["update"] for row in metrics(tmp_path / "whole")] == [1, 2, 3, 4]
    assert metrics(tmp_path / "halves") == metrics(tmp_path / "whole")
    assert weights(tmp_path / "halves", 4) == weights(tmp_path / "whole", 4)
    assert weights(tmp_path / "whole", 4) != weights(tmp_path / "whole", 3)


def test_evolution_that_kept_nothing_leaves_the_policy_as_it_is(tmp_path: Path) -> None:
    flags = (
        "--evolve.items",
        "1",
        "--evolve.attempts",
        "2",
        "--evolve.updates",
        "1",
        "--run.method",
        "evolve",
    )
    train(tmp_path, RECIPE, *ONE_ITEM, *flags)
    [row] = metrics(tmp_path)
    assert (row["kept"], row["skipped"], row["success"], row["episodes"]) == (0, 1.0, 0.0, 2)
    assert weights(tmp_path, 1) == weights_at_start(tmp_path)


def test_each_fit_begins_where_the_method_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AgentEvol fits the start anew to all that was kept, not the policy that explored (arXiv:2406.04151)."""
    fit, starts = agentevol.imitate, []

    def watched(run: Any, optimizer: Any, batch: Any) -> dict[str, float]:
        if not optimizer.state:
            starts.append(torch.cat([one.detach().flatten() for one in run.policy.trainable.values()]))
        return fit(run, optimizer, batch)

    monkeypatch.setattr(agentevol, "imitate", watched)
    flags = ("--run.method", "evolve", "--evolve.updates", "2", "--evolve.steps", "1", "--evolve.items", "1")
    train(tmp_path, RECIPE, *ONE_ITEM, "--warm_start.steps", "1", *flags)
    assert len(starts) == 2
    assert torch.equal(*starts)
    assert weights(tmp_path, 1) != (tmp_path / "checkpoints/warm-start/weights.safetensors").read_bytes()


def test_a_run_killed_while_it_wrote_a_checkpoint_goes_on_from_the_one_before(
    demos: Path, tmp_path: Path
) -> None:
    """NVIDIA-NeMo/Automodel PR 3261, Q00/ouroboros #1830: half of a checkpoint is there, under its working name."""
    flags = (RECIPE, *ONE_ITEM, "--run.method", "sft", "--sft.files", str(demos), "--sft.updates", "2")
    train(tmp_path / "whole", *flags)
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    checkpoints = tmp_path / "killed/checkpoints"
    (checkpoints / "update-0002").rename(checkpoints / ".update-0002.partial")
    (checkpoints / ".update-0002.partial/state.json").unlink()
    train(tmp_path / "killed", *flags)
    assert weights(tmp_path / "killed", 2) == weights(tmp_path / "whole", 2)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")
    assert not list(checkpoints.glob(".*"))


# Best.


def test_the_policy_that_did_best_on_held_out_items_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out success 0, 1/2, 1/2, 0 after updates 0 to 3: the first of the best is update 1."""
    wins = {1: 1, 2: 1}
    evaluation = runner.Run.evaluation

    def told(run: runner.Run, update: int) -> Evaluation:
        found = evaluation(run, update)
        won = tuple(number < wins.get(update, 0) for number in range(2))
        changed = msgspec.structs.replace(
            found, results=tuple(msgspec.structs.replace(result, sampled=won) for result in found.results)
        )
        run.folder.write_evaluation(changed, {})
        return changed

    monkeypatch.setattr(runner.Run, "evaluation", told)
    flags = ("--run.method", "sft", "--sft.updates", "3", "--sft.batch_size", "1", "--eval.every", "1")
    train(tmp_path, RECIPE, *ONE_ITEM, *flags, "--run.keep_checkpoints", "3")
    assert (tmp_path / "checkpoints/best/weights.safetensors").read_bytes() == weights(tmp_path, 1)
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"best", "update-0001", "update-0002", "update-0003"}


# Afterwards.


@pytest.mark.parametrize("template", ["chatml", "drops thoughts", "empty thought"])
def test_an_audit_of_a_run_finds_no_drift_and_finds_one_that_is_made(
    template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """huggingface/trl #5224, PrimeIntellect-ai/prime-rl #947 and #1334, verl-project/verl #2165."""
    model = tiny_model()
    model.resize_token_embeddings(len(tokenizer()), mean_resizing=False)
    model.save_pretrained(tmp_path / "model")
    tokenizer(TEMPLATES[template]).save_pretrained(tmp_path / "model")
    folder = tmp_path / "run"
    train(folder, RECIPE, *ONE_ITEM, "--policy.model", str(tmp_path / "model"), "--rl.updates", "1")
    assert main(["audit", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "8 episodes, of which 4 were trained on" in said
    assert "sampled tokens: 0 episodes drifted." in said
    path = folder / "trajectories/update-0001.jsonl"
    first, *others = trajectory.read(path)
    path.write_bytes(b"")
    trajectory.write(path, [with_another_id(first), *others])
    assert main(["audit", str(folder)]) == 1
    said = capsys.readouterr().err
    assert "sampled tokens: 1 episodes drifted." in said
    assert f"{first.item_id}, member 0: " in said
    assert "it was trained on other ids than it holds" in said


def with_another_id(episode: Trajectory) -> Trajectory:
    """One sampled id of its first turn, exchanged."""
    [generation] = episode.turns[0].generations
    ids = (generation.sampled_ids[0] ^ 1, *generation.sampled_ids[1:])
    generation = msgspec.structs.replace(generation, sampled_ids=ids)
    turn = msgspec.structs.replace(episode.turns[0], generations=(generation,))
    return msgspec.structs.replace(episode, turns=(turn, *episode.turns[1:]))


def test_what_is_no_run_cannot_be_audited_or_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(tmp_path)]) == 2
    assert main(["export", str(tmp_path), "--output", str(tmp_path / "whole")]) == 2
    assert main(["export", str(tmp_path)]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"audit: needs the folder of a run, not {tmp_path}",
        f"export: needs the folder of a run, not {tmp_path}",
        "--output: is missing; it names what is to be written",
    ]


def test_an_exported_policy_is_one_plain_model_with_the_same_logits(demos: Path, tmp_path: Path) -> None:
    """The adapter is merged: transformers loads it without peft, and says the same."""
    flags = (
        "--run.method",
        "sft",
        "--sft.files",
        str(demos),
        "--sft.updates",
        "2",
        "--policy.lora_rank",
        "4",
    )
    train(tmp_path / "run", RECIPE, *ONE_ITEM, *flags, "--sft.learning_rate", "0.05")
    assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "whole")]) == 0
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    words = AutoTokenizer.from_pretrained(tmp_path / "whole")
    ids = torch.tensor([words("Goal: craft 1 stick", add_special_tokens=False).input_ids])
    adapter = PolicyConfig(str(tmp_path / "run/policy"), max_context=64)
    learned = load_policy(adapter, torch.device("cpu"))
    with torch.no_grad():
        found, expected, raw = (model(ids).logits for model in (plain, learned.model, tiny_model()))
    assert not any("lora" in name for name, _ in plain.named_parameters())
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, raw, atol=1e-2)
    assert words.chat_template == learned.tokenizer.chat_template

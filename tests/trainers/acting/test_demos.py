"""Expert episodes, and the tokens that they teach."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gym_agents.errors import NotOffered
from gym_agents.horizon import HorizonLimit
from trainers.acting.agents import make_agent
from trainers.acting.chat import ChatLayout
from trainers.acting.demos import as_sampled, play_expert
from trainers.acting.sampler import ItemSampler
from trainers.acting.worlds import make_worlds
from trainers.config import AgentConfig, EnvConfig
from trainers.embedded import tiny_tokenizer
from trainers.learning.batch import samples


@pytest.fixture
def envs() -> Iterator[HorizonLimit]:
    made = make_worlds(EnvConfig(id="AgentGym/TextCraft-Depth2-v0", num_envs=3), expert=True)
    yield made
    made.close()


def test_the_expert_solves_what_was_drawn_in_the_agents_own_grammar(envs: HorizonLimit) -> None:
    draws = ItemSampler(envs.items("train"), seed=0).next(7)
    episodes = play_expert(envs, draws)
    assert [episode.item_id for episode in episodes] == [f"textcraft-sorted_{draw.item}" for draw in draws]
    for episode in episodes:
        assert episode.success
        assert episode.score == sum(turn.reward for turn in episode.turns) == 1.0
        assert all(turn.valid and turn.reply == f"Action: {turn.command}" for turn in episode.turns)
        assert episode.turns[0].observation.endswith(
            f"Goal: {episode.turns[-1].command.split(' using')[0][8:]}"
        )


def test_the_tokens_of_a_demonstration_are_what_the_chat_template_makes_of_it(envs: HorizonLimit) -> None:
    """Trained positions are the replies and their ends, by position: RAGEN #71, trl PR 6357, transformers #34172."""
    tokenizer = tiny_tokenizer()
    layout = ChatLayout(tokenizer)
    [episode] = play_expert(envs, ItemSampler(envs.items("train"), seed=0).next(1))
    [sample] = samples(as_sampled(episode, make_agent(AgentConfig(), layout), layout))
    trained = [token for token, mask in zip(sample.ids, sample.action_mask, strict=True) if mask]
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.decode(trained) == "".join(f"{turn.reply}<|im_end|>" for turn in episode.turns)
    assert trained.count(end) == len(episode.turns)
    given = tokenizer.decode(
        [token for token, mask in zip(sample.ids, sample.action_mask, strict=True) if not mask]
    )
    assert given.count("<|im_start|>user\n") == given.count("<|im_start|>assistant\n") == len(episode.turns)
    for text in (episode.instruction, *(turn.observation for turn in episode.turns)):
        assert text in given


def test_an_expert_that_never_knows_is_an_error() -> None:
    made = make_worlds(EnvConfig(id="AgentGym/TextCraft-v0", num_envs=1))
    with pytest.raises(NotOffered):
        play_expert(made, ItemSampler(made.items("train"), seed=0).next(1))
    made.close()

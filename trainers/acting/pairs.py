"""Pairs of episodes of one item, the better before the worse."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gym_agents.trajectory import Outcome
from trainers.acting.files import Example, quality, worthwhile
from trainers.errors import BadTrajectories

Pair = tuple[Example, Example]
"""The better episode, and the worse one."""


def make_pairs(found: Sequence[Example], *, min_score: float, min_gap: float, per_item: int) -> list[Pair]:
    """Pairs by item: the best episode with the worst, the second best with the second worst, and so on.

    Episodes are comparable where item, instruction and first observation are the same. Of several that say the
    same one counts, and episodes that the environment failed count nowhere.

    Args:
        found: what to pair.
        min_score: the better one succeeded, or scored at least this much.
        min_gap: the worse one scored at least this much less.
        per_item: most pairs of one item.

    Raises:
        BadTrajectories: an episode has no score.
    """
    unscored = [example.episode.item_id for example in found if not example.scored]
    if unscored:
        raise BadTrajectories(
            f"{len(unscored)} episodes have no reward, so that none is better or worse: {', '.join(unscored[:5])}"
        )
    pairs = []
    for attempts in _comparable(found):
        ranked = sorted(attempts, key=quality, reverse=True)
        candidates = zip(ranked, reversed(ranked), strict=True)  # past the middle the gap is negative
        apart = [pair for pair in candidates if _differ(pair, min_gap) and worthwhile(pair[:1], min_score)]
        pairs += apart[:per_item]
    return pairs


def _comparable(found: Iterable[Example]) -> list[list[Example]]:
    """Episodes by what they began with, each way to go on once."""
    attempts: dict[tuple[str, str, str], dict[tuple[str, ...], Example]] = {}
    for example in found:
        episode = example.episode
        if episode.turns and episode.outcome is not Outcome.ENV_ERROR:
            start = (episode.item_id, episode.instruction, episode.turns[0].observation)
            replies = tuple(turn.reply for turn in episode.turns)
            attempts.setdefault(start, {}).setdefault(replies, example)
    return [list(distinct.values()) for distinct in attempts.values()]


def _differ(pair: Pair, min_gap: float) -> bool:
    better, worse = (example.episode.score for example in pair)
    return better - worse >= min_gap

"""What an update was made from, in a checksum an episode: taken from the rows themselves, for a later audit."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch

from trainers.learning.batch import Lesson, Row

Fingerprints = dict[str, list[int]]
"""By `group/member` of an episode, one checksum a context, in order."""


def fingerprint(ids: Sequence[int], sampled_at: Sequence[int]) -> int:
    """A checksum of a context up to its last sampled token, and of the places in it that were sampled."""
    return zlib.crc32(np.array([*ids, -1, *sampled_at], dtype="<i8").tobytes())


def fingerprints(lessons: Sequence[Lesson], rows: Sequence[Row]) -> Fingerprints:
    """What rows, packed from lessons, train each episode on."""
    by_lesson = {index: sum_ for row in rows for index, sum_ in _row_fingerprints(row).items()}
    found: Fingerprints = {}
    for index, sum_ in sorted(by_lesson.items()):
        sample = lessons[index].sample
        found.setdefault(f"{sample.group}/{sample.member}", []).append(sum_)
    return found


def _row_fingerprints(row: Row) -> dict[int, int]:
    """Of each sample in a row: what its last target sees, that target, and where its targets lie."""
    visible = row.visible()[0, 0]
    found = {}
    for index in row.sample.unique().tolist():
        own = row.sample == index
        places = row.position_ids[row.predict_at[own]] + 1
        seen = visible[row.predict_at[own][-1]].nonzero().squeeze(1)
        ids = torch.empty(int(places[-1]) + 1, dtype=row.ids.dtype)
        ids[row.position_ids[seen]] = row.ids[seen]
        ids[places] = row.target_ids[own]
        found[int(index)] = fingerprint(ids.tolist(), places.tolist())
    return found

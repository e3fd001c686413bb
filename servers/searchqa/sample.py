"""`python -m servers.searchqa.sample`: twenty embedded items of each task, drawn, as tables for a person to read."""

from __future__ import annotations

import random
from collections.abc import Iterator

from gym_agents.items import item_id
from servers.searchqa.embedded import embedded_questions
from servers.searchqa.questions import TASKS

COUNT = 20


def tables() -> Iterator[str]:
    """The lines of a Markdown table for each task, from both splits."""
    items = embedded_questions()
    for task in TASKS:
        yield f"### {task}\n"
        yield "| item | split | question | accepted | found in |\n|---|---|---|---|---|"
        splits = {item: split for split in ("eval", "train") for item in items.splits[split][task]}
        for item in sorted(random.Random(task).sample(sorted(splits), COUNT)):
            question = items.questions[item]
            cells = (question.text, "; ".join(question.answers), ", ".join(question.titles))
            yield f"| `{item_id(items.numbering, item)}` | {splits[item]} | {' | '.join(cells)} |"
        yield ""


if __name__ == "__main__":
    print("\n".join(tables()))

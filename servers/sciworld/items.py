"""The items: the simulator's variations in upstream's numbering, and the splits of the five tasks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from scienceworld.constants import TASKS

from gym_agents.errors import ItemError
from gym_agents.tasks import scenario_row
from servers.sciworld.simulator import Variation
from servers.spread import spread

LEFT_OUT = frozenset({"5-1", "5-2", "9-1", "9-2", "9-3", "10-1", "10-2"})
"""The simulator's numbers of the tasks that upstream's numbering passes over."""
KEPT = tuple(task["task_name"] for task in TASKS if task["task_id"] not in LEFT_OUT)
"""The 23 others, in the order of the simulator's list of tasks, which the numbering follows."""

_ROW = scenario_row("sciworld")
_TASK_OF = {str(part): task.name for task in _ROW.tasks for part in task.parts}


class Items:
    """All variations of the kept tasks, one after the other; the place of each is its number.

    Args:
        variations: the numbers of a simulator task's variations, in the simulator's sets `train`, `dev`
            and `test`.
    """

    def __init__(self, variations: Callable[[str], Mapping[str, Sequence[int]]]) -> None:
        self._all: list[Variation] = []
        of_set: dict[str, dict[str, list[int]]] = {"train": {}, "test": {}}
        for task in KEPT:
            sets, first = variations(task), len(self._all)
            count = sum(len(numbers) for numbers in sets.values())
            self._all += [Variation(task, number) for number in range(count)]
            for name, tasks in of_set.items():
                tasks[task] = [first + number for number in sets[name]]
        self._splits = {"train": _trained(of_set["train"]), "eval": _held_out(of_set["test"])}

    def __getitem__(self, item: int) -> Variation:
        """The variation of a number.

        Raises:
            ItemError: if there is none.
        """
        if not 0 <= item < len(self._all):
            raise ItemError(f"SciWorld has no item {item}; its items are 0 to {len(self._all) - 1}.")
        return self._all[item]

    def task_of(self, item: int) -> str | None:
        """The task of a number, `None` where its simulator task is in none of the five."""
        return _TASK_OF.get(self[item].task)

    def of(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task (`None`: of all five) in a split, in order."""
        of_task = self._splits[split]
        return of_task[task] if task else sorted(item for items in of_task.values() for item in items)


def _trained(numbers: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Per task, all of the simulator's training variations."""
    return {
        task.name: sorted(item for part in task.parts for item in numbers[str(part)]) for task in _ROW.tasks
    }


def _held_out(numbers: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Per task, as many of the simulator's test variations as the paper counts.

    They are spread over the test variations of its simulator tasks, laid one after the other; a generator
    seeded with the task's name draws them.
    """
    tested = _trained(numbers)
    return {
        task.name: list(spread(tested[task.name], task.eval_items, random.Random(f"sciworld {task.name}")))
        for task in _ROW.tasks
    }

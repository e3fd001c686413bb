"""The published question sets, from FlashRAG's files and in upstream's numbering."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gym_agents.errors import BackendMissing, UsageError
from gym_agents.tasks import scenario_row
from servers.searchqa.questions import Question, QuestionSet, make_splits


@dataclass(frozen=True)
class Part:
    """One file of one set; the item of its first line is the number of all lines of the parts before it."""

    dataset: str
    file: str
    lines: int
    """How many the published file has."""


PARTS = (
    Part("nq", "test", 3610),
    Part("triviaqa", "test", 11313),
    Part("popqa", "test", 14267),
    Part("hotpotqa", "dev", 7405),
    Part("2wikimultihopqa", "dev", 12576),
    Part("musique", "dev", 2417),
    Part("bamboogle", "test", 125),
    Part("nq", "train", 79168),
    Part("hotpotqa", "train", 90447),
)
_STARTS = tuple(itertools.accumulate((part.lines for part in PARTS), initial=0))
_TASK_OF = {str(name): task.name for task in scenario_row("searchqa").tasks for name in task.parts}


class _Row(msgspec.Struct):
    id: str
    question: str
    golden_answers: list[str]
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.question.strip() or not self.golden_answers:
            raise ValueError("a question and at least one golden answer are needed")


_row = msgspec.json.Decoder(_Row)


def load_questions(folder: Path) -> QuestionSet:
    """The questions of every file of `<folder>/<set>/<part>.jsonl` or `.parquet` that is there.

    Raises:
        UsageError: naming every line that has another form, and its file; or if there is no file at all.
    """
    problems: list[str] = []
    questions: dict[int, Question] = {}
    items: dict[str, dict[str, list[int]]] = {"train": {}, "eval": {}}
    for start, part in zip(_STARTS, PARTS, strict=False):
        path = _find(folder, part)
        if path is not None:
            numbers = _read_part(path, part, start, questions, problems)
            items["train" if part.file == "train" else "eval"][_TASK_OF[part.dataset]] = numbers
    if problems:
        raise UsageError("\n".join(problems))
    if not questions:
        raise UsageError(f"There is no question file in {folder}, such as {folder}/nq/test.jsonl.")
    items["eval"] = {task: _drawn(task, numbers) for task, numbers in items["eval"].items()}
    return QuestionSet(
        "searchqa", f"questions of {len(questions)} published items", questions, make_splits(items)
    )


def _find(folder: Path, part: Part) -> Path | None:
    paths = (folder / part.dataset / f"{part.file}{suffix}" for suffix in (".jsonl", ".parquet"))
    return next((path for path in paths if path.is_file()), None)


def _read_part(
    path: Path, part: Part, start: int, questions: dict[int, Question], problems: list[str]
) -> list[int]:
    """Adds the questions of a file, or what is wrong with its lines; returns their numbers."""
    task, numbers = _TASK_OF[part.dataset], []
    for place, row in enumerate(_rows(path)):
        if isinstance(row, str):
            problems.append(f"{path}, line {place + 1}: {row}.")
            continue
        titles = tuple(dict.fromkeys(((row.metadata or {}).get("supporting_facts") or {}).get("title") or ()))
        answers = tuple(row.golden_answers)
        questions[start + place] = Question(task, row.question, answers, titles, titles or (row.question,))
        numbers.append(start + place)
    if numbers and numbers[-1] >= start + part.lines:
        problems.append(f"{path} has more than the {part.lines} lines of the published file.")
    return numbers


def _rows(path: Path) -> Iterator[_Row | str]:
    """Each row of a file, or what is wrong with it."""
    for line in _parquet(path) if path.suffix == ".parquet" else _lines(path):
        try:
            yield msgspec.convert(line, _Row) if isinstance(line, dict) else _row.decode(line)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            yield str(error)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from file


def _parquet(path: Path) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise BackendMissing(
            f"{path} needs the package 'pyarrow': pip install 'gym-agents[searchqa-parquet]'."
        ) from error
    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches():
            yield from batch.to_pylist()


def _drawn(task: str, numbers: list[int]) -> list[int]:
    """As many evaluation items as the paper counts, drawn by a generator seeded with the task's name."""
    counts = {row.name: row.eval_items for row in scenario_row("searchqa").tasks}
    return sorted(random.Random(f"searchqa {task}").sample(numbers, min(counts[task], len(numbers))))

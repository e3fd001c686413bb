"""FlashRAG's question files: upstream's numbers, the tasks, the splits, and every bad line at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from gym_agents.errors import UsageError
from servers.searchqa.flashrag import load_questions
from servers.searchqa.questions import Question

FIRST_ITEMS = {
    ("nq", "test"): ("NQ", 0),
    ("triviaqa", "test"): ("TriviaQA", 3610),
    ("popqa", "test"): ("PopQA", 14923),
    ("hotpotqa", "dev"): ("HotpotQA", 29190),
    ("2wikimultihopqa", "dev"): ("2Wiki", 36595),
    ("musique", "dev"): ("Musique", 49171),
    ("bamboogle", "test"): ("Bamboogle", 51588),
    ("nq", "train"): ("NQ", 51713),
    ("hotpotqa", "train"): ("HotpotQA", 130881),
}
"""As upstream numbers the published files."""


def row(number: int) -> dict[str, object]:
    return {
        "id": f"test_{number}",
        "question": f"who is number {number}?",
        "golden_answers": [f"Number {number}", f"No. {number}"],
        "metadata": {"supporting_facts": {"title": ["One", "Two", "One"], "sent_id": [0, 1, 2]}},
    }


def write(folder: Path, dataset: str, file: str, rows: Sequence[object]) -> Path:
    path = folder / dataset / f"{file}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in rows))
    return path


def test_all_seven_sets_get_upstreams_numbers_tasks_and_splits(tmp_path: Path) -> None:
    for dataset, file in FIRST_ITEMS:
        write(tmp_path, dataset, file, [row(n) for n in range(3)])
    found = load_questions(tmp_path)
    assert (found.numbering, found.embedded) == ("searchqa", False)
    for (_, file), (task, first) in FIRST_ITEMS.items():
        items = range(first, first + 3)
        assert [found.questions[item].task for item in items] == [task] * 3
        assert found.splits["train" if file == "train" else "eval"][task] == tuple(items)
    assert found.splits["train"]["TriviaQA"] == ()
    assert len(found.questions) == 27
    assert found.questions[51590] == Question(
        "Bamboogle", "who is number 2?", ("Number 2", "No. 2"), ("One", "Two"), ("One", "Two")
    )


def test_the_evaluation_items_are_the_papers_count_and_always_the_same(tmp_path: Path) -> None:
    write(tmp_path, "musique", "dev", [row(n) for n in range(300)])
    write(tmp_path, "bamboogle", "test", [row(n) for n in range(125)])
    first, again = load_questions(tmp_path).splits["eval"], load_questions(tmp_path).splits["eval"]
    assert (len(first["Musique"]), len(first["Bamboogle"])) == (100, 50)
    assert first == again
    assert list(first["Musique"]) == sorted(set(first["Musique"]))
    assert first["Musique"] != tuple(range(49171, 49271))


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    write(tmp_path / "lines", "nq", "test", [row(n) for n in range(4)])
    (tmp_path / "table/nq").mkdir(parents=True)
    table = pyarrow.Table.from_pylist([row(n) for n in range(4)])
    pyarrow.parquet.write_table(table, tmp_path / "table/nq/test.parquet")
    assert load_questions(tmp_path / "table").questions == load_questions(tmp_path / "lines").questions


def test_every_bad_line_is_named_with_its_file_at_once(tmp_path: Path) -> None:
    nq = write(tmp_path, "nq", "test", [row(0), "{", {"id": "x", "question": "q"}, row(3)])
    musique = write(tmp_path, "musique", "dev", [{**row(0), "golden_answers": []}, {**row(1), "question": 7}])
    with pytest.raises(UsageError) as refused:
        load_questions(tmp_path)
    told = refused.value.message.splitlines()
    assert [line.partition(":")[0] for line in told] == [
        f"{nq}, line 2",
        f"{nq}, line 3",
        f"{musique}, line 1",
        f"{musique}, line 2",
    ]
    assert "golden_answers" in told[1]
    assert "at least one golden answer" in told[2]


def test_a_file_longer_than_the_published_one_would_shift_the_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "bamboogle", "test", [row(n) for n in range(126)])
    with pytest.raises(UsageError, match=f"{path} has more than the 125 lines"):
        load_questions(tmp_path)


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no question file in .*such as .*nq/test.jsonl"):
        load_questions(tmp_path)

"""The generated questions: facts that the corpus states, seven styles, two sides without a common article."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gym_agents.tasks import scenario_row
from servers.searchqa.corpora import embedded_corpus
from servers.searchqa.embedded import embedded_index, embedded_questions
from servers.searchqa.facts import FactBase, read_facts
from servers.searchqa.questions import Question, QuestionSet
from servers.searchqa.sample import tables
from servers.searchqa.scoring import exact_match, normalize


@pytest.fixture(scope="module")
def base() -> FactBase:
    return read_facts(embedded_corpus().summaries)


@pytest.fixture(scope="module")
def items() -> QuestionSet:
    return embedded_questions()


def of_split(items: QuestionSet, task: str | None, split: str) -> list[Question]:
    return [items.questions[item] for item in items.splits[split][task]]


@pytest.mark.parametrize(
    ("title", "relation", "value", "entity"),
    [
        ("Gabriel Fauré", "birth year", "1845", None),
        ("Gabriel Fauré", "death year", "1924", None),
        ("Gabriel Fauré", "nationality", "French", None),
        ("J. M. Coetzee", "birth year", "1940", None),
        ("J. M. Coetzee", "prize year", "2003", None),
        ("Anna Karenina", "author", "Leo Tolstoy", "Leo Tolstoy"),
        ("Anna Karenina", "appeared", "1878", None),
        ("Bicycle Thieves", "director", "Vittorio De Sica", None),
        ("Barium", "symbol", "Ba", None),
        ("Barium", "atomic number", "56", None),
        ("Amsterdam", "capital of", "Netherlands", "Netherlands"),
        ("Netherlands", "capital", "Amsterdam", "Amsterdam"),
        ("Busan", "country", "South Korea", "South Korea"),
        ("Casimir III the Great", "reign", "1333 to 1370", None),
        ("Casimir III the Great", "realm", "Poland", "Poland"),
        ("Alstroemeria", "family", "Alstroemeriaceae", None),
        ("Vega", "constellation", "Lyra", None),
    ],
)
def test_facts_are_read_as_the_articles_state_them(
    title: str, relation: str, value: str, entity: str | None, base: FactBase
) -> None:
    fact = base.of(title)[relation]
    assert (fact.value, fact.entity) == (value, entity)


@pytest.mark.parametrize(
    ("title", "relation"),
    [
        ("Edmund Spenser", "birth year"),  # "c. 1552"
        ("Marx Brothers", "birth year"),  # several people
        ("Renaissance philosophy", "birth year"),  # nobody
        ("The Wizard of Oz", "author"),  # a film after a book
        ("Leeds", "country"),  # England lies in the United Kingdom
        ("Georgia (country)", "capital"),  # two Georgias have one
        ("Singin' in the Rain", "director"),  # two directors
        ("Marie Curie", "prize year"),  # two prizes
    ],
)
def test_what_is_not_certain_is_not_read(title: str, relation: str, base: FactBase) -> None:
    assert title in base.names.summaries
    assert relation not in base.of(title)


def test_every_task_has_the_papers_evaluation_items_and_some_to_train_on(items: QuestionSet) -> None:
    for task in scenario_row("searchqa").tasks:
        assert len(items.splits["eval"][task.name]) == task.eval_items
        assert len(items.splits["train"][task.name]) >= 70
    assert items.embedded
    assert sorted(items.questions) == list(range(len(items.questions)))


def test_no_article_leads_to_answers_on_both_sides(items: QuestionSet) -> None:
    sides = [
        {title for q in of_split(items, None, split) for title in q.titles} for split in ("train", "eval")
    ]
    assert min(len(side) for side in sides) > 200
    assert not sides[0] & sides[1]


def test_no_question_is_asked_twice(items: QuestionSet) -> None:
    texts = Counter((question.task, question.text) for question in items.questions.values())
    assert [text for text, count in texts.items() if count > 1] == []


def test_questions_are_whole_sentences(items: QuestionSet) -> None:
    for question in items.questions.values():
        assert question.text[0].isupper()
        assert question.text.endswith("?")
        assert "  " not in question.text
        assert "{" not in question.text
        assert all(answer.strip() == answer and normalize(answer) for answer in question.answers)


def test_only_a_comparison_names_its_answer(items: QuestionSet) -> None:
    for question in items.questions.values():
        named = f" {normalize(question.answers[0])} " in f" {normalize(question.text)} "
        assert named <= (" or " in question.text), question.text


def test_a_guesser_that_does_not_search_is_nearly_always_wrong(items: QuestionSet) -> None:
    for task in scenario_row("searchqa").tasks:
        train = [q.answers[0] for q in of_split(items, task.name, "train")]
        held_out = of_split(items, task.name, "eval")
        guesses = {
            Counter(train).most_common(1)[0][0],
            Counter(q.answers[0] for q in held_out).most_common(1)[0][0],
        }
        for guess in guesses:
            assert sum(exact_match(guess, q.answers) for q in held_out) < 0.1 * len(held_out)


def test_chains_have_two_to_four_hops(items: QuestionSet) -> None:
    hops = Counter(len(q.titles) for q in of_split(items, "Musique", "eval"))
    assert set(hops) <= {2, 3, 4}
    assert hops[4] > 20
    assert {len(q.titles) for q in of_split(items, "Bamboogle", "eval")} == {2}


def test_the_index_is_made_once(items: QuestionSet) -> None:
    made = (embedded_index() / "index.json").stat().st_mtime_ns
    assert embedded_index().parent.name in items.name
    assert (embedded_index() / "index.json").stat().st_mtime_ns == made


def test_the_page_shows_what_is_drawn() -> None:
    """A person has read these tables; a change of the generator has to be read again."""
    page = (Path(__file__).parents[2] / "docs/scenarios/searchqa.md").read_text("utf-8")
    assert "\n".join(tables()).strip() in page

"""SearchQA as a world: search, read, answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gym_agents.errors import ItemError
from gym_agents.scenario import Invalid
from gym_agents.scenarios.searchqa import MAX_CHARS, SCENARIO, Answer, Search, SearchQAOptions, read_move
from servers.searchqa.passages import Passage, show
from servers.searchqa.questions import TASKS, Question, QuestionSet
from servers.searchqa.retrieval import Retriever
from servers.searchqa.scoring import exact_match, f1
from servers.searchqa.sources import open_questions, open_retriever
from servers.world import Episode, Result, World


class SearchQAEpisode(Episode):
    """One attempt at one question."""

    def __init__(self, question: Question, retriever: Retriever, options: SearchQAOptions) -> None:
        self.observation = f"Question: {question.text}"
        self._question = question
        self._retriever = retriever
        self._options = options
        self._searches: list[tuple[str, list[Passage]]] = []

    def step(self, command: str) -> Result:
        """Searches, or judges an answer; the score is 1 for an exact match, and 0 before."""
        match read_move(command):
            case Search(query):
                return self._search(query)
            case Answer(text):
                return self._judge(text)
            case Invalid(reason):
                return Result(reason, 0.0, valid=False)

    def _search(self, query: str) -> Result:
        passages = self._retriever.search(query, self._options.k)
        self._searches.append((query, passages))
        return Result(show(passages), 0.0)

    def _judge(self, text: str) -> Result:
        accepted = self._question.answers
        right = exact_match(text, accepted)
        again = self._options.answers == "retry" and not right
        return Result(
            "That is right." if right else "That is not the answer." + " Try again." * again,
            float(right),
            terminated=not again,
            success=right,
            info={"exact_match": right, "f1": f1(text, accepted)},
        )

    def expert(self) -> str:
        """The next search that leads to the answer, then the answer."""
        made = {query for query, _ in self._searches}
        query = next((query for query in self._question.queries if query[:MAX_CHARS] not in made), None)
        return str(Answer(self._question.answers[0]) if query is None else Search(query[:MAX_CHARS]))

    def view(self) -> dict[str, Any]:
        """The question, and what was looked for and found."""
        return {
            "question": self._question.text,
            "searches": [
                {"query": query, "passages": [{"title": p.title, "text": p.text} for p in passages]}
                for query, passages in self._searches
            ],
        }


class SearchQAWorld(World):
    """The questions and the retriever, loaded once; all sessions share them.

    Args:
        questions: what is played; `None` is what the environment variables name.
        retriever: what is searched; the same.
    """

    scenario = SCENARIO
    tasks = TASKS

    def __init__(self, questions: QuestionSet | None = None, retriever: Retriever | None = None) -> None:
        self._set = questions or open_questions()
        self._retriever = retriever or open_retriever()
        self.numbering = self._set.numbering
        self.backend = f"{self._set.name}; {self._retriever.name}"
        self.inline = self._retriever.instant

    def items(self, task: str | None, split: str) -> Sequence[int]:
        """The items of a task (`None`: of all seven) in `train` or `eval`, in order."""
        return self._set.splits[split][task]

    def task_of(self, item: int) -> str:
        """The task that an item belongs to.

        Raises:
            ItemError: if there is no such item.
        """
        if item not in self._set.questions:
            raise ItemError(f"SearchQA has no item {item} among its {len(self._set.questions)} questions.")
        return self._set.questions[item].task

    def start(self, item: int, seed: int, options: SearchQAOptions) -> SearchQAEpisode:
        """A fresh attempt at the item; the seed changes nothing, since nothing is left to chance."""
        episode = SearchQAEpisode(self._set.questions[item], self._retriever, options)
        episode.info = {"embedded": self._set.embedded}
        return episode

    def close(self) -> None:
        """Closes the retriever."""
        self._retriever.close()

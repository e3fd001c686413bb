"""Seven styles of question over the facts of the embedded corpus, one for each task.

Each style is a generator of drafts; what cannot be found by searching, or fits two answers, is sorted out later.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from servers.searchqa.facts import Fact, FactBase
from servers.searchqa.names import Names, sentences
from servers.searchqa.phrases import CREATORS, RELATIONS, ask, phrase
from servers.searchqa.questions import Question

_ENGLISH = {"English": "British", "Scottish": "British", "Welsh": "British"}


def answers_of(fact: Fact, base: FactBase) -> tuple[str, ...]:
    """All that is accepted for a fact's value."""
    if fact.entity is not None:
        return base.names.aliases(fact.entity)
    return (fact.value, _ENGLISH[fact.value]) if fact.value in _ENGLISH else (fact.value,)


def _clear(facts: Iterable[Fact], base: FactBase) -> Iterator[Fact]:
    """The facts whose subject a question can name."""
    return (fact for fact in facts if base.names.is_clear(fact.title))


def _question(
    task: str, text: str, answers: tuple[str, ...], facts: Iterable[Fact], base: FactBase
) -> Question:
    """A question that these facts answer, with what to search for to find each."""
    facts = list(facts)
    titles = tuple(fact.source or fact.title for fact in facts)
    return Question(task, text, answers, titles, tuple(_query(fact, base) for fact in facts))


def _query(fact: Fact, base: FactBase) -> str:
    """The subject's name; what is asked, where another article tells it. Many titles begin with a country's name."""
    name = base.names.display(fact.title)
    if fact.source is not None:
        return f"{fact.relation} city of {name}"
    return f"{name} country" if fact.title in base.names.countries else name


def _chain(task: str, facts: list[Fact], base: FactBase) -> Iterator[Question]:
    """The question that leads from the first fact's subject to the last fact's value, over an article for each fact.

    There is none where the question would give its answer away, or one article would do.
    """
    subject = base.names.naming(facts[0].title)
    for fact in facts[:-1]:
        subject = phrase(fact, subject)
    question = _question(task, ask(facts[-1], subject), answers_of(facts[-1], base), facts, base)
    if question.answers[0] not in question.text and len(set(question.titles)) == len(facts):
        yield question


def _direct(task: str, asked: tuple[str, ...], base: FactBase) -> Iterator[Question]:
    for fact in _clear(base.with_relation(*asked), base):
        yield from _chain(task, [fact], base)


# NQ: one fact.


def single_facts(base: FactBase) -> Iterator[Question]:
    """Years, symbols, numbers, and who held an office when."""
    yield from _direct("NQ", ("appeared", "prize year", "symbol", "atomic number"), base)
    for fact in list(_clear(base.with_relation("birth year"), base))[::3]:
        yield from _chain("NQ", [fact], base)
    for fact in base.with_relation("reign"):
        text = f"Who was {fact.detail} from {fact.value.replace(' to ', ' until ')}?"
        yield Question("NQ", text, base.names.aliases(fact.title), (fact.title,), (text,))


# TriviaQA: a person from a clue.

_VERBS = (
    r"[a-z-]{3,}ed|won|wrote|became|led|made|held|fought|broke|built|ran|set|taught|drew|sang|rose|spent|wore|took"
    r"|was (?:the|a|an|appointed|awarded|elected|named|crowned)|is the|is (?:best |mostly )?known (?:for|as)"
    r"|was (?:best |mostly )?known (?:for|as)|has [a-z]+ed|has won"
)
_CLUE = re.compile(rf"(?:[^;:()]{{2,120}},? who|[^;:(), ]+) ((?:{_VERBS}) [^;:()]{{20,170}})[.]")
_KNOWN = re.compile(r"[^;:()]{5,150}[ ,](?:best|primarily|mainly) known for ([^;:()]{10,170})[.]")
_VAGUE = re.compile(
    r"[.] (?:he|she)\b|\b(?:however|they|their|this|these|those|such|latter|former|there|then|considered|regarded|widely"
    r"|one of the|many|several|another|today|greatest|most influential|most important)\b",
    re.IGNORECASE,
)
_ANCHOR = re.compile(r"\d{4}|[A-Z][\w'-]+(?: (?:of |the )*[A-Z][\w'-]+)*")
_NATURE = re.compile(r"([A-Z][\w'-]*(?: [\w',-]+)*) \((?:\d{3,4}[\u2013-]\d{3,4}|born \d{4})\)")


def clues(base: FactBase) -> Iterator[Question]:
    """Which person did something that the corpus tells of nobody else."""
    for title in (fact.title for fact in base.with_relation("birth year")):
        summary = base.names.summaries[title]
        nature = _NATURE.fullmatch(summary.description)
        told = (
            (_clue(sentence, title, base.names) for sentence in sentences(summary.extract)) if nature else ()
        )
        clue = next(filter(None, told), None)
        if nature and clue:
            text = f"Which {nature[1]} {clue}?"
            yield Question("TriviaQA", text, base.names.aliases(title), (title,), (text,))


def _clue(sentence: str, title: str, names: Names) -> str | None:
    """The sentence as a clue to its subject, if it is one to nobody else."""
    match = _CLUE.fullmatch(sentence)
    if match and (
        " who " in sentence[: match.start(1)] or sentence.split()[0] in ("He", "She", title.split()[-1])
    ):
        clue = match[1]
    elif match := _KNOWN.fullmatch(sentence):
        clue = f"is best known for {match[1]}"
    else:
        return None
    if _VAGUE.search(clue) or any(name[:5] in clue for name in re.split(r"[ -]", title) if len(name) > 2):
        return None
    anchors = set(_ANCHOR.findall(clue))
    return clue if len(anchors) > 1 and set(names.telling_of(anchors)) == {title} else None


# PopQA: one relation between two entities.


def relations(base: FactBase) -> Iterator[Question]:
    """Who made what, what lies where, which city governs which place."""
    entities = (*CREATORS, "country", "capital", "capital of", "realm", "family", "order", "constellation")
    yield from _direct("PopQA", entities, base)


# HotpotQA: over a bridge, or by comparison.


def bridges_and_comparisons(base: FactBase) -> Iterator[Question]:
    """What someone was who made something; which of two came first."""
    yield from _over("HotpotQA", CREATORS, ("nationality", "prize year"), base)
    people = list(_clear(base.with_relation("birth year"), base))
    for first, second in _pairs(people, lambda fact: base.names.occupation(fact.title)):
        text = f"Who was born first, {base.names.display(first.title)} or {base.names.display(second.title)}?"
        yield _comparison(text, first, second, base)
    works = list(_clear(base.with_relation("appeared"), base))
    for first, second in _pairs(works, lambda fact: fact.detail):
        text = f"Which was {first.detail} first, {base.names.naming(first.title)} or {base.names.naming(second.title)}?"
        yield _comparison(text, first, second, base)


def _comparison(text: str, first: Fact, second: Fact, base: FactBase) -> Question:
    earlier = min(first, second, key=lambda fact: int(fact.value))
    return _question("HotpotQA", text, base.names.aliases(earlier.title), (first, second), base)


def _pairs(facts: Iterable[Fact], kind: Callable[[Fact], str | None]) -> Iterator[tuple[Fact, Fact]]:
    """Every second fact beside another one, drawn, of the same kind and of another year, at most 60 away."""
    kinds: defaultdict[str | None, list[Fact]] = defaultdict(list)
    for fact in facts:
        kinds[kind(fact)].append(fact)
    for of_kind in kinds.values():
        for fact in of_kind[::2]:
            near = [other for other in of_kind if 2 <= abs(int(other.value) - int(fact.value)) <= 60]
            if near:
                rng = random.Random(fact.title)
                first, second = rng.sample((fact, rng.choice(near)), 2)
                yield first, second


def _over(task: str, bridges: tuple[str, ...], asked: tuple[str, ...], base: FactBase) -> Iterator[Question]:
    """Asks for a fact of an entity that is named by its relation to another one."""
    for bridge in _clear(base.with_relation(*bridges), base):
        facts = base.of(bridge.entity)
        for relation in asked:
            if relation in facts:
                yield from _chain(task, [bridge, facts[relation]], base)


# 2Wiki: compositions that end in dates.


def dated_compositions(base: FactBase) -> Iterator[Question]:
    """When the maker of something was born or died; which of two works has the maker who was born first."""
    yield from _over("2Wiki", CREATORS, ("birth year", "death year"), base)
    works = base.names.works
    made = _made(base)
    for fact in made:
        same_kind = [other for other in made if works[other.title].kind == works[fact.title].kind]
        for other in _others(fact, same_kind, base, 2):
            earlier, _ = _by_birth(fact, other, base)
            names = " or ".join(base.names.display(one.title) for one in (fact, other))
            text = f"Which {works[fact.title].kind} has the {fact.relation} who was born first, {names}?"
            yield _question(
                "2Wiki", text, base.names.aliases(earlier.title), _trail(fact, other, base=base), base
            )


def _made(base: FactBase) -> list[Fact]:
    """Who made which work, where the maker's year of birth is known."""
    facts = _clear(base.with_relation(*CREATORS), base)
    return [fact for fact in facts if "birth year" in base.of(fact.entity)]


def _year(fact: Fact, base: FactBase) -> int:
    return int(base.of(fact.entity)["birth year"].value)


def _others(fact: Fact, among: Sequence[Fact], base: FactBase, count: int) -> list[Fact]:
    """Some facts, drawn by the fact's title, whose makers were born in another year."""
    others = [other for other in among if _year(other, base) != _year(fact, base)]
    return random.Random(fact.title).sample(others, min(count, len(others)))


def _by_birth(first: Fact, second: Fact, base: FactBase) -> tuple[Fact, Fact]:
    """The work of the elder maker, and that of the younger one."""
    return (first, second) if _year(first, base) < _year(second, base) else (second, first)


def _trail(*made: Fact, base: FactBase) -> list[Fact]:
    """Each work's maker, and when that one was born."""
    return [fact for one in made for fact in (one, base.of(one.entity)["birth year"])]


# Musique: chains of two to four hops.


def chains(base: FactBase) -> Iterator[Question]:
    """Every chain of three facts or more, some of two, and comparisons of two makers that lead on to another fact."""
    for start in _clear(base.facts, base):
        for facts in _walks([start], base):
            if len(facts) > 2:
                yield from _chain("Musique", facts, base)
    yield from _over("Musique", ("family",), ("order",), base)
    made = _made(base)
    for place, fact in enumerate(made):
        for other in _others(fact, made, base, 6):
            asked = ("death year", "nationality")[place % 2]
            yield from _after_comparison(fact, other, asked, base)


def _walks(facts: list[Fact], base: FactBase) -> Iterator[list[Fact]]:
    """The ways on from the last fact's entity, of up to four facts, none back to where it has been."""
    yield facts
    last, visited = facts[-1], {fact.title for fact in facts}
    if len(facts) < 4 and last.relation in RELATIONS and RELATIONS[last.relation].phrase:
        for fact in base.of(last.entity).values():
            if fact.relation in RELATIONS and fact.relation != "capital of" and fact.entity not in visited:
                yield from _walks([*facts, fact], base)


def _after_comparison(first: Fact, second: Fact, asked: str, base: FactBase) -> Iterator[Question]:
    _, later = _by_birth(first, second, base)
    last = base.of(later.entity).get(asked)
    if last is not None:
        makers = " and ".join(phrase(fact, base.names.naming(fact.title)) for fact in (first, second))
        text = f"Of {makers}, {ask(last, 'the one born later').removesuffix('?')}?"
        text = text.replace(", In what", ", in what").replace(", What", ", what")
        yield _question("Musique", text, answers_of(last, base), _trail(first, second, base=base), base)


# Bamboogle: two hops.


def two_hops(base: FactBase) -> Iterator[Question]:
    """The capital of the country that something lies in or that someone ruled; the country of a region's capital."""
    yield from _over("Bamboogle", ("country", "realm"), ("capital",), base)
    yield from _over("Bamboogle", ("capital",), ("country",), base)


STYLES = (single_facts, clues, relations, bridges_and_comparisons, dated_compositions, chains, two_hops)
"""One for each task, in the order of the table of tasks."""

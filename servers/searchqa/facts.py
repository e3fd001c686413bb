"""Facts that the embedded corpus states, read by a few careful patterns; whatever is stated twice differently goes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from servers.searchqa.corpora import Summary
from servers.searchqa.names import Names


@dataclass(frozen=True)
class Fact:
    """One thing that an article says of its subject."""

    title: str
    """The article, and its subject."""
    relation: str
    """A key of `phrases.RELATIONS`."""
    value: str
    entity: str | None = None
    """Title of the value's own article, where it has one."""
    detail: str = ""
    """What the relation's wording needs besides: `Nobel Prize in Physics`."""
    source: str | None = None
    """The article that says it, where that is not the subject's own."""


Reader = Callable[[Summary, Names], Iterator[Fact]]
"""Reads the facts of one kind from an article."""


class FactBase:
    """Facts, at most one for each title and relation, in order of the corpus."""

    def __init__(self, names: Names, facts: Iterable[Fact]) -> None:
        self.names = names
        self.facts = tuple(facts)
        self._by_title: defaultdict[str, dict[str, Fact]] = defaultdict(dict)
        for fact in self.facts:
            self._by_title[fact.title][fact.relation] = fact

    def of(self, title: str | None) -> Mapping[str, Fact]:
        """The facts of an article, by relation."""
        return self._by_title.get(title, {}) if title else {}

    def with_relation(self, *relations: str) -> list[Fact]:
        """The facts of some relations."""
        return [fact for fact in self.facts if fact.relation in relations]


def read_facts(summaries: Iterable[Summary]) -> FactBase:
    """All facts of the corpus; what is stated twice and differently is left out."""
    names = Names(summaries)
    found: defaultdict[tuple[str, str], dict[Fact, None]] = defaultdict(dict)
    for summary in names.summaries.values():
        for fact in _read(summary, names):
            found[fact.title, fact.relation][fact] = None
    single = [fact for facts in found.values() if len(facts) == 1 for fact in facts]
    return FactBase(names, (*single, *_capitals(single, names)))


def _capitals(facts: list[Fact], names: Names) -> Iterator[Fact]:
    """Each place's capital, where exactly one city is called its capital and the place has no second one."""
    claims = Counter(fact.entity for fact in facts if fact.relation == "capital of")
    for fact in facts:
        if fact.relation != "capital of" or fact.entity is None or claims[fact.entity] > 1:
            continue
        extract, city = names.summaries[fact.entity].extract, names.display(fact.title)
        if not _SECOND_CAPITAL.search(extract):
            yield Fact(
                fact.entity, "capital", city, fact.title, source=None if city in extract else fact.title
            )


def _read(summary: Summary, names: Names) -> Iterator[Fact]:
    for reader in _readers(summary, names):
        yield from reader(summary, names)


def _readers(summary: Summary, names: Names) -> tuple[Reader, ...]:
    if summary.title in names.people:
        return _life, _nationality, _prize, _reign
    return (_work,) if summary.title in names.works else (_place, _capital, _element, _taxon, _constellation)


# People.

_YEARS = re.compile(r"\((?:(\d{3,4})[\u2013-](\d{3,4})|born (\d{4}))\)$")
_NATURE = re.compile(r"([A-Z][a-z]+(?:ian|ean|can|ish|ese|ch|eek|man|wiss|utch|sian|zech)) [a-z][a-z ,]*\(")
_PRIZE = re.compile(
    r"(?:won|awarded|received|recipient of) the (?:(\d{4}) )?(Nobel Prize in [A-Z][a-z]+)(?: in (\d{4}))?"
)
_REIGN = re.compile(
    r"((?:King|Queen|Emperor|Empress|Tsar|Sultan|President|Prime Minister|Chancellor) of [A-Z][\w ]+?|Holy Roman Emperor) from (\d{3,4}) to (\d{3,4})"
)


def _life(summary: Summary, names: Names) -> Iterator[Fact]:
    if match := _YEARS.search(summary.description):
        yield Fact(summary.title, "birth year", match[1] or match[3])
        if match[2]:
            yield Fact(summary.title, "death year", match[2])


def _nationality(summary: Summary, names: Names) -> Iterator[Fact]:
    match = _NATURE.match(summary.description)
    agreed = match is not None and f" {match[1]} " in summary.extract[:200]  # not English here, British there
    if match and agreed and "born" not in summary.description:
        yield Fact(summary.title, "nationality", match[1])


def _prize(summary: Summary, names: Names) -> Iterator[Fact]:
    prizes = _PRIZE.findall(summary.extract)
    if len(prizes) == 1 and summary.extract.count("Nobel") == 1 and (year := prizes[0][0] or prizes[0][2]):
        yield Fact(summary.title, "prize year", year, detail=prizes[0][1])


def _reign(summary: Summary, names: Names) -> Iterator[Fact]:
    if match := _REIGN.fullmatch(summary.description):
        yield Fact(summary.title, "reign", f"{match[2]} to {match[3]}", detail=match[1])
        realm = names.country(match[1].rpartition(" of ")[2])
        if realm is not None:
            yield Fact(
                summary.title,
                "realm",
                names.display(realm),
                realm,
                detail=match[1].partition(" of ")[0].lower(),
            )


# Works.


def _work(summary: Summary, names: Names) -> Iterator[Fact]:
    work = names.works[summary.title]
    yield Fact(summary.title, work.relation, work.creator, names.person(work.creator))
    if work.year and work.appeared:
        yield Fact(summary.title, "appeared", work.year, detail=work.appeared)


# Places and things.

_CITY = re.compile(r"\b(?:city|town|capital|metropolis|municipality|commune|seat|port)\b", re.IGNORECASE)
_SIGHT = re.compile(
    r"\b(?:university|museum|palace|cathedral|temple|bridge|castle|library|mosque|tower|monument|stadium"
    r"|mausoleum|basilica|fortress|volcano|waterfall|national park|province|airport|monastery|archaeological site)\b",
    re.IGNORECASE,
)
_SECOND_CAPITAL = re.compile(r"\b(?:capitals|seat of government)\b")
_CAPITAL = re.compile(
    r"[Cc]apital(?: city)?(?: and [a-z -]*?)?(?: city)? of (?:the )?([A-Z][\w' -]+?)(?:, [\w. ]+)?"
)
_IN = re.compile(r" (?:in|of) (?:the )?(?:[\w' -]+, )*(?:the )?([A-Z][\w.' -]+)$")
_ELEMENT = re.compile(r"symbol ([A-Z][a-z]?) and (?:an )?atomic number (\d+)")
_FAMILY = re.compile(r"\bfamily ([A-Z][a-z]+(?:idae|aceae))\b")
_ORDER = re.compile(r"\border ([A-Z][a-z]+(?:formes|ales|ptera))\b")
_CONSTELLATION = re.compile(r"constellations? (?:of )?([A-Z]\w+(?: [A-Z]\w+)?)")


def _place(summary: Summary, names: Names) -> Iterator[Fact]:
    match = _IN.search(summary.description)
    if match and (_CITY.search(summary.description) or _SIGHT.search(summary.description)):
        country = names.country(match[1])
        if country is not None and names.display(country) not in names.display(summary.title):
            yield Fact(summary.title, "country", names.display(country), country)


def _capital(summary: Summary, names: Names) -> Iterator[Fact]:
    match = _CAPITAL.fullmatch(summary.description)
    place = names.place(match[1]) if match else None
    if place is not None and names.display(place) not in names.display(summary.title):
        yield Fact(summary.title, "capital of", names.display(place), place)


def _element(summary: Summary, names: Names) -> Iterator[Fact]:
    match = _ELEMENT.search(summary.extract)
    if match and "chemical element" in summary.extract[:200].lower():
        yield Fact(summary.title, "symbol", match[1])
        yield Fact(summary.title, "atomic number", match[2])


def _taxon(summary: Summary, names: Names) -> Iterator[Fact]:
    for relation, pattern in (("family", _FAMILY), ("order", _ORDER)):
        values = set(pattern.findall(summary.extract)) - {summary.title}
        if len(values) == 1 and names.rank(summary.title):
            value = values.pop()
            yield Fact(summary.title, relation, value, value if value in names.summaries else None)


def _constellation(summary: Summary, names: Names) -> Iterator[Fact]:
    values = set(_CONSTELLATION.findall(f"{summary.description}. {summary.extract}"))
    if len(values) == 1 and re.search(
        r"\b(?:star|nebula|galaxy|cluster|pulsar)\b", summary.description.lower()
    ):
        value = values.pop()
        yield Fact(summary.title, "constellation", value, value if value in names.summaries else None)

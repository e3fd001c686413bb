"""Who and what the articles of the embedded corpus are about, and by which names these are known."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from servers.searchqa.corpora import Summary

_DISAMBIGUATION = re.compile(r" \([^()]*\)$")
_LIFE = re.compile(r"\((?:\d{3,4}[\u2013-]\d{3,4}|born \d{4})\)$")
_GROUP = re.compile(
    r"\b(?:team|dynasty|group|band|family|brothers|duo|empire|kingdom|state|war|sisters)\b", re.IGNORECASE
)
_RULER = re.compile(r"^[A-Z][\w ]+ (?:of [A-Z][\w ]+ )?from \d{3,4} to \d{3,4}$")
_PRONOUN = re.compile(r"\b(?:He|She|[Hh]is|[Hh]er)\b")
_WORK = re.compile(r"(?:(\d{4}) )?((?:[A-Za-z'-]+ )*)([A-Za-z]+) by ([A-Z][\w.' -]+)")
_DERIVED = re.compile(r"\b(?:film|based|adapted)\b")
_NAME = re.compile(r"[A-Z][\w.'-]*(?: (?:[A-Z][\w.'-]*|van|von|de|da|di|der|la|le|of|the|ibn|al-\w+))*")
_COUNTRY = re.compile(
    r"(?:Island |Landlocked |Archipelagic |Double landlocked )?[Cc]ountry (?:in|spanning|primarily|mostly|of) .*"
)
_PLACE = re.compile(
    r"\b(?:city|town|capital|state|province|region|country|territory|municipality|prefecture|republic|island)\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_SENTENCE = re.compile(r"(?<=[a-z0-9)\"])[.] +(?=[A-Z])")
_WITHIN = frozenset({"England", "Scotland", "Wales", "Northern Ireland"})
"""Countries of a country: what lies there lies in two."""
_ELSE = {"US": "United States", "U.S.": "United States", "USA": "United States", "UK": "United Kingdom"}


@dataclass(frozen=True)
class Kind:
    """A kind of work: what its creator did, and how it came into the world."""

    relation: str
    appeared: str


KINDS = {
    **dict.fromkeys(("novel", "novella", "book", "treatise"), Kind("author", "published")),
    **dict.fromkeys(("play", "tragedy", "comedy", "poem", "essay"), Kind("author", "")),
    "film": Kind("director", "released"),
    "painting": Kind("painter", ""),
    "sculpture": Kind("sculptor", ""),
    **dict.fromkeys(("opera", "ballet", "musical", "oratorio"), Kind("composer", "")),
    **dict.fromkeys(("album", "single"), Kind("performer", "released")),
}


@dataclass(frozen=True)
class Work:
    """A work of one creator, as its description has it."""

    kind: str
    creator: str
    year: str | None

    @property
    def relation(self) -> str:
        """What the creator is to it."""
        return KINDS[self.kind].relation

    @property
    def appeared(self) -> str:
        """What happened to it in its year."""
        return KINDS[self.kind].appeared


class Names:
    """The articles, sorted into people, works, countries and places, and found by their names."""

    def __init__(self, summaries: Iterable[Summary]) -> None:
        self.summaries = {summary.title: summary for summary in summaries}
        shown = Counter(map(bare, self.summaries))
        self._clear = {bare(title): title for title in self.summaries if shown[bare(title)] == 1}
        self.people = frozenset(title for title, summary in self.summaries.items() if _is_person(summary))
        self.works = {t: work for t, s in self.summaries.items() if (work := self._as_work(s)) is not None}
        self.countries = (
            frozenset(title for title, s in self.summaries.items() if _COUNTRY.fullmatch(s.description))
            - _WITHIN
        )
        self.places = frozenset(
            t for t, s in self.summaries.items() if _PLACE.search(s.description) and t not in self.people
        )
        self._with_word: defaultdict[str, list[str]] = defaultdict(list)
        for title, summary in self.summaries.items():
            for word in set(_WORD.findall(summary.passage.text)):
                self._with_word[word].append(title)
        self._surnames = Counter(title.split()[-1] for title in self.people)

    def display(self, title: str) -> str:
        """The name without what only tells articles apart."""
        return bare(title)

    def telling_of(self, names: Iterable[str]) -> Iterator[str]:
        """The articles that contain all of these names or numbers."""
        names = set(names)
        words = {word for name in names for word in _WORD.findall(name)}
        rarest = min(words, key=lambda word: len(self._with_word[word]))
        for title in self._with_word[rarest]:
            if all(name in self.summaries[title].passage.text for name in names):
                yield title

    def is_clear(self, title: str) -> bool:
        """Whether a question can name it: by a name that no other article has, and that a sentence can hold."""
        alone = self._clear.get(bare(title)) == title and (title == bare(title) or title in self.works)
        return alone and not re.search(r"[(),]", bare(title))

    def naming(self, title: str) -> str:
        """The name as a question has it: `the novel Dune`, `the Netherlands`, `barium`."""
        summary, name = self.summaries[title], bare(title)
        if title in self.works and self.works[title].kind not in (
            "painting",
            "sculpture",
        ):  # their makers tell
            return f"the {self.works[title].kind} {name}"
        if rank := self.rank(title):
            return f"the {rank} {name}"
        if "chemical element" in summary.description.lower():
            return name.lower()
        before = summary.extract.partition(name)[0].split()
        with_article = (
            before[:1] == ["The"] and len(before) <= 3 and all(word[0].isupper() for word in before)
        )
        return f"the {name}" if with_article and not name.startswith("The ") else name

    def occupation(self, title: str) -> str | None:
        """The last word of what a person is described as: `painter`."""
        described = _LIFE.sub("", self.summaries[title].description).split()
        return described[-1] if described else None

    def rank(self, title: str) -> str | None:
        """`genus` or `family`, for a scientific name."""
        summary, name = self.summaries[title], bare(title)
        starts = summary.description.startswith("Genus of") and summary.extract.startswith(name)
        if starts and " " not in name:
            return "genus"
        return "family" if name.endswith(("idae", "aceae")) else None

    def person(self, name: str) -> str | None:
        """The article of a person of this name."""
        return name if name in self.people else None

    def country(self, name: str) -> str | None:
        """The article of a country of this name."""
        title = _ELSE.get(name, name)
        return title if title in self.countries else None

    def place(self, name: str) -> str | None:
        """The article of a place of this name."""
        title = _ELSE.get(name, name)
        return title if title in self.places else None

    def aliases(self, title: str) -> tuple[str, ...]:
        """All names by which the subject of an article may be called, the shown one first."""
        shown = bare(title)
        if title not in self.people:
            return (shown, *(short for short, country in _ELSE.items() if country == title))
        first = re.match(r"([A-Z][^,(]*?) (?:is|was) ", self.summaries[title].extract)
        full = first[1].strip() if first and len(first[1].split()) <= 6 and " or " not in first[1] else shown
        short = re.split(r", | of | the ", shown)[0]
        *given, surname = shown.split()
        own = (
            given
            and all(name[:1].isupper() for name in given)
            and self._surnames[surname] == 1
            and len(surname) > 3
            and given[-1] not in ("Du", "De", "Le", "La", "Van", "Von")
        )
        return tuple(dict.fromkeys((shown, full, short, *((surname,) if own and short == shown else ()))))

    def _as_work(self, summary: Summary) -> Work | None:
        match = _WORK.fullmatch(summary.description)
        if (
            match is None
            or match[3].lower() not in KINDS
            or _DERIVED.search(match[2])
            or not _NAME.fullmatch(match[4])
            or " and " in match[4]
        ):
            return None
        creator = match[4]
        surname = creator.split()[-1]
        if surname in bare(summary.title) or (" " not in creator and creator not in self._clear):
            return None
        return Work(match[3].lower(), creator, match[1])


def bare(title: str) -> str:
    """A title without the brackets at its end."""
    return _DISAMBIGUATION.sub("", title)


def sentences(text: str) -> list[str]:
    """The sentences of a text, each with its full stop."""
    parts = _SENTENCE.split(" ".join(text.split()))
    return [f"{part}." for part in parts[:-1]] + parts[-1:]


def _is_person(summary: Summary) -> bool:
    described = _LIFE.search(summary.description) or _RULER.fullmatch(summary.description)
    about_one = _PRONOUN.search(summary.extract) and not _GROUP.search(summary.description)
    return bool(described and about_one and summary.topic in ("People", "Uncategorized"))

"""How each relation is asked for, and how it names its value inside a longer question."""

from __future__ import annotations

from dataclasses import dataclass

from servers.searchqa.facts import Fact


@dataclass(frozen=True)
class Wording:
    """The words of a relation; `{}` is the subject, `{detail}` the fact's own."""

    ask: str
    phrase: str = ""
    """The value as a noun phrase; empty where the value is no entity."""


RELATIONS = {
    "birth year": Wording("In what year was {} born?"),
    "death year": Wording("In what year did {} die?"),
    "nationality": Wording("What was the nationality of {}?"),
    "prize year": Wording("In what year did {} win the {detail}?"),
    "realm": Wording("Of which country was {} {detail}?", "the country of which {} was {detail}"),
    "country": Wording("In which country is {}?", "the country in which {} lies"),
    "capital": Wording("What is the capital of {}?", "the capital of {}"),
    "capital of": Wording("Which country or region has {} as its capital?"),
    "author": Wording("Who wrote {}?", "the author of {}"),
    "director": Wording("Who directed {}?", "the director of {}"),
    "painter": Wording("Who painted {}?", "the painter of {}"),
    "sculptor": Wording("Who made {}?", "the sculptor of {}"),
    "composer": Wording("Who composed {}?", "the composer of {}"),
    "performer": Wording("Who recorded {}?", "the performer of {}"),
    "appeared": Wording("In what year was {} {detail}?"),
    "family": Wording("To which family does {} belong?", "the family of {}"),
    "order": Wording("To which order does {} belong?"),
    "constellation": Wording("In which constellation is {}?"),
    "symbol": Wording("What is the chemical symbol of {}?"),
    "atomic number": Wording("What is the atomic number of {}?"),
}
CREATORS = ("author", "director", "painter", "sculptor", "composer", "performer")


def ask(fact: Fact, subject: str) -> str:
    """The question for the fact's value."""
    return RELATIONS[fact.relation].ask.format(subject, detail=fact.detail)


def phrase(fact: Fact, subject: str) -> str:
    """The fact's value, named by its relation to the subject."""
    return RELATIONS[fact.relation].phrase.format(subject, detail=fact.detail)

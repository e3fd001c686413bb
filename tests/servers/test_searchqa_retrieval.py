"""The three retrievers, and how an index is built."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gym_agents.errors import BackendMissing, RetrieverFailure, UsageError
from servers.searchqa import bm25, dense, index, passages, sources
from servers.searchqa.bm25 import BM25
from servers.searchqa.dense import Dense
from servers.searchqa.index import build
from servers.searchqa.passages import Passage
from servers.searchqa.remote import Remote
from tests.servers.searchqa_fakes import RetrievalServer, good, retrieval_server

CORPUS = [
    Passage("Oslo", "Capital of Norway, on a fjord."),
    Passage("Bergen", "A rainy city in Norway."),
    Passage("Paris", "Capital of France."),
    Passage("Norway", "A country of fjords and mountains."),
    Passage("Twin A", "zebra zebra"),
    Passage("Twin B", "zebra zebra"),
]


@pytest.fixture
def server() -> Iterator[RetrievalServer]:
    with retrieval_server() as running:
        yield running


def titles(found: Sequence[Passage]) -> list[str]:
    return [passage.title for passage in found]


class TestBM25:
    @pytest.fixture
    def bm25(self, tmp_path: Path) -> BM25:
        build(CORPUS, tmp_path / "index", "bm25", source="test")
        return BM25(tmp_path / "index")

    def test_words_find_passages_best_first(self, bm25: BM25) -> None:
        assert titles(bm25.search("What is the capital of France?", 3)) == ["Paris", "Oslo"]
        assert titles(bm25.search("Norway", 1)) == ["Norway"]  # a title counts more than a text
        assert titles(bm25.search("mountain", 3)) == ["Norway"]  # stemmed
        assert bm25.search("Oslo", 1) == [CORPUS[0]]

    def test_equal_ones_come_in_the_order_of_the_corpus(self, bm25: BM25) -> None:
        assert titles(bm25.search("zebra", 1)) == ["Twin A"]
        assert titles(bm25.search("zebra", 3)) == ["Twin A", "Twin B"]

    @pytest.mark.parametrize("query", ["", "the of", "xylophone", "?!", "\u4e16\u754c"])
    def test_what_has_no_word_in_common_is_not_found(self, bm25: BM25, query: str) -> None:
        assert bm25.search(query, 3) == []

    def test_threads_share_it(self, bm25: BM25) -> None:
        queries = ["capital of France", "fjord", "rainy Bergen", "zebra"] * 50
        alone = [bm25.search(query, 2) for query in queries]
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda query: bm25.search(query, 2), queries)) == alone


class TestBuilding:
    def test_a_build_that_broke_off_goes_on_where_it_stopped(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []
        write = bm25.write_terms
        monkeypatch.setattr(
            bm25, "write_terms", lambda path, batch: (written.append(path.name), write(path, batch))
        )
        monkeypatch.setattr(passages, "SHARD", 2)
        monkeypatch.setattr(index, "SHARD", 2)

        def breaking_off() -> Iterator[Passage]:
            yield from CORPUS[:5]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build(breaking_off(), tmp_path / "index", "bm25", source="test")
        assert not (tmp_path / "index").exists()
        kept = tmp_path / "index.partial/terms-00001.npz"
        assert kept.exists()
        done: list[int] = []
        build(CORPUS, tmp_path / "index", "bm25", source="test", advance=done.append)
        assert done == [2, 4, 6]
        assert written == ["terms-00000.npz", "terms-00001.npz", "terms-00002.npz"]  # each once
        assert not kept.exists()  # words are dropped once the index holds them
        assert titles(BM25(tmp_path / "index").search("capital", 3)) == ["Paris", "Oslo"]

    def test_the_remains_of_another_corpus_are_not_used(self, tmp_path: Path) -> None:
        (tmp_path / "index.partial").mkdir()
        (tmp_path / "index.partial/source").write_text("bm25 other")
        with pytest.raises(UsageError, match="of another corpus or kind"):
            build(CORPUS, tmp_path / "index", "bm25", source="test")

    def test_the_command_builds_what_the_server_opens(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        corpus, folder = tmp_path / "wiki.jsonl", tmp_path / "index"
        lines = (json.dumps({"id": "0", "contents": f'"{p.title}"\n{p.text}'}) for p in CORPUS)
        corpus.write_text("\n".join(lines))
        monkeypatch.setattr(sys, "argv", ["index", str(corpus), str(folder)])
        assert index.main() == 0
        told = " ".join(capsys.readouterr().err.split())
        assert "6 passages: about" in told
        assert "of disk are free" in told
        opened = sources.open_retriever({sources.RETRIEVER: str(folder)})
        assert isinstance(opened, BM25)
        assert opened.search("Bergen", 1) == [CORPUS[1]]
        assert index.main() == 2
        assert "exists already" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("text", "words"), [('{"id": "1"}', "line 2"), ("nonsense", "line 2"), (None, "There is no file")]
    )
    def test_a_corpus_that_cannot_be_read_is_refused(
        self,
        text: str | None,
        words: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        corpus = tmp_path / "wiki.jsonl"
        if text is not None:
            corpus.write_text('{"contents": "A\\nb"}\n' + text)
        monkeypatch.setattr(sys, "argv", ["index", str(corpus), str(tmp_path / "index")])
        assert index.main() == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "index").exists()

    def test_an_empty_corpus_is_no_index(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no passage"):
            build([], tmp_path / "index", "bm25", source="test")


def letters(texts: Sequence[str]) -> Any:
    """An encoder for tests: how often each letter occurs, in vectors of length 1; what stands before `:` is left out."""
    counts = np.array(
        [
            [text.partition(": ")[2].lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
            for text in texts
        ]
    )
    return counts / np.linalg.norm(counts, axis=1, keepdims=True)


class TestDense:
    def test_the_nearest_vectors_are_found(self, tmp_path: Path) -> None:
        seen: list[str] = []

        def encode(texts: Sequence[str]) -> Any:
            seen.extend(texts)
            return letters(texts)

        build(CORPUS, tmp_path / "index", "dense", source="test", encode=encode)
        found = Dense(tmp_path / "index", encode).search("zebra twin", 2)
        assert {passage.title for passage in found} == {"Twin A", "Twin B"}
        assert seen[0] == "passage: Oslo\nCapital of Norway, on a fjord."
        assert seen[-1] == "query: zebra twin"
        assert len(Dense(tmp_path / "index", letters).search("fjord", 10)) == len(CORPUS)

    def test_a_missing_package_is_named_with_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(BackendMissing, match=r"gym-agents\[searchqa-dense\]"):
            dense.E5()


class TestRemote:
    def test_it_asks_and_reads_as_search_r1_does(self, server: RetrievalServer) -> None:
        remote = Remote(f"{server.url}/retrieve")
        assert remote.search("Oslo", 2) == [
            Passage("Oslo 1", "Text 1 on Oslo."),
            Passage("Oslo 2", "Text 2 on Oslo."),
        ]
        assert server.bodies == [{"queries": ["Oslo"], "topk": 2, "return_scores": True}]
        remote.close()

    def test_queries_that_wait_go_out_together(self, server: RetrievalServer) -> None:
        let_go = threading.Event()

        def held(body: dict[str, Any]) -> tuple[int, bytes]:
            let_go.wait(20)
            return good(body)

        server.answering = held
        remote = Remote(server.url)
        with ThreadPoolExecutor(48) as threads:
            answers = [threads.submit(remote.search, f"q{n}", 1) for n in range(48)]
            until(lambda: len(server.bodies) > 0)
            time.sleep(0.2)
            let_go.set()
            assert [answer.result(20)[0].title for answer in answers] == [f"q{n} 1" for n in range(48)]
        assert len(server.bodies) < 48
        assert sorted(q for body in server.bodies for q in body["queries"]) == sorted(
            f"q{n}" for n in range(48)
        )
        remote.close()

    def test_an_overloaded_server_is_asked_again(self, server: RetrievalServer) -> None:
        left = [503, 429, 504]

        def overloaded(body: dict[str, Any]) -> tuple[int, bytes]:
            return (left.pop(), b"") if left else good(body)

        server.answering = overloaded
        remote = Remote(server.url)
        assert titles(remote.search("Oslo", 1)) == ["Oslo 1"]
        assert len(server.bodies) == 4
        remote.close()

    @pytest.mark.parametrize(
        ("answer", "words"),
        [
            ((503, b""), "overloaded"),
            ((500, b""), "HTTP 500"),
            ((200, b"no json"), "another form"),
            ((200, b'{"result": "none"}'), "another form"),
            ((200, b'{"result": []}'), "answered 0 of 1 queries"),
        ],
    )
    def test_what_is_no_answer_is_a_failure_of_the_environment(
        self, answer: tuple[int, bytes], words: str, server: RetrievalServer
    ) -> None:
        """NVIDIA-NeMo/Gym #1351: a helper service was down, its empty answers became rewards, training went on."""
        server.answering = lambda body: answer
        remote = Remote(server.url, deadline=0.5)
        with pytest.raises(RetrieverFailure, match=words):
            remote.search("Oslo", 1)
        server.answering = good
        assert titles(remote.search("Oslo", 1)) == ["Oslo 1"]
        remote.close()

    def test_a_server_that_is_not_there(self) -> None:
        with retrieval_server() as gone:
            url = gone.url
        remote = Remote(url, deadline=0.5)
        with pytest.raises(RetrieverFailure, match="cannot be asked"):
            remote.search("Oslo", 1)
        remote.close()

    def test_a_server_that_never_answers(self, server: RetrievalServer) -> None:
        let_go = threading.Event()

        def hanging(body: dict[str, Any]) -> tuple[int, bytes]:
            let_go.wait(20)
            return good(body)

        server.answering = hanging
        remote = Remote(server.url, deadline=0.5)
        with pytest.raises(RetrieverFailure, match=r"no answer within 0\.5 s|cannot be asked"):
            remote.search("Oslo", 1)
        let_go.set()
        remote.close()


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class TestSources:
    def test_questions_of_ones_own_need_a_corpus_of_ones_own(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="AGENTGYM_SEARCHQA_RETRIEVER, too"):
            sources.open_questions({sources.QUESTIONS: str(tmp_path)})

    def test_a_folder_without_an_index_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="neither an http address nor a finished index"):
            sources.open_retriever({sources.RETRIEVER: str(tmp_path)})

    def test_an_address_names_a_server(self) -> None:
        remote = sources.open_retriever({sources.RETRIEVER: "http://127.0.0.1:9/"})
        assert remote.name == "retrieval server http://127.0.0.1:9/retrieve"
        remote.close()

"""A retrieval server to be good, slow, overloaded or wrong, and a small set of questions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gym_agents.tasks import scenario_row
from servers.searchqa.passages import Passage
from servers.searchqa.questions import Question, QuestionSet, make_splits
from servers.searchqa.retrieval import Retriever

Answering = Callable[[dict[str, Any]], tuple[int, bytes]]
"""From a request's body to a status and the body of the answer."""


def good(body: dict[str, Any]) -> tuple[int, bytes]:
    """Finds `k` passages for every query, each named for it."""
    return 200, json.dumps({"result": [found(query, body["topk"]) for query in body["queries"]]}).encode()


def found(query: str, k: int) -> list[dict[str, Any]]:
    contents = [f'"{query} {n}"\nText {n} on {query}.' for n in range(1, k + 1)]
    return [{"document": {"id": str(n), "contents": text}, "score": 1.0} for n, text in enumerate(contents)]


class RetrievalServer:
    """Where it is, how it answers, and what it was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answering: Answering = good
        self.bodies: list[dict[str, Any]] = []


@contextmanager
def retrieval_server() -> Iterator[RetrievalServer]:
    """Serves `/retrieve` on a free port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            shown.bodies.append(body)
            status, answer = shown.answering(body) if self.path == "/retrieve" else (404, b"")
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    shown = RetrievalServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Scripted(Retriever):
    """Finds the same passages for every query."""

    name = "scripted"

    def __init__(self, passages: Sequence[Passage]) -> None:
        self.passages = list(passages)
        self.queries: list[tuple[str, int]] = []

    def search(self, query: str, k: int) -> list[Passage]:
        self.queries.append((query, k))
        return self.passages[:k]


def questions(*asked: Question) -> QuestionSet:
    """These questions, all in `train`, numbered from 0."""
    items = {
        task.name: [n for n, one in enumerate(asked) if one.task == task.name]
        for task in scenario_row("searchqa").tasks
    }
    return QuestionSet(
        "searchqa-test", "test", dict(enumerate(asked)), make_splits({"train": items, "eval": {}})
    )

"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gym_agents import protocol as wire

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counted once a request, from its answers, so that a step pays next to nothing."""

    def __init__(self, sessions: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        open_sessions = Gauge("agentgym_sessions_open", "Sessions open now.", registry=registry)
        open_sessions.set_function(sessions)
        self._steps = Counter("agentgym_steps", "Steps answered.", registry=registry)
        self._started = Counter("agentgym_episodes_started", "Resets answered.", registry=registry)
        self._ended = Counter(
            "agentgym_episodes_ended",
            "Episodes that the world ended, by how.",
            ["outcome"],
            registry=registry,
        )
        self._failures = Counter(
            "agentgym_failures", "Calls that failed, by error code.", ["code"], registry=registry
        )
        seconds = Histogram(
            "agentgym_request_seconds",
            "From a request's last byte to its last answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.call_seconds = seconds.labels("call")
        self.batch_seconds = seconds.labels("batch")

    def count(self, answers: Iterable[wire.Answer]) -> None:
        """Counts the answers of a request."""
        steps = 0
        for answer in answers:
            if isinstance(answer, wire.Stepped):
                steps += 1
                if answer.terminated or answer.truncated:
                    self._ended.labels(_outcome(answer)).inc()
            elif isinstance(answer, wire.Started):
                self._started.inc()
            elif isinstance(answer, wire.Failed):
                self._failures.labels(answer.code).inc()
        self._steps.inc(steps)

    def text(self) -> bytes:
        """The exposition, in Prometheus's text format."""
        return generate_latest(self._registry)


def _outcome(answer: wire.Stepped) -> str:
    if answer.success:
        return "success"
    return "failure" if answer.terminated else "truncated"

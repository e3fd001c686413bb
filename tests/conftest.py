"""What holds for every test."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C works in the processes that tests start, even where a script runs the tests in its background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)

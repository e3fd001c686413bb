"""The process's one event loop, on a thread of its own, that all environments share.

A forked child starts without the thread, so it makes a loop of its own at its first use.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def spawn(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Starts the coroutine on the background loop."""
    return asyncio.run_coroutine_threadsafe(coroutine, _running_loop())


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs the coroutine on the background loop and waits for it; Ctrl-C cancels it."""
    future = spawn(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def start() -> None:
    """Starts the loop where it does not run yet."""
    _running_loop()


def _running_loop() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="gym_agents", daemon=True).start()
            atexit.register(_stop, _loop)
        return _loop


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what still runs, so that nothing is reported as pending at the interpreter's exit."""
    if loop is not _loop:
        return  # a forked child's copy: the thread is the parent's
    asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(timeout=5)
    loop.call_soon_threadsafe(loop.stop)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _forget() -> None:
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)

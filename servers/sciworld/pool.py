"""The simulators of a process: used again and again, and more of them loaded only when all are in use."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from servers.sciworld.jvm import Jvm
from servers.sciworld.simulator import Simulator

MAX_SIMULATORS = 64
"""Most simulators that one Java process is given memory for."""
HEAP = 256 + 16 * MAX_SIMULATORS
"""Megabytes of heap: a loaded simulator keeps about 12 alive, and a gold path needs room to be searched."""


class Pool:
    """Lends simulators, and replaces a Java process that died once one is needed again.

    Raises:
        BackendMissing: if no Java starts.
    """

    def __init__(self) -> None:
        self.jvm = Jvm(HEAP)
        self._idle = deque([Simulator(self.jvm)])
        self._growing = threading.Lock()

    @contextlib.contextmanager
    def lent(self) -> Iterator[Simulator]:
        """A simulator for the time of the `with` block; it may hold anything until it is loaded."""
        simulator = self._take()
        try:
            yield simulator
        finally:
            self._give_back(simulator)

    def _take(self) -> Simulator:
        return self._take_idle() or self._grow()

    def _take_idle(self) -> Simulator | None:
        with contextlib.suppress(IndexError):
            while True:
                simulator = self._idle.pop()
                if simulator.usable:
                    return simulator
                simulator.close()
        return None

    def _grow(self) -> Simulator:
        """Loads one more. They are loaded one after the other, so that the first can play meanwhile."""
        with self._growing:
            simulator = self._take_idle()
            if simulator is None:
                if not self.jvm.alive:
                    self.jvm.close()
                    self.jvm = Jvm(HEAP)
                simulator = Simulator(self.jvm)
            return simulator

    def _give_back(self, simulator: Simulator) -> None:
        if simulator.usable:
            self._idle.append(simulator)
        else:
            simulator.close()

    def close(self) -> None:
        """Ends the Java process, and lets go of the simulators that are not lent."""
        while self._idle:
            self._idle.pop().close()
        self.jvm.close()

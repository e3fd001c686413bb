"""The Java process: how it is started, whether it still lives, and connections to it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import tempfile
from collections.abc import Iterator

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError, Py4JJavaError

from gym_agents.errors import BackendMissing, SessionUnknown, WorldFailure

HASH_CODE = 2
"""HotSpot's mode in which all objects have one identity hash. The simulator lists things in the order of
these hashes, which by default hang on whatever the process has done before."""

OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",  # the same classes come again for every session; saves a quarter of that
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:+UnlockExperimentalVMOptions",
    f"-XX:hashCode={HASH_CODE}",
)
END_GRACE = 2.0
"""Seconds that a Java process is given to be gone, after its connection broke or its end was asked for."""

_MISSING = """\
SciWorld's simulator runs on Java, and none started here ({cause}). Install one, or let JAVA_HOME name one:
  Debian, Ubuntu:  sudo apt-get install default-jre-headless
  macOS:           brew install openjdk"""


class Jvm:
    """A Java process that ends with this one, however this one ends.

    Args:
        heap: most megabytes of its heap.

    Raises:
        BackendMissing: if no Java starts.
    """

    def __init__(self, heap: int) -> None:
        _silence_py4j()
        self._folder = tempfile.TemporaryDirectory(
            prefix="sciworld-"
        )  # the simulator writes a file where it runs
        try:
            self._port, self._token, self._process = launch_gateway(
                javaopts=[f"-Xmx{heap}m", *OPTIONS],
                java_path=None,
                die_on_exit=True,
                enable_auth=True,
                cwd=self._folder.name,
                return_proc=True,
            )
        except (OSError, ValueError) as error:  # there is no such program, or it named no port
            self._folder.cleanup()
            cause = error if isinstance(error, OSError) else "java ended at once"
            raise BackendMissing(_MISSING.format(cause=cause)) from error
        gateway = self.connect()
        java = gateway.jvm.java
        java.lang.System.setOut(java.io.PrintStream("/dev/null"))  # the simulator prints every step
        self.version = str(java.lang.System.getProperty("java.specification.version"))
        gateway.close(keep_callback_server=True)

    def connect(self) -> JavaGateway:
        """A gateway of one's own; whoever uses it one call at a time is served by one Java thread."""
        parameters = GatewayParameters(
            port=self._port, auth_token=self._token, enable_memory_management=False
        )
        return JavaGateway(gateway_parameters=parameters)

    @property
    def pid(self) -> int:
        """The process's id."""
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """`with` block around calls into Java.

        Raises:
            SessionUnknown: if the process has died, and what it held is lost.
            WorldFailure: if Java raised.
        """
        try:
            yield
        except Py4JJavaError as error:
            raise WorldFailure(f"The simulator failed: {error.java_exception.toString()}") from None
        except Py4JError as error:
            if self._ended():
                raise SessionUnknown("The simulator's process has died, and the session with it.") from error
            raise

    def close(self) -> None:
        """Ends the process, if it has not died, by the end of its input."""
        self._process.stdin.close()
        if not self._ended():
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _ended(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_GRACE)
        return not self.alive


def _silence_py4j() -> None:
    """A connection that breaks is an error that is raised; py4j would log it with its traceback as well."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_py4js)


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"

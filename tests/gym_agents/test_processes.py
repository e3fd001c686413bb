"""Scripts, workers and crashes: every process ends, with what went wrong on top, and leaves nobody behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

OPEN = """
import os, gymnasium, gym_agents
from gym_agents.horizon import make_vector_env
from gym_agents.launcher import local_server
envs = make_vector_env(8, "tests.fakes:SleepingWorld")
envs.reset(seed=0, options={"item": 0})
envs.step(["Action: add 0"] * 8)
print(local_server("tests.fakes:SleepingWorld").pid, flush=True)
"""
NOISE = ("Unclosed", "never retrieved", "Event loop", "was destroyed", "ResourceWarning")


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(pid: int, within: float = 5.0) -> bool:
    deadline = time.monotonic() + within
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def run_script(code: str) -> tuple[subprocess.CompletedProcess[str], int]:
    finished = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=60
    )
    return finished, int(finished.stdout.split()[0])


def test_a_script_that_raises_exits_with_its_own_error() -> None:
    """openai/gym #1542 and #1544: an exception with a vector environment open hung the process."""
    finished, server = run_script(OPEN + "raise RuntimeError('mine')")
    assert finished.returncode == 1
    assert finished.stderr.rstrip().endswith("RuntimeError: mine")
    assert not [word for word in NOISE if word in finished.stderr]
    assert gone(server)


def test_a_script_that_never_closes_exits_quietly() -> None:
    finished, server = run_script(OPEN)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert gone(server)


def test_a_server_that_died_first_is_not_started_again_to_say_goodbye() -> None:
    kill = "import signal; os.kill(local_server('tests.fakes:SleepingWorld').pid, signal.SIGKILL)"
    finished, server = run_script(OPEN + kill)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert gone(server)


def test_ctrl_c_during_a_step_ends_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPEN + "print('stepping', flush=True); envs.step(['Action: add 300'] * 8)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        assert script.stdout is not None
        server = int(script.stdout.readline())
        assert script.stdout.readline() == "stepping\n"
        time.sleep(0.5)
        script.send_signal(signal.SIGINT)
        try:
            _, errors = script.communicate(timeout=30)
        finally:
            script.kill()
    assert script.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert not [word for word in NOISE if word in errors]
    assert gone(server)


def test_kill_minus_nine_leaves_no_server() -> None:
    script = subprocess.Popen(
        [sys.executable, "-c", OPEN + "import time; time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    assert script.stdout is not None
    server = int(script.stdout.readline())
    assert alive(server)
    script.kill()
    script.communicate(timeout=10)
    assert gone(server)


def test_an_id_with_its_module_needs_no_import() -> None:
    """Farama-Foundation/Gymnasium #222: custom ids were unknown in spawned processes."""
    code = """
import gymnasium, pickle
env = gymnasium.make("gym_agents:AgentGym/TextCraft-v0")
observation, info = env.reset(seed=0)
again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
assert again.reset(seed=0)[0] == observation
print(info["item_id"])
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith("textcraft-sorted_")


@pytest.mark.parametrize(
    ("title", "context"),
    [("TextCraft", "spawn"), ("TextCraft", None), pytest.param("SciWorld", "spawn", marks=pytest.mark.slow)],
)
def test_gymnasiums_own_async_workers(title: str, context: str | None) -> None:
    """Farama-Foundation/Gymnasium #222, openai/gym #3191."""
    code = f"""
import gymnasium
def make():
    return gymnasium.make("gym_agents:AgentGym/{title}-v0")
if __name__ == "__main__":
    single = make()
    expected = single.reset(seed=1)[0]
    envs = gymnasium.vector.AsyncVectorEnv([make] * 2, context={context!r}, shared_memory=False)
    observations, _ = envs.reset(seed=0)
    assert observations[1] == expected
    for _ in range(3):
        envs.step(("Action: inventory",) * 2)
    envs.close()
    assert single.step("Action: inventory")[0]
    single.close()
    print("done")
"""
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "done"
    time.sleep(0.5)
    served = f"{title.lower()}.*--parent|py4j.GatewayServer"
    children = subprocess.run(["pgrep", "-f", served], capture_output=True, text=True)
    owners = [pid for pid in children.stdout.split() if _orphan(int(pid))]
    assert not owners


def _orphan(pid: int) -> bool:
    stat = subprocess.run(
        ["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.strip()
    return stat == "1"

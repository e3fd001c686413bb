"""The house rules: who may import whom, how long a function may be, and what no file may say."""

from __future__ import annotations

import ast
import configparser
import os
import re
import statistics
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import gymnasium
import pytest

import gym_agents  # noqa: F401 - registers the ids

ROOT = Path(__file__).parents[1]
PACKAGES = ("gym_agents", "servers", "trainers", "benchmarks")
PLACES = re.compile(r"/wor[k]/|\.\./share[d]|shared/referenc[e]|/roo[t]/|/hom[e]/")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

TASKS = {
    "WebArena": "Shopping CMS Map GitLab Reddit",
    "SearchQA": "NQ TriviaQA PopQA HotpotQA 2Wiki Musique Bamboogle",
    "TextCraft": "Depth1 Depth2 Depth3 Depth4",
    "BabyAI": "GoTo Pickup ActionObjDoor FindObj OneRoom SynthLoc",
    "SciWorld": "Measure TestConductivity Find ChemMix Lifespan",
}


def tracked() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def function_lengths() -> dict[str, int]:
    """Lines of every function of the packages, from `def` to its last line."""
    return {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, FUNCTIONS) and node.end_lineno is not None
    }


def test_import_contracts_hold() -> None:
    command = [Path(sys.executable).with_name("lint-imports")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", result.stdout)


def test_what_is_imported_is_declared() -> None:
    distributions = packages_distributions()
    declared = declared_distributions()
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(*PACKAGES)
        for name in imported(path) - sys.stdlib_module_names - set(PACKAGES)
        if declared.isdisjoint(normal(found) for found in distributions.get(name, ()))
    }
    assert missing == set()


def imported(path: Path) -> set[str]:
    """Top-level names of the packages that a module imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in names}


def declared_distributions() -> set[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listings = [config["options"]["install_requires"], *config["options.extras_require"].values()]
    lines = [line for listing in listings for line in listing.splitlines() if not line.startswith("#")]
    return {normal(re.split(r"[<>=;]", line)[0].strip()) for line in lines if line}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_all_ids_are_registered_and_no_more() -> None:
    wanted = {f"AgentGym/{scenario}-v0" for scenario in TASKS}
    wanted |= {
        f"AgentGym/{scenario}-{task}-v0" for scenario, tasks in TASKS.items() for task in tasks.split()
    }
    assert {name for name in gymnasium.registry if name.startswith("AgentGym/")} == wanted
    assert len(wanted) == 5 + 27


@pytest.mark.parametrize("path", sources(*PACKAGES), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_says_what_it_is_and_stays_short(path: Path) -> None:
    text = path.read_text("utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert len(text.splitlines()) <= 400


def test_functions_can_be_read_at_one_go() -> None:
    lengths = function_lengths()
    longest = sorted(lengths, key=lambda name: -lengths[name])[:10]
    listing = "\n".join(f"{lengths[name]:4} {name}" for name in longest)
    assert statistics.median(lengths.values()) <= 12, listing
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= 40, listing


def test_what_is_public_and_acts_is_documented() -> None:
    """A class without functions of its own is data, and its fields speak for it."""
    missing = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in sources(*PACKAGES)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, FUNCTIONS) or (isinstance(node, ast.ClassDef) and any_function(node))
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    assert missing == []


def any_function(node: ast.ClassDef) -> bool:
    return any(isinstance(part, FUNCTIONS) for part in node.body)


def test_no_file_speaks_of_a_place_outside_the_project() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in tracked()
        for match in PLACES.finditer(path.read_text("utf-8", errors="replace"))
    ]
    assert found == []


def test_readme_and_contributing_name_only_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"\bmake ([a-z-]+)", " ".join(re.findall(r"`+[^`]*`+", pages))))
    assert named
    assert named <= targets


@pytest.mark.parametrize(
    "page", [path for path in tracked() if path.suffix == ".md"], ids=lambda path: path.name
)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_ci_can_be_run() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)

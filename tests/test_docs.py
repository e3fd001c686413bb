"""What the pages show is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 2


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_of_the_readme_runs_without_a_warning(example: str) -> None:
    command = [sys.executable, "-W", "error", "-c", example]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_the_files_that_the_pages_name_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    packages = r"(?:gym_agents|servers|trainers|benchmarks|tests|docs)"
    named = {
        name for page in pages for name in re.findall(rf"`({packages}/[\w/.*]+)`", page.read_text("utf-8"))
    }
    assert len(named) > 20
    assert {name for name in named if not list(ROOT.glob(name.rstrip("/")))} == set()

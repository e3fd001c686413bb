"""Where things that are made once for a user are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The project's folder in the user's cache (`$XDG_CACHE_HOME`, else `~/.cache`); it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym"

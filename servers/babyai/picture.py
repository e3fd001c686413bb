"""A level as a PNG."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

TILE = 24
"""Side of one cell in pixels."""


def draw(level: Any) -> bytes:
    """The whole grid as Minigrid draws it, with the cells in view lit up."""
    file = io.BytesIO()
    Image.fromarray(level.get_frame(highlight=True, tile_size=TILE)).save(file, "PNG")
    return file.getvalue()

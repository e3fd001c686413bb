"""A level as a PNG, written without an imaging library."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

TILE = 24
"""Side of one cell in pixels."""


def draw(level: Any) -> bytes:
    """The whole grid as Minigrid draws it, with the cells in view lit up."""
    return png(level.get_frame(highlight=True, tile_size=TILE))


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Encodes `[height, width, 3]` bytes of red, green and blue (PNG specification, colour type 2)."""
    height, width, _ = pixels.shape
    unfiltered = np.zeros((height, 1 + 3 * width), np.uint8)  # each row starts with its filter, 0: none
    unfiltered[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(unfiltered.tobytes())) + _chunk(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

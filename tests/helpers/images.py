"""Image files and folders of them, small and made up, for tests."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(width: int, height: int, seed: int) -> Image.Image:
    """A colour picture of random blocks, unlike that of any other seed."""
    blocks = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(blocks).resize((width, height), Image.Resampling.BILINEAR)


def write_tree(root: Path, counts: dict[str, int], size: tuple[int, int] = (41, 37), first_seed: int = 0) -> Path:
    """Write so many PNG images into each folder, numbered from 000.png; a folder of 0 images is made empty."""
    seed = first_seed
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            noise(*size, seed).save(root / folder / f"{number:03d}.png")
            seed += 1
    return root


def png_of_claimed_size(width: int, height: int) -> bytes:
    """A PNG file whose header claims a size that its few pixels do not fill."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(11))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def write_bad_files(folder: Path) -> list[Path]:
    """A truncated, an empty and a text file, all named like photos."""
    whole = encode(noise(97, 61, 5), "JPEG")
    bad = {"bad_truncated.jpg": whole[: len(whole) // 2], "bad_empty.jpg": b"", "bad_text.jpg": b"<html>404</html>"}
    for name, content in bad.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in bad]

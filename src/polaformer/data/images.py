"""One conversion from any image file to the 8-bit RGB or grey picture that the network is fed.

Training, evaluation, prediction and `polaformer check-data` all read through `load_image`, so an image cannot look
different to two of them. What is done, in this order:

1. The first frame is taken (animated GIF, multi-page TIFF).
2. The EXIF orientation is applied: a phone photo stands upright.
3. Numbers are brought to 8 bits by the depth of their container, not by their own range:
   16-bit v -> 255 v / 65535, so a dark picture stays dark and a ramp keeps its middle.
4. Transparency is laid over white.
5. Colours become RGB, or ITU-R 601 luma for one channel. CMYK is inverted where the file stores it plainly;
   embedded colour profiles are not applied.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from .names import printable

# fmt: off
IMAGE_EXTENSIONS = (
    ".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tga", ".tif",
    ".tiff", ".webp",
)
# fmt: on
"""File name endings taken for images; compared without regard to case."""

CONVERTIBLE_EXTENSIONS = (
    ".arw",
    ".cr2",
    ".cr3",
    ".dng",
    ".heic",
    ".heif",
    ".jxl",
    ".nef",
    ".orf",
    ".psd",
    ".raf",
    ".rw2",
)
"""Endings of pictures that are not read, but that other programs save as JPEG or PNG."""


class _Unusable(ValueError):
    """A file that is whole, yet no image for us; its text is the reason."""


class ImageError(ValueError):
    """An image file that cannot be used.

    Args:
        path: the file, or "<bytes>".
        reason: what is wrong with it, one line.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


def is_image_name(name: str) -> bool:
    """Whether a file name ends like an image and is not hidden."""
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGE_EXTENSIONS


def load_image(source: str | os.PathLike[str] | bytes, in_chans: int = 3) -> Image.Image:
    """Read an image of any kind into 8-bit RGB or grey, upright.

    Args:
        source: a file's path, or the encoded bytes themselves.
        in_chans: 3 for mode "RGB", 1 for mode "L".

    Returns:
        The picture, fully decoded; the file is closed.

    Raises:
        ImageError: missing, no regular file, empty, truncated, not an image, without pixels, larger than Pillow's limit
            for decompression bombs (about 179 megapixels), or floating point out of the documented ranges.
        ValueError: in_chans is neither 1 nor 3.
    """
    if in_chans not in (1, 3):
        raise ValueError(f"in_chans must be 1 (grey) or 3 (RGB), got {in_chans}")
    name = "<bytes>" if isinstance(source, bytes) else os.fspath(source)
    try:
        _check_content(source)
        return _decode(source, "RGB" if in_chans == 3 else "L")
    except MemoryError:
        raise  # says nothing about the file
    except Exception as error:  # Pillow's decoders raise a dozen types on damaged files
        raise ImageError(name, _reason(error)) from error


def _check_content(source: str | os.PathLike[str] | bytes) -> None:
    if isinstance(source, bytes):
        size = len(source)
    else:
        if os.path.islink(source) and not os.path.exists(source):
            raise _Unusable("is a link that leads to no file")
        status = os.stat(source)
        if stat.S_ISDIR(status.st_mode):
            raise _Unusable("is a folder")
        if not stat.S_ISREG(status.st_mode):  # opening a named pipe would wait for a writer for ever
            raise _Unusable("is no regular file")
        size = status.st_size
    if size == 0:
        raise _Unusable("is empty (0 bytes)")


def _decode(source: str | os.PathLike[str] | bytes, mode: str) -> Image.Image:
    with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
        image.load()
        picture = ImageOps.exif_transpose(image)
    if picture.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        picture = ImageChops.invert(picture)  # Pillow takes every CMYK JPEG for Adobe's inverted kind
    if picture.mode in _TO_UNIT:
        unit = np.clip(_TO_UNIT[picture.mode](np.asarray(picture)), 0.0, 1.0)
        picture = Image.fromarray(np.rint(255.0 * unit).astype(np.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert(mode)


def _unit_from_16_bit(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float64) / 65535.0


def _unit_from_32_bit(pixels: np.ndarray) -> np.ndarray:
    # Pillow hands many 16-bit files over as 32-bit integers; only larger values show a real 31-bit file.
    return pixels.astype(np.float64) / (65535.0 if pixels.max() <= 65535 else 2147483647.0)


def _unit_from_float(pixels: np.ndarray) -> np.ndarray:
    if not np.isfinite(pixels).all():
        raise _Unusable("holds NaN or infinite values")
    for full_scale in (1.0, 255.0, 65535.0):
        if pixels.max() <= full_scale:
            return pixels.astype(np.float64) / full_scale
    raise _Unusable(f"float image must stay within 0..1, 0..255 or 0..65535, got values up to {pixels.max():g}")


_TO_UNIT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "I;16": _unit_from_16_bit,
    "I;16L": _unit_from_16_bit,
    "I;16B": _unit_from_16_bit,
    "I;16N": _unit_from_16_bit,
    "I": _unit_from_32_bit,
    "F": _unit_from_float,
}


def _reason(error: Exception) -> str:
    """Say in one line what is wrong, without repeating the path."""
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, PermissionError):
        return "may not be read (permission denied)"
    if isinstance(error, UnidentifiedImageError):
        return "is no image in a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"is too large, maybe a decompression bomb: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, _Unusable):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, EOFError) or "truncated" in text.lower():
        return "is cut short: the file ends within the image"
    return f"is damaged ({text or type(error).__name__})"

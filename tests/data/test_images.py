import os
import pickle
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers.images import encode, noise, png_of_claimed_size
from PIL import Image

from polaformer.data.images import ImageError, is_image_name, load_image

RED = (255, 0, 0)
WHITE = (255, 255, 255)


def _left_half(mode: str, background: object, foreground: object) -> Image.Image:
    """A picture, 7 wide and 5 high, whose three left columns have the foreground colour."""
    image = Image.new(mode, (7, 5), background)  # type: ignore[arg-type]
    image.paste(foreground, (0, 0, 3, 5))  # type: ignore[arg-type]
    return image


def _palette(transparent: bool) -> bytes:
    image = Image.new("P", (7, 5), 1)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(0, (0, 0, 3, 5))
    return encode(image, "PNG", **({"transparency": 1} if transparent else {}))


def _without_adobe_marker(jpeg: bytes) -> bytes:
    start = jpeg.index(b"\xff\xee")
    (length,) = struct.unpack(">H", jpeg[start + 2 : start + 4])
    return jpeg[:start] + jpeg[start + 2 + length :]


# name: (file, colour of the left half, colour of the right half)
FILES = {
    "1": (encode(_left_half("1", 1, 0), "PNG"), (0, 0, 0), WHITE),
    "L": (encode(_left_half("L", 200, 50), "PNG"), (50,) * 3, (200,) * 3),
    "LA": (encode(_left_half("LA", (10, 0), (60, 255)), "PNG"), (60,) * 3, WHITE),
    "P": (_palette(transparent=False), RED, (0, 0, 255)),
    "P with transparency": (_palette(transparent=True), RED, WHITE),
    "RGB": (encode(_left_half("RGB", (1, 2, 3), RED), "PNG"), RED, (1, 2, 3)),
    "RGB with transparency": (encode(_left_half("RGB", (1, 2, 3), RED), "PNG", transparency=(1, 2, 3)), RED, WHITE),
    "RGBA": (encode(_left_half("RGBA", (9, 9, 9, 0), (*RED, 255)), "PNG"), RED, WHITE),
    "RGBA half opaque": (encode(_left_half("RGBA", (0, 0, 0, 51), (*RED, 255)), "PNG"), RED, (204,) * 3),
    "CMYK TIFF": (encode(_left_half("CMYK", (0, 0, 0, 0), (0, 255, 255, 0)), "TIFF"), RED, WHITE),
    "I;16": (encode(_left_half("I;16", 65535, 257 * 50), "PNG"), (50,) * 3, WHITE),
    "I": (encode(_left_half("I", 65535, 257 * 50), "TIFF"), (50,) * 3, WHITE),
    "I of 31 bits": (encode(_left_half("I", 2**31 - 1, 2**30), "TIFF"), (128,) * 3, WHITE),
    "F to 1": (encode(_left_half("F", 1.0, 0.2), "TIFF"), (51,) * 3, WHITE),
    "F to 255": (encode(_left_half("F", 255.0, 51.0), "TIFF"), (51,) * 3, WHITE),
    "F to 65535": (encode(_left_half("F", 65535.0, 51 * 257.0), "TIFF"), (51,) * 3, WHITE),
    "F below 0": (encode(_left_half("F", 1.0, -0.5), "TIFF"), (0, 0, 0), WHITE),
}


@pytest.mark.parametrize("name", FILES)
def test_each_mode_has_its_colours_in_rgb_and_grey(name, tmp_path):
    content, left, right = FILES[name]
    path = tmp_path / "image"
    path.write_bytes(content)
    colour = load_image(path)
    assert (colour.mode, colour.size) == ("RGB", (7, 5))
    assert colour.getpixel((1, 2)) == left
    assert colour.getpixel((5, 2)) == right
    grey = load_image(content, in_chans=1)
    assert (grey.mode, grey.size) == ("L", (7, 5))
    for place, rgb in ((1, 2), left), ((5, 2), right):
        assert grey.getpixel(place) == pytest.approx(np.dot(rgb, (0.299, 0.587, 0.114)), abs=1)


def test_cmyk_jpeg_as_adobe_writes_it_keeps_red():
    content = encode(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95)
    assert b"Adobe" in content
    assert load_image(content).getpixel((7, 7)) == pytest.approx(RED, abs=3)


def test_cmyk_jpeg_stored_plainly_keeps_red():
    # Pillow inverts while writing, so the inverse of red in, red in plain numbers in the file.
    content = _without_adobe_marker(encode(Image.new("CMYK", (16, 16), (255, 0, 0, 255)), "JPEG", quality=95))
    assert b"Adobe" not in content
    assert load_image(content).getpixel((7, 7)) == pytest.approx(RED, abs=3)


def test_16_bit_ramp_keeps_its_middle_and_its_steps():
    ramp = np.linspace(0, 65535, 256 * 3, dtype=np.uint16).reshape(3, 256)
    values = np.asarray(load_image(encode(Image.fromarray(ramp), "PNG"), in_chans=1)) / 255.0
    assert values.mean() == pytest.approx(0.5, abs=0.01)
    assert len(np.unique(values)) > 200


def test_dark_16_bit_image_stays_dark():
    dark = np.full((5, 7), 655, dtype=np.uint16)
    assert load_image(encode(Image.fromarray(dark), "PNG")).getpixel((3, 3)) == (3, 3, 3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_all_orientations_give_the_same_picture(orientation):
    upright = noise(23, 17, 1)
    # How each tag's camera was held, by the EXIF standard: the stored rows and columns that undo it.
    stored = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[::-1],
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[:, ::-1],
    }[orientation](np.asarray(upright))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(Image.fromarray(np.ascontiguousarray(stored)), "PNG", exif=exif)
    np.testing.assert_array_equal(np.asarray(load_image(content)), np.asarray(upright))


@pytest.mark.parametrize("kind", ["GIF", "TIFF"])
def test_first_frame_is_taken(kind):
    frames = [Image.new("L", (7, 5), value) for value in (40, 90, 140)]
    content = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    assert load_image(content).getpixel((3, 3)) == (40, 40, 40)


def _truncated(kind: str) -> bytes:
    content = encode(noise(97, 61, 2), kind)
    return content[: len(content) // 2]


def _broken_png() -> bytes:
    content = encode(noise(97, 61, 2), "PNG")
    start = content.index(b"IDAT") + 4  # of the compressed pixels
    return content[:start] + bytes(20) + content[start + 20 :]


BAD_FILES = {
    "truncated jpg": (_truncated("JPEG"), "is cut short: the file ends within the image$"),
    "truncated png": (_truncated("PNG"), "is cut short: the file ends within the image$"),
    "empty": (b"", r"is empty \(0 bytes\)"),
    "text as jpg": (b"<html>not found</html>", "no image in a known format"),
    "no pixels": (png_of_claimed_size(0, 5), "no image in a known format"),
    "changed bytes": (_broken_png(), r"is damaged \(broken data stream when reading image file\)$"),
    "bomb": (png_of_claimed_size(20_011, 20_021), "decompression bomb"),
    "float with nan": (encode(Image.new("F", (7, 5), float("nan")), "TIFF"), "NaN or infinite"),
    "float out of range": (encode(Image.new("F", (7, 5), 1e6), "TIFF"), "0..65535, got values up to 1e"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_file_is_named_with_the_reason_in_one_line(name, tmp_path):
    content, reason = BAD_FILES[name]
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=reason) as caught:
        load_image(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert str(path) not in caught.value.reason
    with pytest.raises(ImageError, match=reason) as caught:
        load_image(content)
    assert caught.value.path == "<bytes>"


def test_missing_file_folder_and_forbidden_file(tmp_path):
    with pytest.raises(ImageError, match="does not exist"):
        load_image(tmp_path / "none.png")
    with pytest.raises(ImageError, match="is a folder"):
        load_image(tmp_path)
    path = tmp_path / "secret.png"
    path.write_bytes(encode(noise(5, 7, 3), "PNG"))
    path.chmod(0)
    if not os.access(path, os.R_OK):  # root may read everything
        with pytest.raises(ImageError, match="permission denied"):
            load_image(path)


def test_in_chans_is_checked():
    with pytest.raises(ValueError, match=r"in_chans must be 1 \(grey\) or 3 \(RGB\), got 4"):
        load_image(encode(noise(5, 7, 3), "PNG"), in_chans=4)


def test_image_error_survives_pickling():
    error = pickle.loads(pickle.dumps(ImageError("a/b.jpg", "is empty")))
    assert (str(error), error.path, error.reason) == ("a/b.jpg: is empty", "a/b.jpg", "is empty")


def test_image_names():
    assert all(map(is_image_name, ["a.jpg", "a.JPG", "a.Jpeg", "a.b.PNG", "a.tiff", "a.WEBP", "a.jfif"]))
    assert not any(map(is_image_name, ["a", "a.txt", "._a.jpg", ".jpg", "Thumbs.db", "a.jpg.part"]))


@pytest.fixture
def odd_files(tmp_path):
    """Paths that are no regular files, and a part of the reason."""
    os.mkfifo(tmp_path / "pipe.png")
    os.symlink(tmp_path / "self.png", tmp_path / "self.png")
    os.symlink(tmp_path / "nowhere", tmp_path / "broken.png")
    (tmp_path / "file.txt").write_text("x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.png"))
    return {
        tmp_path / "pipe.png": "is no regular file",
        tmp_path / "socket.png": "is no regular file",
        Path(os.devnull): "is no regular file",
        tmp_path / "self.png": "is a link that leads to no file",
        tmp_path / "broken.png": "is a link that leads to no file",
        tmp_path / "file.txt" / "x.png": "cannot be read: Not a directory",
        tmp_path / f"{'x' * 300}.png": "cannot be read: File name too long",
    }


def test_paths_that_are_no_regular_files_are_never_opened(odd_files):
    for path, reason in odd_files.items():
        with pytest.raises(ImageError) as caught:
            load_image(path)
        assert caught.value.reason == reason

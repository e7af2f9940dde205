import io
import logging
import sys
import warnings

import pytest
from PIL import Image

from polaformer.cli.messages import bars_on_stderr, plain_messages
from polaformer.data.images import ImageError, load_image


def test_log_lines_and_warnings_are_plain__and_only_inside(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("polaformer")
    handlers = list(logger.handlers)
    with plain_messages("polaformer fit"):
        warnings.simplefilter("always")
        logger.info("2 classes")
        warnings.warn("no images\nof 'cat'", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "2 classes\npolaformer fit: warning: no images of 'cat'\n"
    assert logger.handlers == handlers
    with pytest.warns(UserWarning, match="outside"):
        warnings.warn("outside", UserWarning, stacklevel=1)


def test_pillow_does_not_warn_of_files_it_does_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.BytesIO()
    Image.new("L", (31, 17)).save(stream, "TIFF")
    cut = stream.getvalue()[:50]  # within the list of tags at the start
    with pytest.warns(UserWarning, match="Corrupt EXIF data"), pytest.raises(ImageError):
        load_image(cut)
    with plain_messages("polaformer predict"), pytest.raises(ImageError):
        load_image(cut)  # pytest makes errors of warnings
    assert capsys.readouterr().err == ""


def test_bars_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with bars_on_stderr():
        sys.stdout.write("50%")
    sys.stdout.write("result")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("result", "50%")

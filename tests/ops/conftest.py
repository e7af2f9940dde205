"""The operator by every backend that computes on the CPU."""

import functools

import pytest

from polaformer import list_backends, pola_attention
from polaformer.ops import native

VARIANTS = ["reference", "tiled", "native-avx512", "native-avx2", "native-plain"]


@pytest.fixture(params=VARIANTS)
def attend(request, monkeypatch):
    """`pola_attention` by one backend, for `native` with one of its instruction sets; skipped where it cannot run."""
    backend, _, instructions = request.param.partition("-")
    reason = {status.name: status.reason for status in list_backends()}[backend]
    if reason:
        pytest.skip(reason)
    if instructions:
        library = native.load_library()
        if instructions not in library.instruction_sets:
            pytest.skip(f"this processor has no {instructions}")
        monkeypatch.setattr(library, "place", library.instruction_sets.index(instructions))
    return functools.partial(pola_attention, backend=backend)

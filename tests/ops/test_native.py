"""The compiled kernel: same bits for any number of threads, memory, views read in place, life without it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polaformer import list_backends, pola_attention
from polaformer.ops import native

pytestmark = pytest.mark.skipif(native.unusable_reason() is not None, reason=str(native.unusable_reason()))

# Few long heads are cut in parts, many short ones are not; the last needs several tiles of a part.
SHAPES = [(1, 1, 4099, 5003, 19, 23), (2, 3, 1031, 701, 17, 9), (5, 7, 13, 11, 31, 37), (1, 2, 20011, 20021, 5, 3)]


def make_inputs(batch, heads, queries, keys, channels, values, dtype=torch.float32):
    generator = torch.Generator().manual_seed(queries)
    q, k, v, grad = (
        torch.randn(batch, heads, n, c, generator=generator).to(dtype)
        for n, c in ((queries, channels), (keys, channels), (keys, values), (queries, values))
    )
    power = 1 + 4 * torch.rand(heads, channels, generator=generator)
    mask = torch.rand(batch, keys, generator=generator) < 0.3
    return q, k, v, power, mask, grad


def both_passes(q, k, v, power, mask, grad):
    return native.forward(q, k, v, power, mask, 1e-6), *native.backward(grad, q, k, v, power, mask, 1e-6)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_results_do_not_depend_on_the_number_of_threads(shape, dtype, threads):
    inputs = make_inputs(*shape, dtype=dtype)
    threads(1)
    expected = both_passes(*inputs)
    for count in (2, 3, 8):
        threads(count)
        assert all(torch.equal(x, y) for x, y in zip(both_passes(*inputs), expected))


def test_without_an_openmp_runtime_it_starts_threads_of_its_own(threads, monkeypatch):
    inputs = make_inputs(*SHAPES[1])
    threads(3)
    expected = both_passes(*inputs)
    monkeypatch.setattr(native, "_openmp_of_torch", lambda: None)
    native.load_library.cache_clear()
    try:
        assert all(torch.equal(x, y) for x, y in zip(both_passes(*inputs), expected))
    finally:
        monkeypatch.undo()
        native.load_library.cache_clear()
        native.load_library()


def test_calls_from_several_python_threads_do_not_meet():
    cases = [make_inputs(*shape) for shape in SHAPES[1:3]] * 3
    expected = [both_passes(*case) for case in cases]
    with ThreadPoolExecutor(len(cases)) as pool:
        results = list(pool.map(lambda case: both_passes(*case), cases))
    for result, wanted in zip(results, expected):
        assert all(torch.equal(x, y) for x, y in zip(result, wanted))


class Allocated(TorchDispatchMode):
    """Bytes of every tensor that is made while it is on."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.bytes += result.untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("step", ["forward", "backward"])
def test_extra_memory_does_not_grow_with_the_tokens(step, threads):
    threads(2)
    extra = []
    for tokens in (20011, 160073):
        fused = torch.randn(1, tokens, 3, 2, 13).bfloat16()
        q, k, v = fused.permute(2, 0, 3, 1, 4)
        power = torch.full((2, 13), 2.5)
        own = tokens * 2 * 13 * 2
        with Allocated() as allocated:
            if step == "forward":
                native.forward(q, k, v, power, None, 1e-6)
            else:
                native.backward(v, q, k, v, power, None, 1e-6)
        extra.append(allocated.bytes - own * (1 if step == "forward" else 3))
    assert extra[0] == extra[1]
    assert extra[0] < 4 * 2**20


def test_a_mask_of_any_stride_and_expanded_inputs_are_read_as_they_are():
    q, k, v, power, mask, grad = make_inputs(3, 2, 37, 41, 7, 5)
    wide = torch.stack([mask, ~mask], dim=-1)[..., 0].mT.contiguous().mT
    q, k = q[:1].expand(3, 2, 37, 7), k[:, :1].expand(3, 2, 41, 7)
    assert not wide.is_contiguous()
    expected = both_passes(q.contiguous(), k.contiguous(), v, power, mask, grad)
    assert all(torch.equal(x, y) for x, y in zip(both_passes(q, k, v, power, wide, grad), expected))


def test_negative_views_have_their_sign():
    q, k, v, power, _, _ = make_inputs(1, 2, 5, 7, 3, 4)
    flipped = torch.complex(torch.zeros_like(q), -q).conj().imag
    assert flipped.is_neg()
    result = pola_attention(flipped, k, v, power, backend="native")
    torch.testing.assert_close(result, pola_attention(q, k, v, power, backend="native"))


def test_without_the_library_other_backends_work(monkeypatch):
    def absent():
        raise OSError("it was not built")

    inputs = make_inputs(1, 2, 5, 7, 3, 4)[:4]
    expected = pola_attention(*inputs, backend="reference")
    monkeypatch.setattr(native, "load_library", absent)
    native.unusable_reason.cache_clear()
    try:
        status = list_backends()[0]
        assert (status.name, status.usable, status.reason) == ("native", False, "it was not built")
        torch.testing.assert_close(pola_attention(*inputs), expected)
        with pytest.raises(ValueError, match="backend 'native' cannot be used: it was not built"):
            pola_attention(*inputs, backend="native")
    finally:
        monkeypatch.undo()
        native.unusable_reason.cache_clear()


def test_dtypes_that_the_kernel_lacks_go_to_another_backend():
    q, k, v, power = make_inputs(1, 2, 5, 7, 3, 4)[:4]
    small = v.to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="v must be float32, bfloat16, float16 or float64"):
        pola_attention(q, k, small, power, backend="native")
    assert pola_attention(q, k, small, power).dtype is torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["fp64", "fp32"])
@pytest.mark.parametrize("instructions", native.load_library().instruction_sets if not native.unusable_reason() else [])
@pytest.mark.parametrize(
    "shape", [(2, 3, 61, 47, 13, 37), (3, 1, 1, 64, 5, 1), (1, 2, 64, 1, 33, 3), (1, 1, 7, 5, 3, 97)]
)
def test_both_orders_of_the_products_agree(shape, instructions, dtype, monkeypatch):
    library = native.load_library()
    monkeypatch.setattr(library, "place", library.instruction_sets.index(instructions))
    inputs = make_inputs(*shape, dtype=dtype)
    results = {}
    for order in ("linear", "quadratic"):
        monkeypatch.setattr(library, "order", order)
        results[order] = both_passes(*inputs)
    limit = 1e-12 if dtype is torch.float64 else 1e-5
    assert not torch.equal(results["linear"][0], results["quadratic"][0])
    for x, y in zip(*results.values()):
        # With one key the gradients of q and k are what cancellation leaves: compare with the size of their terms.
        torch.testing.assert_close(x, y, rtol=0, atol=limit * max(1.0, y.abs().max().item()))


def test_a_library_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(native, "_PROBLEM_WORDS", 3)
    native.load_library.cache_clear()
    try:
        with pytest.raises(OSError, match="was built from another version of polaformer; install polaformer again"):
            native.load_library()
    finally:
        native.load_library.cache_clear()

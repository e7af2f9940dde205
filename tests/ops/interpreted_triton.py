"""The Triton kernels' numbers, in Triton's interpreter.

test_triton.py runs this file in processes of their own, with TRITON_INTERPRET=1: the interpreter must be asked for before
triton is first imported, and then it stays for the whole process.
"""

import contextlib

import pytest
import torch
from helpers.quadratic import quadratic_attention

from polaformer import pola_attention
from polaformer.ops import reference, triton
from polaformer.ops.triton import configs
from polaformer.ops.triton.configs import Config

# numpy computes what the GPU would, but warns of the infinities and NaN on the way.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

LIMITS = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
DTYPES = pytest.mark.parametrize("dtype", LIMITS, ids=["fp32", "bf16", "fp16"])
NAMES = ["q", "k", "v", "power"]


def make_inputs(batch, heads, queries, keys, channels, values, *, scale=1.0, one_signed=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch + queries + keys)
    q = torch.randn(batch, heads, queries, channels, generator=generator) * scale
    k = torch.randn(batch, heads, keys, channels, generator=generator) * scale
    v = torch.randn(batch, heads, keys, values, generator=generator)
    power = 1 + 4 * torch.rand(heads, channels, generator=generator)
    if one_signed:
        q, k = q.abs(), k.abs()
    return [q.to(dtype), k.to(dtype), v.to(dtype), power]


def attend(q, k, v, power, **options):
    return pola_attention(q, k, v, power, backend="triton", **options)


def gradients(function, inputs, grad):
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = function(*leaves)
    return output.detach(), torch.autograd.grad(output, leaves, grad)


def check(inputs, *, mask=None, limit=2e-5, grad_scale=1.0, floor=0.0):
    """Compare output and gradients with the quadratic definition in float64, and return them.

    floor: what counts as the size of a gradient at least, where terms of that size cancel.
    """
    q, v = inputs[0], inputs[2]
    grad = torch.randn(*q.shape[:3], v.shape[3], generator=torch.Generator().manual_seed(5)) * grad_scale
    grad = grad.to(v.dtype)
    output, grads = gradients(lambda *x: attend(*x, key_padding_mask=mask), inputs, grad)
    expected, expected_grads = gradients(
        lambda q, k, v, p: quadratic_attention(q, k, v, p[:, None], mask), [x.double() for x in inputs], grad.double()
    )
    assert output.dtype is v.dtype
    assert output.isfinite().all()
    assert relative(output, expected, torch.finfo(output.dtype).tiny) <= limit
    for name, x, actual, wanted in zip(NAMES, inputs, grads, expected_grads):
        assert actual.dtype is x.dtype
        assert actual.shape == x.shape
        assert actual.isfinite().all(), name
        assert relative(actual, wanted, max(floor, torch.finfo(x.dtype).tiny)) <= 10 * limit, name
    return output, grads


def relative(actual, expected, floor):
    return ((actual.double() - expected).abs().max() / expected.abs().max().clamp(min=floor)).item()


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of 16 everywhere, so that small tensors take several steps of every loop."""
    monkeypatch.setattr(configs, "CONFIGS", (Config(16, 16, 16, 1, 1),))
    monkeypatch.setattr(configs, "LARGEST_ROWS", 16)


class TestLoops:
    """Each shape takes more than one step of at least one loop; every size differs."""

    @pytest.mark.parametrize(
        "sizes",
        [
            (2, 1, 35, 5, 3, 7),  # blocks of queries
            (1, 2, 5, 71, 3, 7),  # chunks and blocks of keys
            (1, 1, 17, 19, 51, 7),  # blocks of channels of q and k
            (1, 1, 18, 19, 3, 51),  # blocks of channels of v
            (1, 1, 19, 37, 33, 35),  # all of them
            (3, 2, 1, 23, 5, 1),  # one query, one value channel
        ],
        ids=str,
    )
    def test_tiny_blocks(self, tiny_blocks, sizes):
        check(make_inputs(*sizes))

    @pytest.mark.parametrize(
        "sizes",
        [
            (1, 1, 33, 517, 5, 6),
            (1, 1, 37, 19, 65, 3),
            (2, 1, 11, 35, 129, 70),
            (1, 1, 5, 35, 192, 48),
            (1, 1, 3, 5, 256, 131),
        ],
        ids=str,
    )
    def test_default_blocks(self, sizes):
        check(make_inputs(*sizes))

    @pytest.mark.parametrize("channels", [1, 3, 15, 16, 48, 80, 96])
    def test_any_number_of_channels(self, channels):
        check(make_inputs(1, 2, 7, 11, channels, 48 if channels < 16 else 20))

    def test_one_key(self, tiny_blocks):
        # All but ε cancels in the gradients of q, k and power.
        check(make_inputs(1, 2, 33, 1, 5, 6), floor=1.0)

    @pytest.mark.parametrize("config", configs.CONFIGS, ids=str)
    def test_every_config(self, monkeypatch, config):
        monkeypatch.setattr(configs, "CONFIGS", (config,))
        check(make_inputs(1, 1, 35, 67, 18, 19))

    def test_equals_the_reference(self, tiny_blocks):
        q, k, v, power = make_inputs(1, 2, 19, 37, 17, 21)
        grad = torch.randn(1, 2, 19, 21, generator=torch.Generator().manual_seed(1))
        output, grads = gradients(attend, (q, k, v, power), grad)
        torch.testing.assert_close(output, reference.forward(q, k, v, power, None, 1e-6), rtol=2e-5, atol=2e-6)
        for x, y in zip(grads, reference.backward(grad, q, k, v, power, None, 1e-6)):
            assert relative(x, y.double(), 0) <= 2e-5

    def test_repeats_bit_for_bit(self, tiny_blocks):
        inputs = make_inputs(1, 2, 19, 71, 5, 7)
        grad = torch.ones(1, 2, 19, 7)
        first, again = (gradients(attend, inputs, grad) for _ in range(2))
        assert torch.equal(first[0], again[0])
        assert all(torch.equal(x, y) for x, y in zip(first[1], again[1]))


class TestValues:
    @DTYPES
    @pytest.mark.parametrize("one_signed", [False, True], ids=["two-signed", "one-signed"])
    @pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0, 16.0, 1e4])
    def test_scales(self, scale, one_signed, dtype):
        inputs = make_inputs(1, 1, 19, 37, 11, 8, scale=scale, one_signed=one_signed, dtype=dtype)
        # Gradients of q and k go as 1 / scale, those of v as 1, and float16 can store neither end.
        check(inputs, limit=LIMITS[dtype], grad_scale=scale**0.5)

    @DTYPES
    def test_long_sums(self, dtype):
        check(make_inputs(1, 1, 5, 1201, 7, 6, dtype=dtype), limit=LIMITS[dtype])

    def test_a_large_loss_scale_stays_finite(self):
        # The opposite stream is exactly 0, and its ε alone is e^-80 in the scale of these queries.
        check(make_inputs(1, 1, 257, 7, 3, 4, scale=1e4, one_signed=True), grad_scale=65536)

    @DTYPES
    @pytest.mark.parametrize(
        "case", ["zero q", "zero query rows", "zero k", "zero key channel", "constant keys", "negative"]
    )
    def test_degenerate_inputs(self, case, dtype):
        q, k, v, power = make_inputs(1, 2, 7, 11, 5, 4)
        if case == "zero q":
            q = torch.zeros_like(q)
        elif case == "zero query rows":
            q[:, :, ::3] = 0
        elif case == "zero k":
            k = torch.zeros_like(k)
        elif case == "zero key channel":
            k[..., 2] = 0
            q[..., 2] = 1e4  # must not push the other channels of the query below the smallest number
        elif case == "constant keys":
            k = torch.full_like(k, 0.7)
        elif case == "negative":
            q, k = -q.abs(), -k.abs()
        # Of constant keys all queries make the same mean: their gradients are what is left of terms of size 1.
        floor = 1.0 if case == "constant keys" else 0.0
        check([q.to(dtype), k.to(dtype), v.to(dtype), power], limit=LIMITS[dtype], floor=floor)

    @pytest.mark.parametrize("p", [0.5, 1.0, 3.0])
    def test_gradients_at_zero_are_zero(self, p):
        q, k, v, _ = make_inputs(1, 1, 3, 5, 3, 4)
        q[..., 0], k[..., 1, 1] = 0, 0
        _, grads = check([q, k, v, torch.full((1, 3), p)])
        assert (grads[0][..., 0] == 0).all()
        assert (grads[1][..., 1, 1] == 0).all()

    def test_nan_reaches_the_output(self):
        q, k, v, power = make_inputs(1, 1, 3, 5, 2, 4)
        q[0, 0, 1, 0] = torch.nan
        output = attend(q, k, v, power)
        assert output[0, 0, 1].isnan().all()
        assert output[0, 0, [0, 2]].isfinite().all()
        k[0, 0, 4, 1] = torch.nan
        assert attend(q, k, v, power).isnan().all()


class TestMask:
    def test_masked_keys(self, tiny_blocks):
        mask = torch.rand(3, 101, generator=torch.Generator().manual_seed(2)) < 0.4
        mask[1, :70] = True  # whole chunks without a key
        check(make_inputs(3, 1, 5, 101, 7, 6), mask=mask)

    def test_no_valid_key_gives_zero(self):
        mask = torch.zeros(2, 11, dtype=torch.bool)
        mask[1] = True
        output, grads = check(make_inputs(2, 3, 7, 11, 5, 4), mask=mask)
        assert (output[1] == 0).all()
        assert all((x[1] == 0).all() for x in grads[:3])

    def test_masked_values_do_not_matter(self):
        q, k, v, power = make_inputs(2, 3, 7, 11, 5, 4)
        mask = torch.zeros(2, 22, dtype=torch.bool)
        mask[:, [1, 6, 20]] = True
        mask = mask[:, ::2]  # strided, and odd columns out of it
        padded = mask[:, None].expand(2, 3, 11)
        grad = torch.ones(2, 3, 7, 4)
        output, grads = gradients(lambda *x: attend(*x, key_padding_mask=mask), [q, k, v, power], grad)
        k[padded], v[padded] = 1e4, torch.nan
        output_nan, grads_nan = gradients(lambda *x: attend(*x, key_padding_mask=mask), [q, k, v, power], grad)
        assert torch.equal(output, output_nan)
        assert all(torch.equal(x, y) for x, y in zip(grads, grads_nan))
        assert all((x[padded] == 0).all() for x in grads_nan[1:3])


class TestArguments:
    def test_views_of_a_fused_projection(self):
        fused = torch.randn(2, 13, 3, 3, 5, generator=torch.Generator().manual_seed(1))
        q, k, v = fused.permute(2, 0, 3, 1, 4)
        power = torch.full((3, 5), 2.5)
        grad = torch.ones(()).expand(2, 3, 13, 5)
        views = gradients(attend, (q, k, v, power), grad)
        copies = gradients(attend, (q.contiguous(), k.contiguous(), v.contiguous(), power), grad.contiguous())
        assert torch.equal(views[0], copies[0])
        assert all(torch.equal(x, y) for x, y in zip(views[1], copies[1]))

    def test_results_lie_token_by_token_without_a_copy(self):
        q, k, v, power = make_inputs(2, 3, 7, 11, 5, 4)
        output = triton.forward(q, k, v, power, None, 1e-6)
        grads = triton.backward(torch.ones_like(output), q, k, v, power, None, 1e-6)
        assert all(x.transpose(1, 2).is_contiguous() for x in (output, *grads[:3]))

    @pytest.mark.parametrize(
        "shape", [(), (5,), (1, 5), (3, 1), (3, 5), (3, 1, 5), (2, 3, 1, 5), (2, 1, 1, 1)], ids=str
    )
    def test_power_broadcasts(self, shape):
        q, k, v, _ = make_inputs(2, 3, 7, 11, 5, 4)
        power = 1 + torch.rand(shape, generator=torch.Generator().manual_seed(3))
        grad = torch.randn(2, 3, 7, 4, generator=torch.Generator().manual_seed(4))
        full = (lambda p: p[:, None]) if power.ndim == 2 else (lambda p: p)
        _, grads = gradients(attend, (q, k, v, power), grad)
        doubles = [x.double() for x in (q, k, v, power)]
        _, wanted = gradients(lambda q, k, v, p: quadratic_attention(q, k, v, full(p)), doubles, grad.double())
        assert grads[3].shape == power.shape
        assert relative(grads[3], wanted[3], 0) <= 2e-4

    def test_mixed_dtypes(self):
        q, k, v, power = make_inputs(1, 2, 3, 5, 7, 4)
        check([q, k.bfloat16(), v.half(), power], limit=2e-3)
        check([q.half(), k.half(), v.bfloat16(), power.half()], limit=1e-2)

    @DTYPES
    @pytest.mark.parametrize("autocast", [torch.float16, torch.bfloat16], ids=["autocast-fp16", "autocast-bf16"])
    def test_autocast_changes_nothing(self, autocast, dtype):
        inputs = make_inputs(1, 1, 3, 37, 7, 4, dtype=dtype)
        grad = torch.ones(1, 1, 3, 4, dtype=dtype)
        plain = gradients(attend, inputs, grad)
        with torch.autocast("cpu", dtype=autocast):
            cast = gradients(attend, inputs, grad)
        assert cast[0].dtype is dtype
        assert torch.equal(plain[0], cast[0])
        assert all(torch.equal(x, y) and x.dtype is y.dtype for x, y in zip(plain[1], cast[1]))

    def test_float64_is_left_to_the_reference(self):
        q, k, v, power = make_inputs(1, 1, 3, 5, 2, 4)
        with pytest.raises(
            ValueError, match=r"'triton' cannot be used: v must be float32, bfloat16 or float16, got torch.f"
        ):
            attend(q, k, v.double(), power)

    def test_compiled_equals_eager(self):
        inputs = make_inputs(1, 2, 7, 11, 5, 4)
        grad = torch.randn(1, 2, 7, 4, generator=torch.Generator().manual_seed(4))
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        eager, traced = gradients(attend, inputs, grad), gradients(compiled, inputs, grad)
        assert torch.equal(eager[0], traced[0])
        assert all(torch.equal(x, y) for x, y in zip(eager[1], traced[1]))


class TestFallback:
    @pytest.fixture(autouse=True)
    def _forget(self, monkeypatch):
        monkeypatch.setattr(configs, "_failures", {})
        monkeypatch.setattr(triton, "_warned", set())

    @staticmethod
    def failing(monkeypatch, error, fails):
        """Make launches raise `error` where fails(kernel, warps) is true; return what was launched."""
        kernel, launched = triton._kernel, []

        class Launcher:
            def __init__(self, name):
                self.name = name

            def __getitem__(self, grid):
                def run(*args, **options):
                    launched.append((self.name, options["num_warps"]))
                    if fails(self.name, options["num_warps"]):
                        raise error
                    return kernel(self.name)[grid](*args, **options)

                return run

        monkeypatch.setattr(triton, "_kernel", Launcher)
        return launched

    def test_out_of_resources_takes_the_next_config(self, monkeypatch, recwarn):
        from triton.runtime.errors import OutOfResources

        monkeypatch.setattr(configs, "CONFIGS", (Config(64, 16, 16, 8, 1), Config(16, 16, 16, 2, 1)))
        error = OutOfResources(required=200000, limit=101376, name="shared memory")
        launched = self.failing(monkeypatch, error, lambda name, warps: warps == 8)
        inputs = make_inputs(1, 2, 7, 11, 5, 4)
        check(inputs)
        assert [warps for name, warps in launched if name == "key_state"] == [8, 2, 2]
        assert [x for x in recwarn if x.category is UserWarning] == []

    @pytest.mark.parametrize(
        "broken", ["key_state", "query_output", "query_gradient", "state_gradient", "key_gradient"]
    )
    def test_compile_errors_leave_it_to_pytorch_with_one_warning(self, monkeypatch, broken):
        import ast

        from triton.compiler.errors import CompilationError

        error = CompilationError("def f():\n    pass", ast.parse("f()").body[0], "dot() got an unexpected keyword 'x'")
        self.failing(monkeypatch, error, lambda name, warps: name == broken)
        inputs = make_inputs(1, 2, 7, 11, 5, 4)
        with pytest.warns(UserWarning, match=f"PyTorch computes them: CompilationError in {broken}: ") as caught:
            check(inputs)
        check(inputs)  # a further warning would be an error
        assert len([x for x in caught if x.category is UserWarning]) == 1

    def test_too_little_shared_memory_leaves_it_to_pytorch(self, monkeypatch):
        monkeypatch.setattr(triton, "describe", lambda device: configs.Device("tiny", 1, 1000))
        with pytest.warns(UserWarning, match="no block fits the 1000 bytes of shared memory of tiny"):
            check(make_inputs(1, 2, 7, 11, 5, 4))

    def test_out_of_memory_is_not_hidden(self, monkeypatch):
        self.failing(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"), lambda name, warps: True)
        with pytest.raises(torch.OutOfMemoryError):
            attend(*make_inputs(1, 2, 7, 11, 5, 4))

    def test_every_launch_is_inside_the_device_guard(self, monkeypatch):
        entered = []

        @contextlib.contextmanager
        def guard(device):
            entered.append(device)
            yield
            entered.pop()

        inside = []
        monkeypatch.setattr(triton, "_on_device", guard)
        self.failing(monkeypatch, AssertionError(), lambda name, warps: inside.append(list(entered)))
        check(make_inputs(1, 2, 7, 300, 5, 4))
        assert len(inside) == 8  # state and merged state twice, the output, three gradients
        assert all(devices == [torch.device("cpu")] for devices in inside)

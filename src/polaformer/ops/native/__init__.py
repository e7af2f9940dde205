"""The operator as one fused pass over tiles on the CPU: the binding of the C++ library in this folder.

The library knows nothing of torch. It gets one row of 8-byte words that says where every tensor lies (`problem.h`), and reads
and writes the tensors through their strides. It is built when the package is installed, if a C++ compiler is there.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from ..layout import empty_token_major

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
_ORDERS = {"cheaper": 0, "linear": 1, "quadratic": 2}
_ABSENT = (0,) * 6
_PROBLEM_WORDS = 9 + 11 * len(_ABSENT)


class _Library:
    """The loaded library, and which of its instruction sets and orders of products it uses."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        if library.pola_problem_words() != _PROBLEM_WORDS:
            raise OSError(f"{path.name} was built from another version of polaformer; install polaformer again")
        self.forward, self.backward = library.pola_forward, library.pola_backward
        for function in (self.forward, self.backward):
            function.restype = ctypes.c_int64
            function.argtypes = [ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int64]
        library.pola_use_runtime.argtypes = [ctypes.c_void_p]
        library.pola_use_runtime(_openmp_of_torch())
        library.pola_instruction_set.restype = ctypes.c_char_p
        library.pola_instruction_set.argtypes = [ctypes.c_int64]
        names = []
        while name := library.pola_instruction_set(len(names)):
            names.append(name.decode())
        self.instruction_sets: tuple[str, ...] = tuple(names)
        self.place = 0
        self.order = "cheaper"


def _openmp_of_torch() -> int | None:
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, TypeError, OSError):
        return None


@functools.cache
def load_library() -> _Library:
    """Load the compiled library.

    Raises:
        OSError: it was not built, or does not load here.
    """
    for path in sorted(Path(__file__).parent.glob("_kernel*")):
        if path.suffix in (".so", ".dylib", ".dll", ".pyd"):
            return _Library(path)
    raise OSError("it was not built when polaformer was installed (a C++ compiler is needed for that)")


@functools.cache
def unusable_reason() -> str | None:
    """Say why the library cannot be used on this machine, or return None."""
    try:
        load_library()
    except OSError as error:
        return str(error)
    return None


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor, power: Tensor) -> str | None:
    """Say why these tensors cannot be taken, or return None."""
    if q.device.type != "cpu":
        return f"it runs on the CPU, got tensors on {q.device}"
    for name, x in (("q", q), ("k", k), ("v", v), ("power", power)):
        if x.dtype not in _DTYPES:
            return f"{name} must be float32, bfloat16, float16 or float64, got {x.dtype}"
    return None


def forward(q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float) -> Tensor:
    """Return the attention output; arguments as in `polaformer.pola_attention`, already checked."""
    output = empty_token_major(v, q.shape[2])
    double = _is_double(q, k, v, power)
    power = _expanded(power, q, double)
    views = [*_view(q), *_view(k), *_view(v), *_view(power), *_mask(key_padding_mask), *_view(output), *_ABSENT * 5]
    _run(load_library().forward, q, v, double, views, eps, k.shape[2])
    return output


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, power: Tensor, key_padding_mask: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and power for the output gradient `grad` (B, H, N, E)."""
    grad_q, grad_k, grad_v = (empty_token_major(x, x.shape[2]) for x in (q, k, v))
    double = _is_double(q, k, v, power)
    full = _expanded(power, q, double)
    grad_power = torch.empty(full.shape, dtype=full.dtype)
    views = [*_view(q), *_view(k), *_view(v), *_view(full), *_mask(key_padding_mask), *_ABSENT]
    views += [*_view(grad), *_view(grad_q), *_view(grad_k), *_view(grad_v), *_view(grad_power)]
    _run(load_library().backward, q, v, double, views, eps, k.shape[2])
    shape = (power.shape[0], 1, power.shape[1]) if power.ndim == 2 else power.shape
    return grad_q, grad_k, grad_v, grad_power.sum_to_size(shape).reshape(power.shape).to(power.dtype)


def _run(
    function: ctypes._CFuncPtr, q: Tensor, v: Tensor, double: bool, views: list[int], eps: float, keys: int
) -> None:
    batch, heads, queries, channels = q.shape
    library = load_library()
    sizes = (batch, heads, queries, keys, channels, v.shape[3])
    words = [*sizes, torch.get_num_threads(), double, _ORDERS[library.order], *views]
    problem = (ctypes.c_int64 * len(words))(*words)
    place = library.place
    # From torch's allocator, so that its memory counts where torch's memory is counted.
    workspace = torch.empty(function(problem, eps, None, place) + 64, dtype=torch.uint8)
    function(problem, eps, -(-workspace.data_ptr() // 64) * 64, place)


def _is_double(*tensors: Tensor) -> bool:
    return any(x.dtype == torch.float64 for x in tensors)


def _expanded(power: Tensor, q: Tensor, double: bool) -> Tensor:
    power = power.unsqueeze(-2) if power.ndim == 2 else power
    return power.to(torch.float64 if double else torch.float32).expand(q.shape[0], q.shape[1], 1, q.shape[3])


def _view(x: Tensor) -> tuple[int, ...]:
    return (x.data_ptr(), _DTYPES[x.dtype], *x.stride())


def _mask(mask: Tensor | None) -> tuple[int, ...]:
    return _ABSENT if mask is None else (mask.data_ptr(), 0, mask.stride(0), 0, mask.stride(1), 0)

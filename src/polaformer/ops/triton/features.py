"""What the Triton kernels share: loads and stores of tiles, products, features and weights.

Powers are taken in base 2: |x|^p = exp2(p log2|x|), less a maximum.
"""

import triton
import triton.language as tl

# Sizes that change from call to call without changing the code: Triton must not compile anew for them.
UNSPECIALIZED = ["heads", "tokens", "chunk", "chunks", "blocks", "key_count"]
# exp2(±bound) stays a normal float32 with room for a sum over keys; exp(±80) as in `reference`.
_EPS_EXPONENT_BOUND = tl.constexpr(80 / 0.6931471805599453)


@triton.jit
def load_tile(base, rows, row_stride, valid, columns, column_stride, size: tl.constexpr):
    """Load rows × columns as float32, with 0 where a row is not valid or a column lies past `size`."""
    places = base + rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride
    return tl.load(places, mask=valid[:, None] & (columns < size)[None, :], other=0.0).to(tl.float32)


@triton.jit
def store_tile(base, rows, row_stride, valid, columns, x, size: tl.constexpr):
    """Store rows × columns in a matrix with `size` columns side by side."""
    places = base + rows.to(tl.int64)[:, None] * row_stride + columns[None, :]
    tl.store(places, x.to(base.dtype.element_ty), mask=valid[:, None] & (columns < size)[None, :])


@triton.jit
def token_major(base, head, heads, tokens, size: tl.constexpr):
    """Return where a head's first token lies in (batch, tokens, heads, size)."""
    return base + (head // heads * tokens * heads + head % heads) * size


@triton.jit
def valid_keys(mask, rows, last, stride, HAS_MASK: tl.constexpr):
    """Return which rows lie before `last` and are not masked."""
    valid = rows < last
    if HAS_MASK:
        valid = valid & (tl.load(mask + rows.to(tl.int64) * stride, mask=valid, other=1) == 0)
    return valid


@triton.jit
def operand(x, TF32: tl.constexpr):
    """Round a product's operand to the 10 bits that tensor cores read of a float32, where they are to be used.

    They would cut the others off. Rounding is without bias, and it lets the sums of weights hold the very weights of the
    products.
    """
    if TF32:
        rounded = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        x = tl.where(x == x, rounded, x)  # adding to the bits of a NaN can make it a number
    return x


@triton.jit
def dot(x, y, TF32: tl.constexpr):
    """Multiply two matrices with sums in float32; without TF32 as exactly as float32 does.

    tf32x3 multiplies high and low bits apart. "ieee" would be as exact, but it leaves the tensor cores idle, and blocks of
    64 × 64 then spill thousands of bytes a thread.
    """
    return tl.dot(x, y, input_precision="tf32" if TF32 else "tf32x3")


@triton.jit
def accumulate(total, factor, x, y, TF32: tl.constexpr):
    """Return total · factor + x y, added outside of the tensor cores: those cut bits off a long sum and do not round it."""
    return tl.fma(total, tl.zeros_like(total) + factor, dot(x, y, TF32))


@triton.jit
def log2_size(x):
    """Return log2|x|, 0 where x is 0; NaN stays NaN."""
    return tl.log2(tl.where(x == 0, 1.0, tl.abs(x)))


@triton.jit
def split_by_sign(feature, x, TF32: tl.constexpr):
    """Return a(x) and b(x). NaN is in both: it must reach the output."""
    feature = operand(feature, TF32)
    return tl.where(x <= 0, 0.0, feature), tl.where(x >= 0, 0.0, feature)


@triton.jit
def query_exponent(x, power, peak):
    """Return p (log2|q| + log2 peak), −∞ where the query or every key is 0, and the sum of logarithms, 0 there."""
    silent = (x == 0) | (peak == 0)[None, :]
    logs = tl.where(silent, 0.0, log2_size(x) + log2_size(peak)[None, :])
    return tl.where(silent, float("-inf"), power[None, :] * logs), logs


@triton.jit
def finite(maximum):
    """Replace −∞, the maximum over nothing but zeros, by 0."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def inverse_weights(same, opposite, count, log2_eps, maximum):
    """Return one over both streams' denominators, ε included in the queries' scale; 0 for a stream without any weight.

    Such a stream's output and gradients are 0; ε alone in the denominator could make the gradients infinite.
    """
    exponent = tl.minimum(tl.maximum(log2_eps - maximum, -_EPS_EXPONENT_BOUND), _EPS_EXPONENT_BOUND)
    eps = count * tl.exp2(exponent)
    return tl.where(same == 0, 0.0, 1 / (same + eps)), tl.where(opposite == 0, 0.0, 1 / (opposite + eps))

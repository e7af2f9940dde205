// Vectors of POLA_VECTOR_BYTES bytes, and the logarithm and power of two on them.
//
// Every file that includes this one is compiled for one instruction set and lives in the namespace POLA_TARGET of its own:
// inline functions of one name compiled for two sets would be merged by the linker, and the wrong ones could run.


namespace POLA_TARGET {

template <class T>
struct Lanes {
    using Integer = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
    typedef T Vector __attribute__((vector_size(POLA_VECTOR_BYTES)));
    typedef Integer Bits __attribute__((vector_size(POLA_VECTOR_BYTES)));
    static constexpr int count = POLA_VECTOR_BYTES / sizeof(T);
};

template <class T>
using Vector = typename Lanes<T>::Vector;

template <class T>
inline Vector<T> load(const T* from) {
    Vector<T> x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

template <class T>
inline void store(T* to, Vector<T> x) {
    std::memcpy(to, &x, sizeof x);
}

template <class T>
inline Vector<T> all(T value) {
    return value - Vector<T>{};
}

template <class T>
inline Vector<T> magnitude(Vector<T> x) {
    using Bits = typename Lanes<T>::Bits;
    using Integer = typename Lanes<T>::Integer;
    return (Vector<T>)((Bits)x & (Integer)(~((std::make_unsigned_t<Integer>)1 << (8 * sizeof(T) - 1))));
}

template <class T>
inline Vector<T> larger(Vector<T> x, Vector<T> y) {
    return x < y ? y : x;
}

// One level of a tree over rows: [x0 op x1, x2 op x3, ..., y0 op y1, ...].
template <class Operation, class T>
inline Vector<T> join(Vector<T> x, Vector<T> y) {
    constexpr int lanes = Lanes<T>::count;
    typename Lanes<T>::Bits even, odd;
    for (int i = 0; i < lanes; ++i) even[i] = 2 * i, odd[i] = 2 * i + 1;
    return Operation::apply(__builtin_shuffle(x, y, even), __builtin_shuffle(x, y, odd));
}

// Reduces `rows` vectors, a row of lanes each, to one number a row. Works through whole groups of rows: `from` and `to` must
// have room for them; `to` may be `from`.
template <class Operation, class T>
inline void reduce_rows(const T* from, int64_t rows, T* to) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t i = 0; i < rows; i += lanes) {
        Vector<T> x[lanes];
        for (int j = 0; j < lanes; ++j) x[j] = load(from + (i + j) * lanes);
#pragma GCC unroll 8
        for (int left = lanes / 2; left > 0; left /= 2)
            for (int j = 0; j < left; ++j) x[j] = join<Operation, T>(x[2 * j], x[2 * j + 1]);
        store<T>(to + i, x[0]);
    }
}

// Structs, since lambdas are compiled without the file's instruction set.
template <class T>
struct Sum {
    static Vector<T> apply(Vector<T> x, Vector<T> y) { return x + y; }
};

template <class T>
struct Largest {
    static Vector<T> apply(Vector<T> x, Vector<T> y) { return larger<T>(x, y); }
};

// Polynomials for log2(m) / (m - 1), m in [1/sqrt 2, sqrt 2], and for 2^f, f in [-1/2, 1/2].
inline Vector<float> log2_of_mantissa(Vector<float> f) {
    Vector<float> p = all<float>(0.12583697f);
    p = p * f - 0.20726979f;
    p = p * f + 0.21571565f;
    p = p * f - 0.23894481f;
    p = p * f + 0.28791624f;
    p = p * f - 0.36070368f;
    p = p * f + 0.48091063f;
    p = p * f - 0.72134733f;
    return p * f + 1.44269502f;
}

inline Vector<float> exp2_of_fraction(Vector<float> f) {
    Vector<float> p = all<float>(1.5345813e-4f);
    p = p * f + 1.3399931e-3f;
    p = p * f + 9.6184891e-3f;
    p = p * f + 5.5503286e-2f;
    p = p * f + 0.24022646f;
    p = p * f + 0.69314718f;
    return p * f + 1.0f;
}

// log2 of x >= 0: -inf at 0, NaN at NaN and no number at infinity; within 1.6e-7 of the result (every positive float was tried).
// exp2 of x <= 127: 0 below x = -150, NaN at NaN; within 8e-8 of the result where that is a normal number (tried in steps of
// 2.5e-6).
#if POLA_VECTOR_BYTES == 64

inline Vector<float> log2(Vector<float> x) {
    __m512 exponent = _mm512_getexp_ps((__m512)x);
    __m512 mantissa = _mm512_getmant_ps((__m512)x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
    const __mmask16 large = _mm512_cmp_ps_mask(mantissa, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
    mantissa = _mm512_mask_mul_ps(mantissa, large, mantissa, _mm512_set1_ps(0.5f));
    exponent = _mm512_mask_add_ps(exponent, large, exponent, _mm512_set1_ps(1.0f));
    const Vector<float> f = (Vector<float>)mantissa - 1.0f;
    return f * log2_of_mantissa(f) + (Vector<float>)exponent;
}

inline Vector<float> exp2(Vector<float> x) {
    // scalef takes the whole part of its second argument downwards: it gets the same rounded number that f was taken from.
    const __m512 rounded = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    // -inf - -inf is NaN; clamped, it gives 0 like all that is far below the smallest number.
    const __m512 f = _mm512_max_ps(_mm512_sub_ps((__m512)x, rounded), _mm512_set1_ps(-0.5f));
    return (Vector<float>)_mm512_scalef_ps((__m512)exp2_of_fraction((Vector<float>)f), rounded);
}

#else

inline Vector<float> log2(Vector<float> x) {
    using Bits = Lanes<float>::Bits;
    constexpr int32_t root_half = 0x3f3504f3;
    // The bits of a denormal number hold no exponent.
    const Bits denormal = x < all<float>(FLT_MIN);
    const Vector<float> normal = denormal ? x * 16777216.0f : x;
    const Bits shifted = (Bits)normal - root_half;
    const Vector<float> f = (Vector<float>)((shifted & 0x007fffff) + root_half) - 1.0f;
    Vector<float> exponent = __builtin_convertvector(shifted >> 23, Vector<float>);
    exponent = denormal ? exponent - 24.0f : exponent;
    const Vector<float> result = f * log2_of_mantissa(f) + (x * 0.0f + exponent);
    return x == 0.0f ? all<float>(-INFINITY) : result;
}

inline Vector<float> exp2(Vector<float> x) {
    using Bits = Lanes<float>::Bits;
    const Vector<float> magic = all<float>(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number in the low bits
    const Vector<float> rounded = x + magic;
    const Vector<float> p = exp2_of_fraction(x - (rounded - magic));
    const Vector<float> scale = (Vector<float>)(((Bits)rounded - (Bits)magic + 127) << 23);
    return x < -126.0f ? Vector<float>{} : p * scale;
}

#endif

// float64 is for checking, not for speed: the C library's functions, lane by lane.
inline Vector<double> log2(Vector<double> x) {
    for (int i = 0; i < Lanes<double>::count; ++i) x[i] = std::log2(x[i]);
    return x;
}

inline Vector<double> exp2(Vector<double> x) {
    for (int i = 0; i < Lanes<double>::count; ++i) x[i] = std::exp2(x[i]);
    return x;
}

}  // namespace POLA_TARGET

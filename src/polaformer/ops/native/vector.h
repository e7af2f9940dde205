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

template <class T>
inline typename Lanes<T>::Bits exchanged(int step) {
    typename Lanes<T>::Bits index;
    for (int i = 0; i < Lanes<T>::count; ++i) index[i] = i ^ step;
    return index;
}

template <class T>
inline T largest(Vector<T> x) {
#pragma GCC unroll 8
    for (int step = Lanes<T>::count / 2; step > 0; step /= 2) x = larger<T>(x, __builtin_shuffle(x, exchanged<T>(step)));
    return x[0];
}

template <class T>
inline T sum(Vector<T> x) {
#pragma GCC unroll 8
    for (int step = Lanes<T>::count / 2; step > 0; step /= 2) x += __builtin_shuffle(x, exchanged<T>(step));
    return x[0];
}

// log2 of x >= 0: -inf at 0, NaN at NaN and infinity. A polynomial of m - 1, m the mantissa in [1/sqrt 2, sqrt 2); within 1.6e-7
// of the result (every positive float was tried).
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
    Vector<float> p = all<float>(0.12583697f);
    p = p * f - 0.20726979f;
    p = p * f + 0.21571565f;
    p = p * f - 0.23894481f;
    p = p * f + 0.28791624f;
    p = p * f - 0.36070368f;
    p = p * f + 0.48091063f;
    p = p * f - 0.72134733f;
    p = p * f + 1.44269502f;
    const Vector<float> result = f * p + (x * 0.0f + exponent);
    return x == 0.0f ? all<float>(-INFINITY) : result;
}

// 2^x for x <= 127, 0 below x = -126, NaN at NaN. A polynomial of x - round(x); within 8e-8 of the result (tried in steps of
// 2.5e-6).
inline Vector<float> exp2(Vector<float> x) {
    using Bits = Lanes<float>::Bits;
    const Vector<float> magic = all<float>(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number in the low bits
    const Vector<float> rounded = x + magic;
    const Vector<float> f = x - (rounded - magic);
    Vector<float> p = all<float>(1.5345813e-4f);
    p = p * f + 1.3399931e-3f;
    p = p * f + 9.6184891e-3f;
    p = p * f + 5.5503286e-2f;
    p = p * f + 0.24022646f;
    p = p * f + 0.69314718f;
    p = p * f + 1.0f;
    const Vector<float> scale = (Vector<float>)(((Bits)rounded - (Bits)magic + 127) << 23);
    return x < -126.0f ? Vector<float>{} : p * scale;
}

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

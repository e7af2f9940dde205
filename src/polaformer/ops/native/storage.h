// Rows of numbers as torch stores them: float32, bfloat16, float16 or float64, any stride between elements.

namespace POLA_TARGET {

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline float widen(float x) { return x; }
inline double widen(double x) { return x; }
inline float widen(BFloat16 x) { return float_of((uint32_t)x.bits << 16); }

inline float widen(Float16 x) {
    // Moving the exponent by a product lets denormal numbers become normal ones.
    const float small = float_of((uint32_t)(x.bits & 0x7fff) << 13) * 0x1p112f;
    const uint32_t special = (x.bits & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    return float_of(bits_of(small) | special | (uint32_t)(x.bits & 0x8000) << 16);
}

inline void narrow(double x, float& to) { to = (float)x; }
inline void narrow(double x, double& to) { to = x; }

inline void narrow(float x, BFloat16& to) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    to.bits = x == x ? rounded : 0x7fc0;
}

inline void narrow(float x, Float16& to) {
    const uint32_t bits = bits_of(x), size = bits & 0x7fffffff;
    const uint32_t normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
    // Adding 1/2 leaves a number below 2^-14 in the last bits, rounded to float16's denormal step.
    const uint32_t denormal = bits_of(float_of(size) + 0.5f) - 0x3f000000;
    const uint32_t special = size > 0x7f800000 ? 0x7e00 : 0x7c00;
    const uint32_t finite = size < 0x38800000 ? denormal : normal;
    to.bits = (size >= 0x47800000 ? special : finite) | (bits >> 16 & 0x8000);
}

template <class T, class Stored>
inline void read(const void* from, int64_t offset, int64_t stride, int64_t count, T* to) {
    const Stored* x = (const Stored*)from + offset;
    if (stride == 1) {
        for (int64_t i = 0; i < count; ++i) to[i] = widen(x[i]);
    } else {
        for (int64_t i = 0; i < count; ++i) to[i] = widen(x[i * stride]);
    }
}

template <class T, class Stored>
inline void write(void* to, int64_t offset, int64_t count, const T* from) {
    Stored* x = (Stored*)to + offset;
    for (int64_t i = 0; i < count; ++i) narrow(from[i], x[i]);
}

// Row `token` of a view: (batch, head, token, channel) -> count numbers in the compute type.
template <class T>
inline void read_row(const View& view, int64_t batch, int64_t head, int64_t token, int64_t count, T* to) {
    const int64_t offset = batch * view.stride[0] + head * view.stride[1] + token * view.stride[2];
    switch (view.dtype) {
        case FLOAT32: return read<T, float>(view.data, offset, view.stride[3], count, to);
        case BFLOAT16: return read<T, BFloat16>(view.data, offset, view.stride[3], count, to);
        case FLOAT16: return read<T, Float16>(view.data, offset, view.stride[3], count, to);
        default: return read<T, double>(view.data, offset, view.stride[3], count, to);
    }
}

// The same backwards; results lie contiguous.
template <class T>
inline void write_row(const View& view, int64_t batch, int64_t head, int64_t token, int64_t count, const T* from) {
    const int64_t offset = batch * view.stride[0] + head * view.stride[1] + token * view.stride[2];
    switch (view.dtype) {
        case FLOAT32: return write<T, float>(view.data, offset, count, from);
        case BFLOAT16: return write<T, BFloat16>(view.data, offset, count, from);
        case FLOAT16: return write<T, Float16>(view.data, offset, count, from);
        default: return write<T, double>(view.data, offset, count, from);
    }
}

}  // namespace POLA_TARGET

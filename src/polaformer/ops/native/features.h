// One head: its exponents, its state, and the features of its keys and queries.
//
// Exponents are base 2. The largest |k| of each channel is taken over the tiles seen so far; when it grows, the sums so far are
// brought to the new scale. So keys are read once, and parts of a head that were summed apart can be added.

namespace POLA_TARGET {

// What the features of all keys of a head share.
template <class T>
struct Scale {
    T *power, *largest;  // (d)
    T *key_shift;        // (d) log2 of the largest |k|; 0 in a channel of zeros, whose exponents are -inf without it
    T *query_shift;      // (d) the same; -inf in a channel of zeros, which sets no query's scale
    T *count;            // (1) valid keys

    Scale(Allocator<T>& take, const Sizes<T>& s)
        : power(take(s.d)), largest(take(s.d)), key_shift(take(s.d)), query_shift(take(s.d)), count(take(1)) {}

    void start(const Problem& p, const Sizes<T>& s, Place at) {
        read_row(p.power, at.batch, at.head, 0, s.channels, power);
        fill(power + s.channels, s.d - s.channels, T(1));
        fill(largest, s.d, T(0));
        fill(key_shift, s.d, T(0));
        fill(query_shift, s.d, T(-INFINITY));
        *count = 0;
    }

    void take_logs(const Sizes<T>& s) {
        for (int64_t c = 0; c < s.d; c += Lanes<T>::count) {
            const Vector<T> most = load(largest + c), log = log2(most);
            store<T>(key_shift + c, most == T(0) ? Vector<T>{} : log);
            store<T>(query_shift + c, log);
        }
    }
};

template <class T>
struct Head : Scale<T> {
    using Scale<T>::power;
    using Scale<T>::largest;
    using Scale<T>::count;
    T *state, *sums;  // (f, e) [A; B], (f) the same of ones

    Head(Allocator<T>& take, const Sizes<T>& s) : Scale<T>(take, s), state(take(s.f * s.e)), sums(take(s.f)) {}

    void start(const Problem& p, const Sizes<T>& s, Place at) {
        Scale<T>::start(p, s, at);
        fill(state, s.f * s.e, T(0));
        fill(sums, s.f, T(0));
    }

    // Raise the channels' maxima to those of `other`, where they are larger, and bring the sums to that scale.
    void raise(const Sizes<T>& s, const T* other) {
        constexpr int lanes = Lanes<T>::count;
        for (int64_t c = 0; c < s.d; c += lanes) {
            const Vector<T> before = load(largest + c), after = larger<T>(before, load(other + c));
            const Vector<T> factors = exp2(load(power + c) * (log2(before) - log2(after)));
            store<T>(largest + c, after);
            for (int i = 0; i < lanes; ++i) {
                if (after[i] == before[i]) continue;
                scale(s, c + i, factors[i]);
                scale(s, s.d + c + i, factors[i]);
            }
        }
    }

    void scale(const Sizes<T>& s, int64_t row, T factor) {
        for (int64_t j = 0; j < s.e; ++j) state[row * s.e + j] *= factor;
        sums[row] *= factor;
    }

    // Add a part of the same head.
    void add(const Sizes<T>& s, Head& other) {
        raise(s, other.largest);
        other.raise(s, largest);
        for (int64_t i = 0; i < s.f * s.e; ++i) state[i] += other.state[i];
        for (int64_t i = 0; i < s.f; ++i) sums[i] += other.sums[i];
        *count += *other.count;
    }
};

// [[A1, A2], [B1, B2]] to [[A1, B2], [B1, A2]]; its own inverse.
template <class T>
void cross(const Sizes<T>& s, T* state) {
    for (int64_t c = 0; c < s.d; ++c) {
        T *upper = state + c * s.e, *lower = upper + s.d * s.e;
        for (int64_t j = s.cut; j < s.e; ++j) {
            const T kept = upper[j];
            upper[j] = lower[j], lower[j] = kept;
        }
    }
}

// The comparisons keep a NaN in both halves; where x is 0 the feature is 0 already.
template <class T>
inline Vector<T> positive_half(Vector<T> x, Vector<T> feature) {
    return x < T(0) ? Vector<T>{} : feature;
}

template <class T>
inline Vector<T> negative_half(Vector<T> x, Vector<T> feature) {
    return x > T(0) ? Vector<T>{} : feature;
}

// Features of a tile of keys; adds them to `sums` unless it is null.
template <class T>
void key_features(const Sizes<T>& s, const Scale<T>& head, Tile<T>& tile, T* sums) {
    for (int64_t c = 0; c < s.d; c += Lanes<T>::count) {
        const Vector<T> power = load(head.power + c), most = load(head.key_shift + c);
        Vector<T> sum_a = {}, sum_b = {};
        for (int64_t i = 0; i < tile.rows; ++i) {
            const Vector<T> x = load(tile.x + i * s.d + c), log = log2(magnitude<T>(x));
            const Vector<T> feature = exp2(power * (log - most));
            const Vector<T> a = positive_half<T>(x, feature), b = negative_half<T>(x, feature);
            store<T>(tile.logs + i * s.d + c, log);
            store<T>(tile.features + i * s.row + c, a);
            store<T>(tile.features + i * s.row + s.d + c, b);
            sum_a += a, sum_b += b;
        }
        if (!sums) continue;
        store<T>(sums + c, load(sums + c) + sum_a);
        store<T>(sums + s.d + c, load(sums + s.d + c) + sum_b);
    }
}

// The largest exponent of each query of a tile, 0 for a query without any, and log2|q|.
template <class T>
void query_maxima(const Sizes<T>& s, const Scale<T>& head, Tile<T>& tile) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t i = 0; i < tile.rows; ++i) {
        Vector<T> most = all<T>(-INFINITY);
        for (int64_t c = 0; c < s.d; c += lanes) {
            const Vector<T> log = log2(magnitude<T>(load(tile.x + i * s.d + c)));
            most = larger<T>(most, load(head.power + c) * (log + load(head.query_shift + c)));
            store<T>(tile.logs + i * s.d + c, log);
        }
        store<T>(tile.partial + i * lanes, most);
    }
    reduce_rows<Largest<T>>(tile.partial, tile.rows, tile.maxima);
    for (int64_t i = 0; i < tile.rows; i += lanes) {
        const Vector<T> maximum = load(tile.maxima + i);
        store<T>(tile.maxima + i, maximum == all<T>(-INFINITY) ? Vector<T>{} : maximum);
    }
}

// Features of a tile of queries; if they meet the keys through the head's sums, each query's sums of weights too.
template <bool with_sums, class T, class Keys>
void query_features(const Sizes<T>& s, const Keys& head, Tile<T>& tile) {
    constexpr int lanes = Lanes<T>::count;
    query_maxima<T>(s, head, tile);
    for (int64_t i = 0; i < tile.rows; ++i) {
        T* features = tile.features + i * s.row;
        Vector<T> same = {}, opposite = {};
        for (int64_t c = 0; c < s.d; c += lanes) {
            const Vector<T> x = load(tile.x + i * s.d + c), log = load(tile.logs + i * s.d + c);
            const Vector<T> feature = exp2(load(head.power + c) * (log + load(head.query_shift + c)) - tile.maxima[i]);
            const Vector<T> a = positive_half<T>(x, feature), b = negative_half<T>(x, feature);
            store<T>(features + c, a);
            store<T>(features + s.d + c, b);
            if constexpr (with_sums) {
                const Vector<T> sum_a = load(head.sums + c), sum_b = load(head.sums + s.d + c);
                same += a * sum_a + b * sum_b, opposite += a * sum_b + b * sum_a;
            }
        }
        if constexpr (with_sums) store<T>(tile.partial + i * lanes, same), store<T>(tile.partial2 + i * lanes, opposite);
    }
    if constexpr (with_sums) {
        reduce_rows<Sum<T>>(tile.partial, tile.rows, tile.same);
        reduce_rows<Sum<T>>(tile.partial2, tile.rows, tile.opposite);
    }
}

// The queries' sums of weights to the reciprocals of their denominators, 0 for a stream without weights.
template <class T>
void invert_denominators(const Scale<T>& head, double eps, Tile<T>& tile) {
    constexpr int lanes = Lanes<T>::count;
    constexpr T bound = sizeof(T) == 4 ? 80 * M_LOG2E : 600 * M_LOG2E;
    const T log_eps = std::log2(eps), count = *head.count > 1 ? *head.count : 1;
    for (int64_t i = 0; i < TILE; i += lanes) {
        Vector<T> exponent = log_eps - load(tile.maxima + i);
        exponent = exponent > bound ? all<T>(bound) : exponent < -bound ? all<T>(-bound) : exponent;
        const Vector<T> scaled_eps = count * exp2(exponent);
        for (T* weights : {tile.same + i, tile.opposite + i}) {
            const Vector<T> weight = load(weights);
            store<T>(weights, weight == T(0) ? Vector<T>{} : T(1) / (weight + scaled_eps));
        }
    }
}

}  // namespace POLA_TARGET

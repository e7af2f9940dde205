// The backward pass: the state again, then queries (their gradients, and the state's), then keys and values.
//
// With r = 1 / denominator, n = g r the numerator's gradient and G = n state^T, the denominator's gradient is -r f.G: neither the
// output nor the numerators are needed.

namespace POLA_TARGET {

template <class T>
struct GradientHead : Head<T> {
    T *transposed;            // (e, f) of the crossed state, later of its gradient
    T *grad;                  // (f, e) gradient of the crossed state
    T *grad_same, *grad_opposite;  // (f) sums of features times the denominators' gradients
    T *grad_power;            // (d)

    GradientHead(Allocator<T>& take, const Sizes<T>& s)
        : Head<T>(take, s), transposed(take(s.f * s.e)), grad(take(s.f * s.e)), grad_same(take(s.f)), grad_opposite(take(s.f)),
          grad_power(take(s.d)) {}

    void start_gradients(const Sizes<T>& s) {
        fill(grad, s.f * s.e, T(0));
        fill(grad_same, s.f, T(0));
        fill(grad_opposite, s.f, T(0));
    }

    void transpose(const Sizes<T>& s, T* matrix) {
        cross(s, matrix);
        constexpr int64_t block = 8;  // rows side by side, so that every line of the cache is fetched once
        for (int64_t i = 0; i < s.f; i += block)
            for (int64_t j = 0; j < s.e; ++j)
                for (int64_t l = i; l < i + block; ++l) transposed[j * s.f + l] = matrix[l * s.e + j];
    }

    void add_gradients(const Sizes<T>& s, const GradientHead& other) {
        for (int64_t i = 0; i < s.f * s.e; ++i) grad[i] += other.grad[i];
        for (int64_t i = 0; i < s.f; ++i) grad_same[i] += other.grad_same[i], grad_opposite[i] += other.grad_opposite[i];
    }
};

// From w = f df the gradient of x, p w / x, written over x, and log2|x| w; both 0 where x is 0.
template <class T>
inline Vector<T> finish_gradient(Vector<T> weight, Vector<T> power, T* x, const T* log) {
    const Vector<T> value = load(x);
    store<T>(x, value == T(0) ? Vector<T>{} : weight * power / value);
    return value == T(0) ? Vector<T>{} : weight * load(log);
}

// tile.values holds n, tile.product and tile.product2 its products with the two streams of the state.
template <class T>
void finish_queries(const Sizes<T>& s, GradientHead<T>& head, Tile<T>& tile) {
    constexpr int lanes = Lanes<T>::count;
    for (int64_t i = 0; i < tile.rows; ++i) {
        const T *f = tile.features + i * s.row, *second = tile.product2 + i * s.row;
        T* first = tile.product + i * s.row;
        Vector<T> same = {}, opposite = {};
        for (int64_t c = 0; c < s.d; c += lanes) {
            const Vector<T> a = load(f + c), b = load(f + s.d + c);
            const Vector<T> weight1 = a * load(first + c) + b * load(first + s.d + c);
            const Vector<T> weight2 = a * load(second + c) + b * load(second + s.d + c);
            same += weight1, opposite += weight2;
            store<T>(first + c, weight1 + weight2);
        }
        store<T>(tile.partial + i * lanes, same), store<T>(tile.partial2 + i * lanes, opposite);
    }
    reduce_rows<Sum<T>>(tile.partial, tile.rows, tile.partial);
    reduce_rows<Sum<T>>(tile.partial2, tile.rows, tile.partial2);
    for (int64_t i = 0; i < tile.rows; ++i) tile.same[i] *= -tile.partial[i], tile.opposite[i] *= -tile.partial2[i];
    for (int64_t c = 0; c < s.d; c += lanes) {
        const Vector<T> power = load(head.power + c), sum_a = load(head.sums + c), sum_b = load(head.sums + s.d + c);
        Vector<T> same_a = {}, same_b = {}, opposite_a = {}, opposite_b = {}, grad_power = {};
        for (int64_t i = 0; i < tile.count; ++i) {
            const T *f = tile.features + i * s.row + c;
            const Vector<T> a = load(f), b = load(f + s.d);
            const T same = tile.same[i], opposite = tile.opposite[i];
            const Vector<T> weight = load(tile.product + i * s.row + c) + same * (a * sum_a + b * sum_b) +
                                     opposite * (a * sum_b + b * sum_a);
            same_a += same * a, same_b += same * b, opposite_a += opposite * a, opposite_b += opposite * b;
            grad_power += finish_gradient<T>(weight, power, tile.x + i * s.d + c, tile.logs + i * s.d + c);
        }
        store<T>(head.grad_same + c, load(head.grad_same + c) + same_a);
        store<T>(head.grad_same + s.d + c, load(head.grad_same + s.d + c) + same_b);
        store<T>(head.grad_opposite + c, load(head.grad_opposite + c) + opposite_a);
        store<T>(head.grad_opposite + s.d + c, load(head.grad_opposite + s.d + c) + opposite_b);
        store<T>(head.grad_power + c, load(head.grad_power + c) + grad_power);
    }
}

// `head` has the merged state; gradients are added to `sums`, a head of the same state or a part's own.
template <class T>
void query_gradients(const Problem& p, const Sizes<T>& s, double eps, Place at, Range range, Tile<T>& tile,
                     const GradientHead<T>& head, GradientHead<T>& sums) {
    for_each_tile(range, tile, [&] {
        read_rows(p, p.q, at, false, tile, s.channels, s.d, tile.x);
        query_features<true>(s, head, tile);
        invert_denominators(head, eps, tile);
        read_rows(p, p.grad, at, false, tile, s.values, s.e, tile.values);
        scale_streams(s, tile, tile.values);
        const T *n = tile.values, *second = head.transposed + s.cut * s.f;
        multiply(tile.rows, s.f, s.cut, n, {s.e, 1}, head.transposed, s.f, tile.product, s.row, false);
        multiply(tile.rows, s.f, s.values - s.cut, n + s.cut, {s.e, 1}, second, s.f, tile.product2, s.row, false);
        multiply(s.f, s.e, tile.count, tile.features, {1, s.row}, n, s.e, sums.grad, s.e, true);
        GradientHead<T> both = sums;
        both.power = head.power, both.sums = head.sums;
        finish_queries(s, both, tile);
        write_rows(p.grad_q, at, tile, s.channels, s.d, tile.x);
    });
}

template <class T>
void finish_keys(const Sizes<T>& s, const GradientHead<T>& head, Tile<T>& tile, T* grad_powers) {
    for (int64_t c = 0; c < s.d; c += Lanes<T>::count) {
        const Vector<T> power = load(head.power + c);
        const Vector<T> ones_a = load(head.grad_same + c) + load(head.grad_opposite + s.d + c);
        const Vector<T> ones_b = load(head.grad_same + s.d + c) + load(head.grad_opposite + c);
        Vector<T> grad_power = {};
        for (int64_t i = 0; i < tile.count; ++i) {
            const T *f = tile.features + i * s.row + c, *g = tile.product + i * s.row + c;
            const Vector<T> weight = load(f) * (load(g) + ones_a) + load(f + s.d) * (load(g + s.d) + ones_b);
            grad_power += finish_gradient<T>(weight, power, tile.x + i * s.d + c, tile.logs + i * s.d + c);
        }
        store<T>(grad_powers + c, load(grad_powers + c) + grad_power);
    }
}

template <class T>
void key_gradients(const Problem& p, const Sizes<T>& s, Place at, Range range, Tile<T>& tile, const GradientHead<T>& head,
                   T* grad_power) {
    for_each_tile(range, tile, [&] {
        read_rows(p, p.k, at, true, tile, s.channels, s.d, tile.x);
        key_features<T>(s, head, tile, nullptr);
        read_rows(p, p.v, at, true, tile, s.values, s.e, tile.values);
        multiply(tile.rows, s.f, s.values, tile.values, {s.e, 1}, head.transposed, s.f, tile.product, s.row, false);
        finish_keys(s, head, tile, grad_power);
        write_rows(p.grad_k, at, tile, s.channels, s.d, tile.x);
        multiply(tile.rows, s.e, s.f, tile.features, {s.row, 1}, head.grad, s.e, tile.product, s.e, false);
        write_rows(p.grad_v, at, tile, s.values, s.e, tile.product);
    });
}

template <class T>
void write_power(const Problem& p, const Sizes<T>& s, Place at, T* grad_power) {
    for (int64_t c = 0; c < s.d; ++c) grad_power[c] *= T(M_LN2);
    write_row(p.grad_power, at.batch, at.head, 0, s.channels, grad_power);
}

template <class T>
void backward_of_head(const Problem& p, const Sizes<T>& s, double eps, Place at, Tile<T>& tile, GradientHead<T>& head) {
    head.start(p, s, at);
    accumulate<T>(p, s, at, {0, p.keys}, tile, head);
    head.transpose(s, head.state);
    head.start_gradients(s);
    fill(head.grad_power, s.d, T(0));
    query_gradients(p, s, eps, at, {0, p.queries}, tile, head, head);
    head.transpose(s, head.grad);
    key_gradients(p, s, at, {0, p.keys}, tile, head, head.grad_power);
    write_power(p, s, at, head.grad_power);
}

template <class T>
int64_t backward_in(const Problem& p, double eps, void* from) {
    const Workspace<T, GradientHead<T>> w(p, from);
    if (!from) return w.bytes;
    const Sizes<T>& s = w.s;
    if (w.parts == 1) {
        parallel(w.heads, p.threads, [&](int64_t h, int64_t thread) {
            Tile<T> tile = w.tile(thread);
            GradientHead<T> head = w.head(thread);
            backward_of_head(p, s, eps, place(p, h), tile, head);
        });
        return w.bytes;
    }
    accumulate_parts<T>(p, w);
    parallel(w.heads, p.threads, [&](int64_t h, int64_t) {
        GradientHead<T> head = w.head(h * w.parts);
        head.transpose(s, head.state);
        for (int64_t index = 0; index < w.parts; ++index) fill(w.head(h * w.parts + index).grad_power, s.d, T(0));
    });
    parallel(w.heads * s.query_parts, p.threads, [&](int64_t i, int64_t thread) {
        const int64_t h = i / s.query_parts, index = i % s.query_parts;
        Tile<T> tile = w.tile(thread);
        GradientHead<T> sums = w.head(h * w.parts + index);
        sums.start_gradients(s);
        query_gradients(p, s, eps, place(p, h), part(p.queries, s.query_parts, index), tile, w.head(h * w.parts), sums);
    });
    parallel(w.heads, p.threads, [&](int64_t h, int64_t) {
        GradientHead<T> head = w.head(h * w.parts);
        for (int64_t index = 1; index < s.query_parts; ++index) head.add_gradients(s, w.head(h * w.parts + index));
        head.transpose(s, head.grad);
    });
    parallel(w.heads * s.key_parts, p.threads, [&](int64_t i, int64_t thread) {
        const int64_t h = i / s.key_parts, index = i % s.key_parts;
        Tile<T> tile = w.tile(thread);
        T* grad_power = w.head(h * w.parts + index).grad_power;
        key_gradients(p, s, place(p, h), part(p.keys, s.key_parts, index), tile, w.head(h * w.parts), grad_power);
    });
    parallel(w.heads, p.threads, [&](int64_t h, int64_t) {
        T* grad_power = w.head(h * w.parts).grad_power;
        for (int64_t index = 1; index < w.parts; ++index)
            for (int64_t c = 0; c < s.d; ++c) grad_power[c] += w.head(h * w.parts + index).grad_power[c];
        write_power(p, s, place(p, h), grad_power);
    });
    return w.bytes;
}

}  // namespace POLA_TARGET

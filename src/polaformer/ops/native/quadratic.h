// Few tokens: the weights of every query for every key first, as in softmax attention.
//
// That takes N M (4 D + E) products where the state takes (N + M) 2 D E, and holds for heads whose tokens fit in one tile.

namespace POLA_TARGET {

// What one thread works with.
template <class T>
struct Pairs {
    Tile<T> queries, keys;
    Scale<T> scale;
    int64_t columns;                    // keys, padded to whole vectors
    T *same, *opposite;                 // (TILE, columns) weights
    T *grad_same, *grad_opposite;       // the same, backward only
    T *transposed;                      // (max(f, e), columns) of the keys' features, later of their values
    T *grad_power;                      // (d)

    Pairs(Allocator<T>& take, const Problem& p, const Sizes<T>& s)
        : queries(take, s), keys(take, s), scale(take, s), columns(round_up(p.keys, Lanes<T>::count)),
          same(take(TILE * columns)), opposite(take(TILE * columns)), grad_same(take(TILE * columns)),
          grad_opposite(take(TILE * columns)), transposed(take((s.f > s.e ? s.f : s.e) * columns)), grad_power(take(s.d)) {
        queries.take_all(p.queries), keys.take_all(p.keys);
    }

    // Rows of keys to columns, with zeros in the padding.
    void transpose(const T* from, int64_t row, int64_t size) {
        for (int64_t c = 0; c < size; ++c) {
            for (int64_t j = 0; j < keys.count; ++j) transposed[c * columns + j] = from[j * row + c];
            fill(transposed + c * columns + keys.count, columns - keys.count, T(0));
        }
    }
};

// The weights of both streams and the reciprocals of their sums.
template <class T>
void weigh(const Problem& p, const Sizes<T>& s, double eps, Place at, Pairs<T>& w) {
    Tile<T> &queries = w.queries, &keys = w.keys;
    w.scale.start(p, s, at);
    read_rows(p, p.k, at, true, keys, s.channels, s.d, keys.x);
    channel_maxima(s, keys, w.scale.largest);
    w.scale.take_logs(s);
    *w.scale.count = valid(p, at, keys.range);
    key_features<T>(s, w.scale, keys, nullptr);
    read_rows(p, p.v, at, true, keys, s.values, s.e, keys.values);
    read_rows(p, p.q, at, false, queries, s.channels, s.d, queries.x);
    query_features<false>(s, w.scale, queries);

    w.transpose(keys.features, s.row, s.f);
    const T *a = w.transposed, *b = w.transposed + s.d * w.columns;
    const Strided rows = {s.row, 1};
    multiply(queries.rows, w.columns, s.f, queries.features, rows, a, w.columns, w.same, w.columns, false);
    multiply(queries.rows, w.columns, s.d, queries.features, rows, b, w.columns, w.opposite, w.columns, false);
    multiply(queries.rows, w.columns, s.d, queries.features + s.d, rows, a, w.columns, w.opposite, w.columns, true);
    for (int64_t i = 0; i < queries.rows; ++i) {
        Vector<T> same = {}, opposite = {};
        for (int64_t j = 0; j < w.columns; j += Lanes<T>::count) {
            same += load(w.same + i * w.columns + j), opposite += load(w.opposite + i * w.columns + j);
        }
        store<T>(queries.partial + i * Lanes<T>::count, same);
        store<T>(queries.partial2 + i * Lanes<T>::count, opposite);
    }
    reduce_rows<Sum<T>>(queries.partial, queries.rows, queries.same);
    reduce_rows<Sum<T>>(queries.partial2, queries.rows, queries.opposite);
    invert_denominators(w.scale, eps, queries);
}

// to = [same x values 1, opposite x values 2] for one tile's rows; `spare` holds the second product.
template <class T>
void combine(const Sizes<T>& s, int64_t rows, int64_t depth, const Pairs<T>& w, Strided walk, const T* values, T* to, T* spare) {
    constexpr int64_t lanes = Lanes<T>::count;
    const int64_t begin = s.cut / lanes * lanes;
    multiply(rows, round_up(s.cut, lanes), depth, w.same, walk, values, s.e, to, s.e, false);
    multiply(rows, s.e - begin, depth, w.opposite, walk, values + begin, s.e, spare + begin, s.e, false);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = s.cut; j < s.e; ++j) to[i * s.e + j] = spare[i * s.e + j];
}

// Features' gradients [a, b] of one tile from those of the weights, through the features of the other.
template <class T>
void feature_gradients(const Sizes<T>& s, const Pairs<T>& w, Tile<T>& tile, const Tile<T>& other, Strided walk) {
    multiply(tile.rows, s.f, other.count, w.grad_same, walk, other.features, s.row, tile.product, s.row, false);
    multiply(tile.rows, s.d, other.count, w.grad_opposite, walk, other.features + s.d, s.row, tile.product, s.row, true);
    multiply(tile.rows, s.d, other.count, w.grad_opposite, walk, other.features, s.row, tile.product + s.d, s.row, true);
}

template <class T>
void finish_pairs(const Sizes<T>& s, const Pairs<T>& w, Tile<T>& tile) {
    for (int64_t c = 0; c < s.d; c += Lanes<T>::count) {
        const Vector<T> power = load(w.scale.power + c);
        Vector<T> grad_power = load(w.grad_power + c);
        for (int64_t i = 0; i < tile.count; ++i) {
            const T *f = tile.features + i * s.row + c, *g = tile.product + i * s.row + c;
            const Vector<T> weight = load(f) * load(g) + load(f + s.d) * load(g + s.d);
            grad_power += finish_gradient<T>(weight, power, tile.x + i * s.d + c, tile.logs + i * s.d + c);
        }
        store<T>(w.grad_power + c, grad_power);
    }
}

// From the gradients of the quotients' numerators, n v, to those of the weights: n v - sum(weight n v) / denominator.
template <class T>
void center(int64_t columns, const T* weights, T reciprocal, T* grads) {
    Vector<T> total = {};
    for (int64_t j = 0; j < columns; j += Lanes<T>::count) total += load(weights + j) * load(grads + j);
    T mean = 0;
    for (int lane = 0; lane < Lanes<T>::count; ++lane) mean += reciprocal * total[lane];
    for (int64_t j = 0; j < columns; ++j) grads[j] -= mean;
}

template <class T>
void backward_of_pairs(const Problem& p, const Sizes<T>& s, double eps, Place at, Pairs<T>& w) {
    Tile<T> &queries = w.queries, &keys = w.keys;
    const Strided by_query = {w.columns, 1}, by_key = {1, w.columns};
    weigh(p, s, eps, at, w);
    read_rows(p, p.grad, at, false, queries, s.values, s.e, queries.values);
    scale_streams(s, queries, queries.values);
    combine(s, keys.rows, queries.count, w, by_key, queries.values, keys.product, keys.product2);
    write_rows(p.grad_v, at, keys, s.values, s.e, keys.product);

    w.transpose(keys.values, s.e, s.values);
    const T *n = queries.values, *second = w.transposed + s.cut * w.columns;
    const int64_t rest = s.values - s.cut;
    multiply(queries.rows, w.columns, s.cut, n, {s.e, 1}, w.transposed, w.columns, w.grad_same, w.columns, false);
    multiply(queries.rows, w.columns, rest, n + s.cut, {s.e, 1}, second, w.columns, w.grad_opposite, w.columns, false);
    for (int64_t i = 0; i < queries.count; ++i) {
        center(w.columns, w.same + i * w.columns, queries.same[i], w.grad_same + i * w.columns);
        center(w.columns, w.opposite + i * w.columns, queries.opposite[i], w.grad_opposite + i * w.columns);
    }
    feature_gradients(s, w, queries, keys, by_query);
    feature_gradients(s, w, keys, queries, by_key);
    fill(w.grad_power, s.d, T(0));
    finish_pairs(s, w, queries);
    finish_pairs(s, w, keys);
    write_rows(p.grad_q, at, queries, s.channels, s.d, queries.x);
    write_rows(p.grad_k, at, keys, s.channels, s.d, keys.x);
    write_power(p, s, at, w.grad_power);
}

// Runs body(place, pairs) for every head.
template <class T, class Body>
int64_t for_each_head(const Problem& p, void* from, Body body) {
    const Sizes<T> s(p);
    Allocator<T> counted{nullptr};
    Pairs<T>(counted, p, s);
    if (from) {
        parallel(p.batch * p.heads, p.threads, [&](int64_t h, int64_t thread) {
            Allocator<T> take{(char*)from + thread * counted.used};
            Pairs<T> pairs(take, p, s);
            body(place(p, h), s, pairs);
        });
    }
    return p.threads * counted.used;
}

template <class T>
int64_t quadratic_forward(const Problem& p, double eps, void* from) {
    return for_each_head<T>(p, from, [&](Place at, const Sizes<T>& s, Pairs<T>& w) {
        Tile<T>& queries = w.queries;
        weigh(p, s, eps, at, w);
        combine(s, queries.rows, w.keys.count, w, {w.columns, 1}, w.keys.values, queries.product, queries.product2);
        scale_streams(s, queries, queries.product);
        write_rows(p.output, at, queries, s.values, s.e, queries.product);
    });
}

template <class T>
int64_t quadratic_backward(const Problem& p, double eps, void* from) {
    return for_each_head<T>(
        p, from, [&](Place at, const Sizes<T>& s, Pairs<T>& w) { backward_of_pairs(p, s, eps, at, w); });
}

// Products decide, counted with their padding. In the forward pass they must be a quarter fewer: it handles twice the tiles.
template <class T>
bool is_quadratic(const Problem& p, bool backward) {
    if (p.order == LINEAR || !fits_in_a_tile(p)) return false;
    const Sizes<T> s(p);
    const int64_t queries = round_up(p.queries, 8), keys = round_up(p.keys, Lanes<T>::count);
    const int64_t weights = queries * keys * (2 * s.f + s.e), state = (queries + keys) * s.f * s.e;
    return p.order == QUADRATIC || (backward ? weights : weights + weights / 4) < state;
}

}  // namespace POLA_TARGET

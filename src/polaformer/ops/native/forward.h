// The forward pass: the state of every head from its keys, then every query's product with it.

namespace POLA_TARGET {

// The largest |k| of each channel in a tile.
template <class T>
void channel_maxima(const Sizes<T>& s, const Tile<T>& tile, T* to) {
    for (int64_t c = 0; c < s.d; c += Lanes<T>::count) {
        Vector<T> most = {};
        for (int64_t i = 0; i < tile.count; ++i) most = larger<T>(most, magnitude<T>(load(tile.x + i * s.d + c)));
        store<T>(to + c, most);
    }
}

inline int64_t valid(const Problem& p, Place at, Range keys) {
    if (!p.mask.data) return keys.end - keys.begin;
    int64_t count = 0;
    for (int64_t j = keys.begin; j < keys.end; ++j) count += !is_ignored(p, at.batch, j);
    return count;
}

// Add keys to the head's sums.
template <class T>
void accumulate(const Problem& p, const Sizes<T>& s, Place at, Range range, Tile<T>& tile, Head<T>& head) {
    for_each_tile(range, tile, [&] {
        read_rows(p, p.k, at, true, tile, s.channels, s.d, tile.x);
        channel_maxima(s, tile, tile.product);
        bool grown = false;
        for (int64_t c = 0; c < s.d; ++c) grown |= tile.product[c] > head.largest[c];
        if (grown) {
            head.raise(s, tile.product);
            head.take_logs(s);
        }
        key_features(s, head, tile, head.sums);
        read_rows(p, p.v, at, true, tile, s.values, s.e, tile.values);
        multiply(s.f, s.e, tile.count, tile.features, {1, s.row}, tile.values, s.e, head.state, s.e, true);
        *head.count += valid(p, at, tile.range);
    });
}

template <class T>
void attend(const Problem& p, const Sizes<T>& s, double eps, Place at, Range range, Tile<T>& tile, const Head<T>& head) {
    for_each_tile(range, tile, [&] {
        read_rows(p, p.q, at, false, tile, s.channels, s.d, tile.x);
        query_features<true>(s, head, tile);
        invert_denominators(head, eps, tile);
        multiply(tile.rows, s.e, s.f, tile.features, {s.row, 1}, head.state, s.e, tile.product, s.e, false);
        scale_streams(s, tile, tile.product);
        write_rows(p.output, at, tile, s.values, s.e, tile.product);
    });
}

// The workspace of a call: a tile a thread, and either a head a thread or every part of every head.
template <class T, class Head>
struct Workspace {
    const Sizes<T> s;
    int64_t heads, parts, tile_bytes, head_bytes, bytes, threads;
    char* base;

    Workspace(const Problem& p, void* from) : s(p), heads(p.batch * p.heads), threads(p.threads), base((char*)from) {
        parts = s.key_parts > s.query_parts ? s.key_parts : s.query_parts;
        Allocator<T> tile{nullptr}, head{nullptr};
        Tile<T>(tile, s), Head(head, s);
        tile_bytes = tile.used, head_bytes = head.used;
        bytes = threads * tile_bytes + (parts == 1 ? threads : heads * parts) * head_bytes;
    }

    Tile<T> tile(int64_t thread) const {
        Allocator<T> take{base + thread * tile_bytes};
        return Tile<T>(take, s);
    }

    Head head(int64_t slot) const {
        Allocator<T> take{base + threads * tile_bytes + slot * head_bytes};
        return Head(take, s);
    }
};

inline Place place(const Problem& p, int64_t head) { return {head / p.heads, head % p.heads}; }

// The state of every part of every head, then of every head in its first slot, uncrossed.
template <class T, class Head>
void accumulate_parts(const Problem& p, const Workspace<T, Head>& w) {
    parallel(w.heads * w.s.key_parts, p.threads, [&](int64_t i, int64_t thread) {
        const int64_t h = i / w.s.key_parts, index = i % w.s.key_parts;
        Tile<T> tile = w.tile(thread);
        Head head = w.head(h * w.parts + index);
        head.start(p, w.s, place(p, h));
        accumulate<T>(p, w.s, place(p, h), part(p.keys, w.s.key_parts, index), tile, head);
    });
    parallel(w.heads, p.threads, [&](int64_t h, int64_t) {
        Head head = w.head(h * w.parts);
        for (int64_t index = 1; index < w.s.key_parts; ++index) {
            Head other = w.head(h * w.parts + index);
            head.add(w.s, other);
        }
        head.take_logs(w.s);
    });
}

template <class T>
int64_t forward_in(const Problem& p, double eps, void* from) {
    const Workspace<T, Head<T>> w(p, from);
    if (!from) return w.bytes;
    const Sizes<T>& s = w.s;
    if (w.parts == 1) {
        parallel(w.heads, p.threads, [&](int64_t h, int64_t thread) {
            Tile<T> tile = w.tile(thread);
            Head<T> head = w.head(thread);
            head.start(p, s, place(p, h));
            accumulate(p, s, place(p, h), {0, p.keys}, tile, head);
            cross(s, head.state);
            attend(p, s, eps, place(p, h), {0, p.queries}, tile, head);
        });
        return w.bytes;
    }
    accumulate_parts<T>(p, w);
    parallel(w.heads, p.threads, [&](int64_t h, int64_t) { cross(s, w.head(h * w.parts).state); });
    parallel(w.heads * s.query_parts, p.threads, [&](int64_t i, int64_t thread) {
        const int64_t h = i / s.query_parts;
        Tile<T> tile = w.tile(thread);
        attend(p, s, eps, place(p, h), part(p.queries, s.query_parts, i % s.query_parts), tile, w.head(h * w.parts));
    });
    return w.bytes;
}

}  // namespace POLA_TARGET

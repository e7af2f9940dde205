// The common ground of forward and backward: sizes, workspace, a tile of tokens, rows of q, k and v.
//
// Letters as in the reference: D channels of q and k, E channels of v, the first ceil(E/2) of them in stream 1. Features lie as
// [a, b], each padded to whole vectors. Padding is 0 everywhere, so that products need no special last step.

namespace POLA_TARGET {

constexpr int64_t TILE = 64;       // tokens: what one tile needs stays in the second-level cache
constexpr int64_t PARTS = 32;      // tasks to divide few heads into; fixed, so that sums never depend on the threads
constexpr int64_t PART_TILES = 8;  // tiles a part has at least

inline int64_t smaller(int64_t x, int64_t y) { return x < y ? x : y; }
inline int64_t round_up(int64_t size, int64_t step) { return (size + step - 1) / step * step; }

struct Range {
    int64_t begin, end;
};

template <class T>
struct Sizes {
    int64_t channels, values, cut;   // D, E, ceil(E/2)
    int64_t d, e;                    // D and E padded
    int64_t f, row;                  // features [a, b] of a token, and the distance of two tokens' features
    int64_t key_parts, query_parts;  // of one head

    explicit Sizes(const Problem& p) : channels(p.channels), values(p.values), cut((p.values + 1) / 2) {
        constexpr int64_t step = Lanes<T>::count > 8 ? Lanes<T>::count : 8;
        d = round_up(channels, step), e = round_up(values, step);
        f = 2 * d;
        row = f + Lanes<T>::count;  // 2D is often a power of two, and columns of such a matrix share few lines of the cache
        key_parts = parts(p.keys, p.batch * p.heads), query_parts = parts(p.queries, p.batch * p.heads);
    }

    static int64_t parts(int64_t tokens, int64_t heads) {
        const int64_t most = (round_up(tokens, TILE) / TILE + PART_TILES - 1) / PART_TILES;
        const int64_t wanted = smaller(most, PARTS / heads);
        return wanted < 1 ? 1 : wanted;
    }
};

// Part `index` of `parts` of all tokens, in whole tiles.
inline Range part(int64_t tokens, int64_t parts, int64_t index) {
    const int64_t size = round_up((tokens + parts - 1) / parts, TILE);
    return {smaller(tokens, index * size), smaller(tokens, (index + 1) * size)};
}

// Takes arrays from the workspace one after the other; from a null workspace it only counts their bytes.
template <class T>
struct Allocator {
    char* base;
    int64_t used = 0;

    T* operator()(int64_t count) {
        T* result = base ? (T*)(base + used) : nullptr;
        used += round_up(count * (int64_t)sizeof(T), 64);
        return result;
    }
};

inline bool fits_in_a_tile(const Problem& p) { return p.queries <= TILE && p.keys <= TILE; }

template <class T>
inline void fill(T* to, int64_t count, T value) {
    for (int64_t i = 0; i < count; ++i) to[i] = value;
}

// What one thread works with.
template <class T>
struct Tile {
    Range range;
    int64_t count, rows;             // tokens, and with the padding
    T *x, *logs, *features;          // (TILE, d) q or k, (TILE, d) log2|x|, (TILE, row) [a, b]
    T *values;                       // (TILE, e) v or the output's gradient
    T *maxima, *same, *opposite;     // (TILE) of a query: largest exponent, sums of weights, then their reciprocals
    T *product, *product2;           // (TILE, max(row, e))
    T *partial, *partial2;           // (TILE, lanes) sums or maxima of a row, before they are reduced

    Tile(Allocator<T>& take, const Sizes<T>& s)
        : x(take(TILE * s.d)), logs(take(TILE * s.d)), features(take(TILE * s.row)), values(take(TILE * s.e)),
          maxima(take(TILE)), same(take(TILE)), opposite(take(TILE)),
          product(take(TILE * (s.row > s.e ? s.row : s.e))), product2(take(TILE * (s.row > s.e ? s.row : s.e))),
          partial(take(TILE * Lanes<T>::count)), partial2(take(TILE * Lanes<T>::count)) {}

    void take_all(int64_t tokens) { range = {0, tokens}, count = tokens, rows = round_up(tokens, 8); }
};

inline bool is_ignored(const Problem& p, int64_t batch, int64_t key) {
    return p.mask.data && ((const uint8_t*)p.mask.data)[batch * p.mask.stride[0] + key * p.mask.stride[2]];
}

struct Place {  // one head of one batch entry
    int64_t batch, head;
};

// Rows of a tile, padded with 0; what a mask ignores reads as 0, whatever stands there.
template <class T>
void read_rows(const Problem& p, const View& view, Place at, bool masked, const Tile<T>& tile, int64_t size, int64_t padded, T* to) {
    for (int64_t i = 0; i < tile.rows; ++i, to += padded) {
        const int64_t token = tile.range.begin + i;
        const bool present = i < tile.count && !(masked && is_ignored(p, at.batch, token));
        if (present) read_row(view, at.batch, at.head, token, size, to);
        fill(to + (present ? size : 0), padded - (present ? size : 0), T(0));
    }
}

// y = [y1 / its denominator, y2 / its denominator] for a tile of queries.
template <class T>
void scale_streams(const Sizes<T>& s, const Tile<T>& tile, T* y) {
    for (int64_t i = 0; i < tile.count; ++i, y += s.e) {
        for (int64_t j = 0; j < s.cut; ++j) y[j] *= tile.same[i];
        for (int64_t j = s.cut; j < s.values; ++j) y[j] *= tile.opposite[i];
    }
}

template <class T>
void write_rows(const View& view, Place at, const Tile<T>& tile, int64_t size, int64_t padded, const T* from) {
    for (int64_t i = 0; i < tile.count; ++i) write_row(view, at.batch, at.head, tile.range.begin + i, size, from + i * padded);
}

// Calls body(tile) for every tile of the range.
template <class T, class Body>
void for_each_tile(Range range, Tile<T>& tile, Body body) {
    for (int64_t begin = range.begin; begin < range.end; begin += TILE) {
        tile.range = {begin, smaller(begin + TILE, range.end)};
        tile.count = tile.range.end - begin, tile.rows = round_up(tile.count, 8);
        body();
    }
}

template <class Body>
void parallel(int64_t tasks, int64_t threads, Body body) {
    run_parallel(tasks, threads, [](void* context, int64_t i, int64_t thread) { (*(Body*)context)(i, thread); }, &body);
}

}  // namespace POLA_TARGET

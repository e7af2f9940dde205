// Matrix products C (+)= A B with B and C in rows of whole vectors, blocked for the registers.

namespace POLA_TARGET {

struct Strided {  // how to walk A: element (i, l) lies at i * row + l * step
    int64_t row, step;
};

template <int Rows, int Columns, class T>
inline void multiply_block(
    const T* a, Strided walk, const T* b, int64_t b_row, T* c, int64_t c_row, int64_t depth, bool accumulate) {
    constexpr int lanes = Lanes<T>::count;
    Vector<T> total[Rows][Columns] = {};
    for (int64_t l = 0; l < depth; ++l) {
        Vector<T> right[Columns];
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) right[j] = load(b + l * b_row + j * lanes);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; ++i) {
            const T left = a[i * walk.row + l * walk.step];
#pragma GCC unroll 8
            for (int j = 0; j < Columns; ++j) total[i][j] += left * right[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
#pragma GCC unroll 8
        for (int j = 0; j < Columns; ++j) {
            T* to = c + i * c_row + j * lanes;
            store<T>(to, accumulate ? load(to) + total[i][j] : total[i][j]);
        }
    }
}

template <int Rows, int Columns, class T>
inline void multiply_columns(
    int64_t rows, const T* a, Strided walk, const T* b, int64_t b_row, T* c, int64_t c_row, int64_t depth, bool accumulate) {
    for (int64_t i = 0; i < rows; i += Rows)
        multiply_block<Rows, Columns>(a + i * walk.row, walk, b, b_row, c + i * c_row, c_row, depth, accumulate);
}

// rows: a multiple of 8; columns: whole vectors.
template <class T>
void multiply(int64_t rows, int64_t columns, int64_t depth, const T* a, Strided walk, const T* b, int64_t b_row, T* c,
              int64_t c_row, bool accumulate) {
    constexpr int lanes = Lanes<T>::count;
    constexpr bool many_registers = POLA_VECTOR_REGISTERS >= 32;
    int64_t left = columns / lanes;
    while (left > 0) {
        int64_t taken;
        if (many_registers && left >= 4) {
            multiply_columns<4, 4>(rows, a, walk, b, b_row, c, c_row, depth, accumulate), taken = 4;
        } else if (left >= 3) {
            multiply_columns<many_registers ? 8 : 4, 3>(rows, a, walk, b, b_row, c, c_row, depth, accumulate), taken = 3;
        } else if (left == 2) {
            multiply_columns<many_registers ? 8 : 4, 2>(rows, a, walk, b, b_row, c, c_row, depth, accumulate), taken = 2;
        } else {
            multiply_columns<8, 1>(rows, a, walk, b, b_row, c, c_row, depth, accumulate), taken = 1;
        }
        left -= taken, b += taken * lanes, c += taken * lanes;
    }
}

}  // namespace POLA_TARGET

// The kernel for one instruction set: the including file defines POLA_TARGET (its namespace), POLA_VECTOR_BYTES and
// POLA_VECTOR_REGISTERS, and turns the instructions on after its system headers.

#include "vector.h"
#include "storage.h"
#include "product.h"
#include "tile.h"
#include "features.h"
#include "forward.h"
#include "backward.h"
#include "quadratic.h"

namespace POLA_TARGET {

template <class T>
int64_t forward_as(const Problem& p, double eps, void* workspace) {
    return is_quadratic<T>(p, false) ? quadratic_forward<T>(p, eps, workspace) : forward_in<T>(p, eps, workspace);
}

template <class T>
int64_t backward_as(const Problem& p, double eps, void* workspace) {
    return is_quadratic<T>(p, true) ? quadratic_backward<T>(p, eps, workspace) : backward_in<T>(p, eps, workspace);
}

static int64_t forward(const Problem& p, double eps, void* workspace) {
    return p.float64 ? forward_as<double>(p, eps, workspace) : forward_as<float>(p, eps, workspace);
}

static int64_t backward(const Problem& p, double eps, void* workspace) {
    return p.float64 ? backward_as<double>(p, eps, workspace) : backward_as<float>(p, eps, workspace);
}

}  // namespace POLA_TARGET

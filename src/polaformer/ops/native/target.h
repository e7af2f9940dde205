// The kernel for one instruction set: the including file defines POLA_TARGET (a namespace), POLA_VECTOR_BYTES and
// POLA_VECTOR_REGISTERS, and turns the instructions on after its system headers.

#include "vector.h"
#include "storage.h"
#include "product.h"
#include "tile.h"
#include "features.h"
#include "forward.h"
#include "backward.h"

namespace POLA_TARGET {

static int64_t forward(const Problem& p, double eps, void* workspace) {
    return p.float64 ? forward_in<double>(p, eps, workspace) : forward_in<float>(p, eps, workspace);
}

static int64_t backward(const Problem& p, double eps, void* workspace) {
    return p.float64 ? backward_in<double>(p, eps, workspace) : backward_in<float>(p, eps, workspace);
}

}  // namespace POLA_TARGET

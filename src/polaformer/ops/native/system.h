// Headers that must be read before any instruction set is turned on.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "problem.h"

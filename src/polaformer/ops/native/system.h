// Headers that must be read before any instruction set is turned on.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "problem.h"

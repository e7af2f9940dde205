#include "system.h"

#define POLA_TARGET plain
#define POLA_VECTOR_BYTES 16
#define POLA_VECTOR_REGISTERS 16
#include "target.h"

const Target plain_target = {plain::forward, plain::backward};

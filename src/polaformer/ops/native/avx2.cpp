#if defined(__x86_64__)

#include "system.h"
#pragma GCC target("avx2,fma,f16c,bmi2")

#define POLA_TARGET avx2
#define POLA_VECTOR_BYTES 32
#define POLA_VECTOR_REGISTERS 16
#include "target.h"

const Target avx2_target = {avx2::forward, avx2::backward};

#endif

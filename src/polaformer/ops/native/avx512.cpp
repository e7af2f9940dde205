#if defined(__x86_64__)

#include "system.h"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")

#define POLA_TARGET avx512
#define POLA_VECTOR_BYTES 64
#define POLA_VECTOR_REGISTERS 32
#include "target.h"

const Target avx512_target = {avx512::forward, avx512::backward};

#endif

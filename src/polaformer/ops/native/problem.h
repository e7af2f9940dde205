// What one call is about, as the binding passes it: a row of 8-byte words, read as this struct.

#pragma once

#include <cstdint>
#include <type_traits>

enum Dtype : int64_t { FLOAT32, BFLOAT16, FLOAT16, FLOAT64 };

// Which products come first: keys with values (the state), queries with keys (the weights), or what is cheaper.
enum Order : int64_t { CHEAPER, LINEAR, QUADRATIC };

struct View {
    void* data;  // null: absent
    int64_t dtype;
    int64_t stride[4];  // in elements: batch, head, token, channel; 0 where broadcast
};

struct Problem {
    int64_t batch, heads, queries, keys, channels, values;
    int64_t threads;
    int64_t float64;  // compute type double instead of float
    int64_t order;    // of the products, see Order
    View q, k, v, power, mask;
    View output;                               // forward only
    View grad, grad_q, grad_k, grad_v, grad_power;  // backward only; grad_power (batch, heads, 1, channels) in the compute type
};

// Runs task(context, index, thread) for every index below `tasks`, on at most `threads` threads.
using Task = void (*)(void* context, int64_t index, int64_t thread);
void run_parallel(int64_t tasks, int64_t threads, Task task, void* context);

// The entry points of one instruction set; with workspace null they return the bytes of workspace needed and do nothing.
struct Target {
    int64_t (*forward)(const Problem& problem, double eps, void* workspace);
    int64_t (*backward)(const Problem& problem, double eps, void* workspace);
};

extern const Target plain_target;
#if defined(__x86_64__)
extern const Target avx2_target;
extern const Target avx512_target;
#endif

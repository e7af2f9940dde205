// The library's C interface, called through ctypes, and its threads.

#include <atomic>
#include <thread>
#include <vector>

#include "problem.h"

#if defined(_WIN32)
#define POLA_EXPORT extern "C" __declspec(dllexport)
#else
#define POLA_EXPORT extern "C" __attribute__((visibility("default")))
#endif

// The OpenMP runtime that torch has loaded, by its entry point GOMP_parallel(region, data, threads, flags): threads of our own
// would compete for the cores with torch's, which wait for work by spinning.
using Region = void (*)(void* data);
using Runtime = void (*)(Region region, void* data, unsigned threads, unsigned flags);
static Runtime runtime = nullptr;

struct Team {
    int64_t tasks;
    Task task;
    void* context;
    std::atomic<int64_t> next_task{0}, next_thread{0};
};

static void work(void* data) {
    Team& team = *(Team*)data;
    const int64_t thread = team.next_thread++;
    for (int64_t i; (i = team.next_task++) < team.tasks;) team.task(team.context, i, thread);
}

void run_parallel(int64_t tasks, int64_t threads, Task task, void* context) {
    Team team{tasks, task, context};
    const int64_t size = tasks < threads ? tasks : threads;
    if (size <= 1) return work(&team);
    if (runtime) return runtime(work, &team, (unsigned)size, 0);
    std::vector<std::thread> others;
    for (int64_t i = 1; i < size; ++i) others.emplace_back(work, &team);
    work(&team);
    for (std::thread& other : others) other.join();
}

// The instruction sets that this processor has, best first.
static const Target* targets[3];
static const char* names[3];

static int available() {
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        targets[count] = &avx512_target, names[count++] = "avx512";
    if (avx2) targets[count] = &avx2_target, names[count++] = "avx2";
#endif
    targets[count] = &plain_target, names[count++] = "plain";
    return count;
}

static const int count = available();

// The words of a problem: a binding that passes another number belongs to another version of the library.
POLA_EXPORT int64_t pola_problem_words() { return sizeof(Problem) / 8; }

POLA_EXPORT void pola_use_runtime(void* gomp_parallel) { runtime = (Runtime)gomp_parallel; }

// Name of the instruction set at a place in the order of choice, null past the last.
POLA_EXPORT const char* pola_instruction_set(int64_t place) { return place < count ? names[place] : nullptr; }

// Bytes of workspace needed if `workspace` is null; else the pass is run.
POLA_EXPORT int64_t pola_forward(const Problem* problem, double eps, void* workspace, int64_t place) {
    return targets[place]->forward(*problem, eps, workspace);
}

POLA_EXPORT int64_t pola_backward(const Problem* problem, double eps, void* workspace, int64_t place) {
    return targets[place]->backward(*problem, eps, workspace);
}

// CUDA's execution model on one core, for tests: the kernels' own sources compile against this.
//
// A CUDA thread runs on a fiber. Threads that never wait share one fiber and run as a plain loop;
// one that waits at a barrier or a warp operation keeps its fiber until the others arrive. Warp
// operations and barriers are strict: all 32 lanes, all threads, the same operation; anything else
// is reported. Under TSan each CUDA thread is a TSan fiber of its own, synchronized by barriers
// only, so a missing barrier is a data race. Not modelled: weak memory order, several processors.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(TOKTIER_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define TOKTIER_SHIM 1
#define __global__
#define __device__
#define __forceinline__ inline

namespace shim {

constexpr unsigned kWarp = 32;
#if defined(TOKTIER_TSAN)
constexpr size_t kStack = 32 * 1024; // made anew for each thread
#else
constexpr size_t kStack = 256 * 1024;
#endif

struct Dim { unsigned x; };

enum class Mode { ordered = 0, shuffled = 1, preempted = 2 };

struct Warp {
    unsigned arrived = 0, generation = 0, operation = 0;
    uint64_t slots[2][kWarp] = {};
    char sync[2] = {};
};

struct Fiber;

struct Block {
    Dim index{};
    unsigned next = 0, finished = 0, arrived = 0, generation = 0;
    char sync[2] = {};
    std::vector<unsigned> order;
    std::vector<Warp> warps;
    std::vector<std::pair<Fiber *, int>> waiting; // fiber, its warp or -1: at the block's barrier
    unsigned char *shared = nullptr;
};

struct Fiber {
    void *stack = nullptr, *saved = nullptr, *fake = nullptr, *tsan = nullptr;
    size_t stack_size = kStack;
#if !defined(__x86_64__)
    ucontext_t context;
#endif
    Block *block = nullptr;
    Dim thread{};
};

using Call = void (*)(const uint64_t *);

struct Launch {
    Call call = nullptr;
    const uint64_t *arguments = nullptr;
    Dim grid{}, block{};
    size_t shared_bytes = 0;
};

extern Fiber *current;
extern Launch launch;
void wait_block();
void preempt();
// Deposits value, waits for the warp, returns the lanes' values.
const uint64_t *exchange(unsigned operation, uint64_t value);

inline unsigned lane() { return current->thread.x % kWarp; }

inline void whole_warp(unsigned mask)
{
    if (mask != 0xFFFFFFFFu) throw std::runtime_error("a warp operation on part of a warp");
}

} // namespace shim

#define threadIdx (shim::current->thread)
#define blockIdx (shim::current->block->index)
#define blockDim (shim::launch.block)
#define gridDim (shim::launch.grid)
#define SHARED(type, name) type *name = (type *)shim::current->block->shared

inline void __syncthreads() { shim::wait_block(); }

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu)
{
    shim::whole_warp(mask);
    shim::exchange(1, 0);
}

inline unsigned __ballot_sync(unsigned mask, bool value)
{
    shim::whole_warp(mask);
    const uint64_t *slots = shim::exchange(2, value);
    unsigned bits = 0;
    for (unsigned i = 0; i < shim::kWarp; i++) bits |= (unsigned)slots[i] << i;
    return bits;
}

inline unsigned __shfl_sync(unsigned mask, unsigned value, unsigned from)
{
    shim::whole_warp(mask);
    return (unsigned)shim::exchange(3, value)[from % shim::kWarp];
}

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned with)
{
    shim::whole_warp(mask);
    return (unsigned)shim::exchange(4, value)[(shim::lane() ^ with) % shim::kWarp];
}

inline unsigned __shfl_up_sync(unsigned mask, unsigned value, unsigned by)
{
    shim::whole_warp(mask);
    const uint64_t *slots = shim::exchange(5, value);
    return (unsigned)slots[shim::lane() >= by ? shim::lane() - by : shim::lane()];
}

inline unsigned atomicAdd(unsigned *place, unsigned value)
{
    shim::preempt();
    return __atomic_fetch_add(place, value, __ATOMIC_RELAXED);
}

inline unsigned atomicOr(unsigned *place, unsigned value)
{
    shim::preempt();
    return __atomic_fetch_or(place, value, __ATOMIC_RELAXED);
}

inline void __nanosleep(unsigned) { shim::preempt(); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline int __ffs(unsigned value) { return __builtin_ffs((int)value); }
inline int __clz(unsigned value) { return value ? __builtin_clz(value) : 32; }

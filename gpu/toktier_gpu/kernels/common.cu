// What every kernel shares: number types, marks, the pair and word tables, warp and block scans.
//
// Plain CUDA C++ without includes or PTX: the same text compiles with NVRTC and, through
// shim/cuda_shim.hpp, with g++. All files are joined in the order that sources.py gives.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef TOKTIER_SHIM
// All shared memory is dynamic, so that the host states its size and the shim can fence it.
#define SHARED(type, name)                                            \
    extern __shared__ __align__(16) unsigned char shared_bytes[];     \
    type *name = (type *)shared_bytes
#endif
#define KERNEL extern "C" __global__ void
#define INLINE static __device__ __forceinline__
#define ALL_LANES 0xFFFFFFFFu

// Bytes that one block compacts at a time, and by one of its threads.
#define TILE 4096u
#define TILE_THREADS 256u
#define PER_THREAD 16u

// mark[byte]
#define TEXT 1u    // a text starts here
#define LITERAL 2u // an added token starts here
#define INSIDE 4u  // behind the first byte of an added token

// cls[byte] of a byte that starts no character
#define CONTINUATION 0xFFu

// Why a text is left to the host: bits of flags[text].
#define REWRITES 1u     // normalization may change it
#define LONG_SEGMENT 2u // no synchronizing boundary within the limit
#define LONG_PIECE 4u   // a piece is above the limit, or its merges take too many rounds
#define LITERALS 8u     // added tokens overlap over more than the limit

// counts[...], all of the batch
#define SEGMENTS 0u
#define PIECES 1u
#define WHOLE 2u // pieces above SHORT_WORD bytes that are no word
#define PARTS 3u
#define SHORT_ITEMS 4u
#define MEDIUM_ITEMS 5u
#define LONG_ITEMS 6u
#define TOKENS 7u
#define COUNTS 16u

#define SHORT_WORD 15u // bytes that fit a two-word key
#define SHORT_BYTES 32u
#define MEDIUM_BYTES 128u

// head[...], uploaded with the texts
#define HEAD_BYTES 0u
#define HEAD_TEXTS 1u

// A symbol that a pair makes is coded symbol << 2 | flags: codes order as the reference's ranks.
#define NONE 0xFFFFFFFFu
#define SINGLE 1u // some rule with this symbol as an operand ranks before it: merge one at a time
#define SAME 2u   // both operands are the same symbol: occurrences can overlap
#define CODE_BITS 22
#define NO_SLOT 0xFFFFFFFFFFFFFFFFull
#define GOLDEN 0x9E3779B97F4A7C15ull
#define MIX_A 0xBF58476D1CE4E5B9ull
#define MIX_B 0x94D049BB133111EBull

// tok[byte]: 0, or id | bytes << ID_BITS of the token that starts there.
#define ID_BITS 20

INLINE u32 global_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
INLINE u32 all_threads() { return gridDim.x * blockDim.x; }
INLINE u32 lane_of() { return threadIdx.x & 31u; }
INLINE u32 low_bits(u32 count) { return count >= 32u ? ALL_LANES : (1u << count) - 1u; }
INLINE bool continues(u8 byte) { return (byte & 0xC0u) == 0x80u; }

// The text that holds a byte: the last one that starts at or before it.
INLINE u32 text_of(const u32 *starts, u32 texts, u32 place)
{
    u32 low = 0, high = texts;
    while (high - low > 1u) {
        u32 middle = (low + high) >> 1;
        if (starts[middle] <= place) low = middle;
        else high = middle;
    }
    return low;
}

INLINE void leave_to_host(
    const u32 *head, const u32 *starts, u32 *flags, u32 place, u32 reason)
{
    atomicOr(&flags[text_of(starts, head[HEAD_TEXTS], place)], reason);
}

// Eight bytes of text from any place. The text starts aligned and is padded by 24 bytes.
INLINE u64 load_text(const u8 *text, u32 place)
{
    const u64 *words = (const u64 *)text + (place >> 3);
    u32 shift = (place & 7u) * 8u;
    u64 low = words[0];
    return shift ? (low >> shift) | (words[1] << (64u - shift)) : low;
}

// The code of what a pair of symbols makes, or NONE. A slot is left 20, right 20, code 22 bits.
INLINE u32 resolve_pair(const u64 *pairs, u32 shift, u64 key, u64 at, u64 slot)
{
    u64 mask = ~0ull >> shift;
    while (slot != NO_SLOT) {
        if (slot >> CODE_BITS == key) return (u32)(slot & ((1ull << CODE_BITS) - 1ull));
        at = (at + 1ull) & mask;
        slot = pairs[at];
    }
    return NONE;
}

INLINE u32 find_pair(const u64 *pairs, u32 shift, u32 left, u32 right)
{
    u64 key = (u64)left << 20 | right;
    u64 at = (key * GOLDEN) >> shift;
    return resolve_pair(pairs, shift, key, at, pairs[at]);
}

// Two neighbours at once, so that their loads overlap.
INLINE void find_two_pairs(
    const u64 *pairs, u32 shift, u32 left, u32 middle, u32 right, u32 *before, u32 *behind)
{
    u64 first = (u64)left << 20 | middle, second = (u64)middle << 20 | right;
    u64 first_at = (first * GOLDEN) >> shift, second_at = (second * GOLDEN) >> shift;
    u64 first_slot = pairs[first_at], second_slot = pairs[second_at];
    *before = resolve_pair(pairs, shift, first, first_at, first_slot);
    *behind = resolve_pair(pairs, shift, second, second_at, second_slot);
}

INLINE u32 warp_min(u32 value)
{
    for (u32 step = 16; step; step >>= 1) {
        u32 other = __shfl_xor_sync(ALL_LANES, value, step);
        value = other < value ? other : value;
    }
    return value;
}

// Sum of value over the lower lanes.
INLINE u32 warp_sum_below(u32 value)
{
    u32 sum = value, lane = lane_of();
    for (u32 step = 1; step < 32u; step <<= 1) {
        u32 other = __shfl_up_sync(ALL_LANES, sum, step);
        if (lane >= step) sum += other;
    }
    return sum - value;
}

// Sum of value over the lower threads of the block; *total over all. sums: one word per warp, and
// one. Every thread of the block takes part.
INLINE u32 block_sum_below(u32 *sums, u32 value, u32 *total)
{
    u32 below = warp_sum_below(value), warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    if (lane_of() == 31u) sums[warp] = below + value;
    __syncthreads();
    if (warp == 0u) {
        u32 mine = lane_of() < warps ? sums[lane_of()] : 0u;
        u32 before = warp_sum_below(mine);
        if (lane_of() < warps) sums[lane_of()] = before;
        if (lane_of() == 31u) sums[warps] = before + mine;
    }
    __syncthreads();
    below += sums[warp];
    *total = sums[warps];
    __syncthreads();
    return below;
}

// Room in a list for each lane that wants it: one atomic per warp. Every lane takes part.
INLINE u32 warp_append(u32 *count, bool wanted)
{
    u32 mask = __ballot_sync(ALL_LANES, wanted), lane = lane_of(), base = 0;
    if (mask && lane == 0u) base = atomicAdd(count, (u32)__popc(mask));
    base = __shfl_sync(ALL_LANES, base, 0);
    return base + (u32)__popc(mask & low_bits(lane));
}

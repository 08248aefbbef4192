// BPE of longer items: one block each, in the rounds of merge_medium.cu. Places are fixed: symbols
// stand in tok at their byte, their codes in code; the smallest code of each 32 places is kept, so
// that a round costs what changes and not the length.

struct Scratch {
    u32 *alive, *chosen, *gone, *low; // a word for each 32 places
    u32 *dirty;                       // a bit for each such word
    u32 *shared;                      // LONG_SHARED words for the block
};

#define LONG_SHARED 40u

INLINE u32 block_min(u32 *shared, u32 value)
{
    value = warp_min(value);
    if (lane_of() == 0u) shared[threadIdx.x >> 5] = value;
    __syncthreads();
    if (threadIdx.x < 32u) {
        value = warp_min(lane_of() < blockDim.x >> 5 ? shared[lane_of()] : NONE);
        if (lane_of() == 0u) shared[32] = value;
    }
    __syncthreads();
    value = shared[32];
    __syncthreads();
    return value;
}

// The smallest code of each dirty word anew.
INLINE void lower(const Scratch &s, const u32 *code, u32 size, u32 words)
{
    u32 warps = blockDim.x >> 5;
    for (u32 w = threadIdx.x >> 5; w < words; w += warps) {
        bool changed = bit_of(s.dirty, w);
        if (!changed) continue;
        u32 i = w * 32u + lane_of();
        u32 least = warp_min(i < size ? code[i] : NONE);
        if (lane_of() == 0u) s.low[w] = least;
    }
    __syncthreads();
    for (u32 w = threadIdx.x; w < (words + 31u) / 32u; w += blockDim.x) s.dirty[w] = 0;
    for (u32 w = threadIdx.x; w < words; w += blockDim.x) s.gone[w] = 0;
    __syncthreads();
}

// Leave in chosen what may be merged at once.
INLINE void choose(const Scratch &s, u32 best, u32 words)
{
    if (best & SINGLE) {
        u32 mine = NONE;
        for (u32 w = threadIdx.x; w < words && mine == NONE; w += blockDim.x)
            if (s.chosen[w]) mine = w;
        u32 first = block_min(s.shared, mine);
        for (u32 w = threadIdx.x; w < words; w += blockDim.x)
            s.chosen[w] = w == first ? s.chosen[w] & (0u - s.chosen[w]) : 0u;
    } else if (best & SAME) {
        // What a word hands to the next, for both values of what it is handed: composed in order.
        for (u32 w = threadIdx.x; w < words; w += blockDim.x) {
            u32 first = s.chosen[w], second = s.chosen[w];
            bool without = choose_apart(s.alive[w], &first, false);
            bool with = choose_apart(s.alive[w], &second, true);
            s.gone[w] = (u32)without | (u32)with << 1;
        }
        __syncthreads();
        if (threadIdx.x == 0u) {
            u32 taken = 0;
            for (u32 w = 0; w < words; w++) {
                u32 next = s.alive[w] ? s.gone[w] >> taken & 1u : taken;
                s.gone[w] = taken;
                taken = next;
            }
        }
        __syncthreads();
        for (u32 w = threadIdx.x; w < words; w += blockDim.x) {
            choose_apart(s.alive[w], &s.chosen[w], s.gone[w]);
            s.gone[w] = 0;
        }
    }
    __syncthreads();
}

// Merge the chosen places of a round. Every thread of the block takes part.
INLINE void merge_round(
    const Scratch &s, const u64 *pairs, u32 shift, u32 made, u32 words, u32 *symbol, u32 *code)
{
    u32 warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = lane_of();
    for (u32 w = warp; w < words; w += warps) {
        if (!(s.chosen[w] >> lane & 1u)) continue;
        u32 i = w * 32u + lane, behind = following(s.alive, words, i);
        symbol[i] = made;
        code[behind] = NONE;
        atomicOr(&s.gone[behind >> 5], 1u << (behind & 31u));
        atomicOr(&s.dirty[behind >> 10], 1u << (behind >> 5 & 31u));
    }
    __syncthreads();
    for (u32 w = threadIdx.x; w < words; w += blockDim.x) s.alive[w] &= ~s.gone[w];
    __syncthreads();
    for (u32 w = warp; w < words; w += warps) {
        if (!(s.chosen[w] >> lane & 1u)) continue;
        u32 i = w * 32u + lane;
        u32 behind = following(s.alive, words, i), before = previous(s.alive, i);
        code[i] = behind == NONE ? NONE : find_pair(pairs, shift, made, symbol[behind]);
        atomicOr(&s.dirty[w >> 5], 1u << (w & 31u));
        if (before == NONE || bit_of(s.chosen, before)) continue;
        code[before] = find_pair(pairs, shift, symbol[before], made);
        atomicOr(&s.dirty[before >> 10], 1u << (before >> 5 & 31u));
    }
    __syncthreads();
}

// Shared memory: LONG_SHARED + 4 * words + words / 32 + 1 words, for items of words * 32 bytes. An
// item that needs more than max_rounds is left to the host.
KERNEL merge_long(
    const u32 *head, const u32 *starts, const u8 *text, const u64 *items, const u32 *counts,
    const u32 *byte_pairs, const u64 *pairs, u32 shift, const u32 *emit, u32 most_words,
    u32 max_rounds, u32 *all_codes, u32 *tok, u32 *flags)
{
    SHARED(u32, memory);
    Scratch s;
    s.shared = memory;
    s.alive = memory + LONG_SHARED;
    s.chosen = s.alive + most_words;
    s.gone = s.chosen + most_words;
    s.low = s.gone + most_words;
    s.dirty = s.low + most_words;
    u32 warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = lane_of();
    for (u32 k = blockIdx.x; k < counts[LONG_ITEMS]; k += gridDim.x) {
        u32 start = (u32)items[k], size = (u32)(items[k] >> 32), words = (size + 31u) / 32u;
        u32 *symbol = tok + start, *code = all_codes + start;
        for (u32 i = threadIdx.x; i < size; i += blockDim.x) {
            u32 here = text[start + i];
            symbol[i] = here;
            code[i] = i + 1u < size ? byte_pairs[here << 8 | text[start + i + 1u]] : NONE;
        }
        for (u32 w = threadIdx.x; w < words; w += blockDim.x)
            s.alive[w] = low_bits(size - w * 32u);
        for (u32 w = threadIdx.x; w < (words + 31u) / 32u; w += blockDim.x) s.dirty[w] = ALL_LANES;
        __syncthreads();
        lower(s, code, size, words);
        for (u32 round = 0;; round++) {
            u32 best = NONE;
            for (u32 w = threadIdx.x; w < words; w += blockDim.x)
                best = s.low[w] < best ? s.low[w] : best;
            best = block_min(s.shared, best);
            if (best == NONE) break;
            if (round == max_rounds) {
                if (threadIdx.x == 0u) leave_to_host(head, starts, flags, start, LONG_PIECE);
                break;
            }
            for (u32 w = warp; w < words; w += warps) {
                u32 i = w * 32u + lane, found = 0;
                if (s.low[w] == best) found = __ballot_sync(ALL_LANES, i < size && code[i] == best);
                if (lane == 0u) s.chosen[w] = found;
            }
            __syncthreads();
            choose(s, best, words);
            merge_round(s, pairs, shift, best >> 2, words, symbol, code);
            lower(s, code, size, words);
        }
        for (u32 i = threadIdx.x; i < size; i += blockDim.x)
            symbol[i] = bit_of(s.alive, i) ? emit[symbol[i]] : 0u;
        __syncthreads();
    }
}

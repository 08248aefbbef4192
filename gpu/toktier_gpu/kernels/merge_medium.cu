// BPE of at most 128 bytes: one warp per item, in rounds. A round merges every leftmost
// non-overlapping occurrence of the smallest symbol at once, which equals merging one by one as
// long as no pair that this makes ranks before it (SINGLE says where one may).

#define WORDS 4u // of 32 places

// The nearest place on the left of place whose bit is set, or NONE.
INLINE u32 previous(const u32 *bits, u32 place)
{
    u32 word = place >> 5, here = bits[word] & low_bits(place & 31u);
    while (!here && word) here = bits[--word];
    return here ? word * 32u + 31u - (u32)__clz(here) : NONE;
}

// The nearest place on the right of place whose bit is set, below words * 32, or NONE.
INLINE u32 following(const u32 *bits, u32 words, u32 place)
{
    u32 word = place >> 5, here = bits[word] & ~low_bits((place & 31u) + 1u);
    while (!here && word + 1u < words) here = bits[++word];
    return here ? word * 32u + (u32)__ffs(here) - 1u : NONE;
}

INLINE bool bit_of(const u32 *bits, u32 place) { return bits[place >> 5] >> (place & 31u) & 1u; }

// Of the candidates (places whose pair makes the round's symbol), the ones to merge, if the symbol
// is SAME: not one directly behind a chosen one. taken: whether the place before this word was
// chosen; returns whether the last place in the word is. Updates *candidates.
INLINE bool choose_apart(u32 alive, u32 *candidates, bool taken)
{
    u32 chosen = 0;
    for (; alive; alive &= alive - 1u) {
        u32 bit = alive & (0u - alive);
        taken = (*candidates & bit) && !taken;
        if (taken) chosen |= bit;
    }
    *candidates = chosen;
    return taken;
}

// Shared memory, per warp: 4 * 32 symbols, and alive and chosen bits.
KERNEL merge_medium(
    const u8 *text, const u64 *items, const u32 *counts, const u32 *byte_pairs, const u64 *pairs,
    u32 shift, const u32 *emit, u32 *tok)
{
    SHARED(u32, memory);
    u32 lane = lane_of(), count = counts[MEDIUM_ITEMS];
    u32 *symbol = memory + (threadIdx.x >> 5) * (WORDS * 34u);
    u32 *alive = symbol + WORDS * 32u, *chosen = alive + WORDS;
    for (u32 k = global_thread() >> 5; k < count; k += all_threads() >> 5) {
        u32 start = (u32)items[k], size = (u32)(items[k] >> 32), code[WORDS];
        for (u32 w = 0; w < WORDS; w++) {
            u32 i = w * 32u + lane;
            code[w] = NONE;
            if (i < size) symbol[i] = text[start + i];
            if (i + 1u < size) code[w] = byte_pairs[(u32)text[start + i] << 8 | text[start + i + 1u]];
        }
        if (lane < WORDS) alive[lane] = size > lane * 32u ? low_bits(size - lane * 32u) : 0u;
        __syncwarp();
        while (true) {
            u32 best = NONE;
            for (u32 w = 0; w < WORDS; w++) best = code[w] < best ? code[w] : best;
            best = warp_min(best);
            if (best == NONE) break;
            u32 candidates[WORDS];
            for (u32 w = 0; w < WORDS; w++)
                candidates[w] = __ballot_sync(ALL_LANES, code[w] == best);
            bool taken = false;
            for (u32 w = 0; w < WORDS; w++) {
                if (best & SINGLE) {
                    u32 first = taken ? 0u : candidates[w];
                    candidates[w] = first & (0u - first);
                    taken = taken || first;
                } else if (best & SAME) {
                    taken = choose_apart(alive[w], &candidates[w], taken);
                }
            }
            // Every lane has the same words.
            __syncwarp();
            if (lane == 0u) for (u32 w = 0; w < WORDS; w++) chosen[w] = candidates[w];
            __syncwarp();
            u32 left[WORDS];
            for (u32 w = 0; w < WORDS; w++) {
                u32 i = w * 32u + lane;
                bool stays = bit_of(alive, i);
                if (stays) {
                    u32 before = previous(alive, i);
                    if (before != NONE && bit_of(chosen, before)) {
                        stays = false;
                        code[w] = NONE;
                    }
                }
                left[w] = __ballot_sync(ALL_LANES, stays);
                if (bit_of(chosen, i)) symbol[i] = best >> 2;
            }
            __syncwarp();
            if (lane == 0u) for (u32 w = 0; w < WORDS; w++) alive[w] = left[w];
            __syncwarp();
            for (u32 w = 0; w < WORDS; w++) {
                u32 i = w * 32u + lane;
                if (!bit_of(alive, i)) continue;
                u32 behind = following(alive, WORDS, i);
                if (bit_of(chosen, i) || (behind != NONE && bit_of(chosen, behind)))
                    code[w] = behind == NONE ? NONE : find_pair(pairs, shift, symbol[i], symbol[behind]);
            }
            __syncwarp();
        }
        for (u32 w = 0; w < WORDS; w++) {
            u32 i = w * 32u + lane;
            if (bit_of(alive, i)) tok[start + i] = emit[symbol[i]];
        }
        __syncwarp();
    }
}

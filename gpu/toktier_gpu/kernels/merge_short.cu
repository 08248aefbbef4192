// BPE of at most 32 bytes: one thread per item, the smallest symbol first, leftmost first.

// Symbols and codes stand in shared memory, a column per thread: 2 * SHORT_BYTES words each. A bit
// of alive is a place where a symbol starts.
KERNEL merge_short(
    const u8 *text, const u64 *items, const u32 *counts, const u32 *byte_pairs, const u64 *pairs,
    u32 shift, const u32 *emit, u32 *tok)
{
    SHARED(u32, columns);
    u32 width = blockDim.x, count = counts[SHORT_ITEMS];
    u32 *symbol = columns + threadIdx.x, *code = symbol + SHORT_BYTES * width;
    for (u32 k = global_thread(); k < count; k += all_threads()) {
        u32 start = (u32)items[k], size = (u32)(items[k] >> 32);
        u32 here = text[start], alive = low_bits(size);
        for (u32 i = 0; i + 1u < size; i++) {
            u32 following = text[start + i + 1u];
            symbol[i * width] = here;
            code[i * width] = byte_pairs[here << 8 | following];
            here = following;
        }
        symbol[(size - 1u) * width] = here;
        code[(size - 1u) * width] = NONE;
        while (true) {
            u32 best = NONE, at = 0;
            for (u32 rest = alive; rest; rest &= rest - 1u) {
                u32 i = (u32)__ffs(rest) - 1u, candidate = code[i * width];
                if (candidate < best) {
                    best = candidate;
                    at = i;
                }
            }
            if (best == NONE) break;
            u32 made = best >> 2, right = alive & ~low_bits(at + 1u);
            alive &= ~(right & (0u - right));
            right &= right - 1u;
            u32 left = alive & low_bits(at);
            symbol[at * width] = made;
            if (left && right) {
                u32 l = 31u - (u32)__clz(left), r = (u32)__ffs(right) - 1u;
                find_two_pairs(
                    pairs, shift, symbol[l * width], made, symbol[r * width], &code[l * width],
                    &code[at * width]);
            } else {
                code[at * width] = right ? find_pair(
                    pairs, shift, made, symbol[((u32)__ffs(right) - 1u) * width]) : NONE;
                if (left) {
                    u32 l = 31u - (u32)__clz(left);
                    code[l * width] = find_pair(pairs, shift, symbol[l * width], made);
                }
            }
        }
        for (; alive; alive &= alive - 1u) {
            u32 i = (u32)__ffs(alive) - 1u;
            tok[start + i] = emit[symbol[i * width]];
        }
    }
}

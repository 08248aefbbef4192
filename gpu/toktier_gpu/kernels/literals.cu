// Added tokens: the longest literal at each byte, then the leftmost ones that do not overlap.

INLINE u32 trie_child(const u64 *edges, u32 shift, u32 node, u32 byte)
{
    u64 key = (u64)node << 8 | byte, mask = ~0ull >> shift;
    u64 at = (key * GOLDEN) >> shift;
    while (true) {
        u64 edge = edges[at];
        if (edge >> 32 == key) return (u32)edge;
        if (edge == NO_SLOT) return 0;
        at = (at + 1ull) & mask;
    }
}

// found[byte]: id | bytes << ID_BITS of the longest literal that starts there, or 0. A literal ends
// where its text does, and before one that an earlier pass chose. first: a bit per byte value.
KERNEL find_literals(
    const u32 *head, const u8 *text, const u8 *mark, const u32 *first, const u64 *edges, u32 shift,
    const u32 *final, u32 *found)
{
    u32 bytes = head[HEAD_BYTES];
    for (u32 i = global_thread(); i < bytes; i += all_threads()) {
        u32 longest = 0, node = 0, byte = text[i];
        if ((first[byte >> 5] >> (byte & 31u) & 1u) && !(mark[i] & (LITERAL | INSIDE))) {
            u32 at = i;
            do {
                node = trie_child(edges, shift, node, text[at]);
                if (!node) break;
                at++;
                if (final[node]) longest = (final[node] - 1u) | (at - i) << ID_BITS;
            } while (at < bytes && !(mark[at] & (TEXT | LITERAL | INSIDE)));
        }
        found[i] = longest;
    }
}

// Choose among overlapping literals, leftmost first, into tok and mark. The thread of a literal
// that none before it reaches walks the whole group; reach is the length of the longest literal.
KERNEL choose_literals(
    const u32 *head, const u32 *starts, const u32 *found, u32 reach, u32 limit, u32 *tok, u8 *mark,
    u32 *flags)
{
    u32 bytes = head[HEAD_BYTES];
    for (u32 i = global_thread(); i < bytes; i += all_threads()) {
        if (!found[i]) continue;
        bool leads = true;
        for (u32 q = i >= reach ? i - reach + 1u : 0u; q < i; q++)
            if (found[q] && q + (found[q] >> ID_BITS) > i) leads = false;
        if (!leads) continue;
        u32 end = i + (found[i] >> ID_BITS), free = i;
        for (u32 at = i; at < end; at++) {
            if (!found[at]) continue;
            u32 stop = at + (found[at] >> ID_BITS);
            if (stop > end) end = stop;
            if (at < free) continue;
            free = stop;
            tok[at] = found[at];
            mark[at] |= LITERAL;
            for (u32 b = at + 1u; b < stop; b++) mark[b] = INSIDE;
            if (at - i > limit) {
                leave_to_host(head, starts, flags, at, LITERALS);
                break;
            }
        }
    }
}

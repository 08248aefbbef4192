// From bytes to character classes, and the check that normalization leaves a text alone.

// Zero what later kernels only add to. sizes are in words of 4 bytes.
KERNEL clear(const u32 *head, u32 *tok, u32 *mark_words, u32 *counts, u32 *flags)
{
    u32 bytes = head[HEAD_BYTES], texts = head[HEAD_TEXTS];
    for (u32 i = global_thread(); i < bytes; i += all_threads()) {
        tok[i] = 0;
        if ((i & 3u) == 0u) mark_words[i >> 2] = 0;
    }
    for (u32 i = global_thread(); i < texts; i += all_threads()) flags[i] = 0;
    if (global_thread() < COUNTS) counts[global_thread()] = 0;
}

// Mark where texts start. starts: texts + 1 places; an empty text has no byte to mark.
KERNEL mark_texts(const u32 *head, const u32 *starts, u8 *mark)
{
    for (u32 i = global_thread(); i < head[HEAD_TEXTS]; i += all_threads())
        if (starts[i] < starts[i + 1u]) mark[starts[i]] = TEXT;
}

// Class (low byte) and kind under normalization (high byte) of the character at a lead byte.
INLINE u32 properties(const u8 *text, u32 at, const u16 *pages, const u16 *table)
{
    u32 point = text[at];
    if (point >= 0xF0u)
        point = (point & 7u) << 18 | (text[at + 1u] & 63u) << 12 | (text[at + 2u] & 63u) << 6 |
                (text[at + 3u] & 63u);
    else if (point >= 0xE0u)
        point = (point & 15u) << 12 | (text[at + 1u] & 63u) << 6 | (text[at + 2u] & 63u);
    else if (point >= 0xC0u)
        point = (point & 31u) << 6 | (text[at + 1u] & 63u);
    if (point >= 0x110000u) point = 0; // not UTF-8: wrong ids, but no wild load
    return table[(u32)pages[point >> 8] << 8 | (point & 255u)];
}

#define KIND_OTHER 1u

// cls of every byte. pages: u16[0x1100], table: u16[pages used * 256]. With normalizes, a text is
// left to the host where a character may change, or marks stand out of order (the quick check of
// Unicode's annex 15; a mark at the edge of a text is compared across it, which only costs work).
KERNEL classes(
    const u32 *head, const u32 *starts, const u8 *text, const u16 *pages, const u16 *table,
    u32 normalizes, u8 *cls, u32 *flags)
{
    u32 bytes = head[HEAD_BYTES];
    for (u32 i = global_thread(); i < bytes; i += all_threads()) {
        if (continues(text[i])) {
            cls[i] = CONTINUATION;
            continue;
        }
        u32 found = properties(text, i, pages, table), kind = found >> 8;
        cls[i] = (u8)found;
        if (!normalizes || !kind) continue;
        bool asks = kind == KIND_OTHER;
        if (!asks && i) {
            u32 before = i - 1u;
            while (before && continues(text[before])) before--;
            asks = properties(text, before, pages, table) >> 8 > kind;
        }
        if (asks) leave_to_host(head, starts, flags, i, REWRITES);
    }
}

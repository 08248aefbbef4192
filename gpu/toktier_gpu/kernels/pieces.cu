// Pieces that are one word of the vocabulary; the rest cut where no token spans, and sorted by size.

// The id and flags of a word of 1 to SHORT_WORD bytes, or all ones. A slot is two words of key (the
// top byte of the second is the size), then the value.
INLINE u64 find_word(const u8 *text, u32 start, u32 size, const u64 *words, u32 shift)
{
    u64 low = load_text(text, start), high = 0;
    if (size <= 8u) low &= ~0ull >> (64u - 8u * size);
    else high = load_text(text, start + 8u) & (~0ull >> (128u - 8u * size));
    high |= (u64)size << 56;
    u64 mixed = (low ^ (low >> 32)) * MIX_A + high;
    mixed = (mixed ^ (mixed >> 29)) * MIX_B;
    u64 mask = ~0ull >> shift, at = mixed >> shift;
    while (true) {
        const u64 *slot = words + at * 3ull;
        if (slot[1] == high && slot[0] == low) return slot[2];
        if (slot[1] == 0ull) return NO_SLOT;
        at = (at + 1ull) & mask;
    }
}

// The same for a longer word. long_words: hash, index + 1; long_index: place, size, value.
INLINE u64 find_long_word(
    const u8 *text, u32 start, u32 size, const u64 *long_words, u64 mask, const u64 *long_index,
    const u8 *blob)
{
    u64 mixed = size * GOLDEN;
    for (u32 at = 0; at < size; at += 8u) {
        u64 word = load_text(text, start + at);
        if (size - at < 8u) word &= ~0ull >> ((8u - (size - at)) * 8u);
        mixed = (mixed ^ word) * MIX_A;
        mixed ^= mixed >> 32;
    }
    mixed *= MIX_B;
    for (u64 at = mixed & mask;; at = (at + 1ull) & mask) {
        u64 index = long_words[at * 2ull + 1ull];
        if (!index) return NO_SLOT;
        if (long_words[at * 2ull] != mixed) continue;
        const u64 *entry = long_index + (index - 1ull) * 3ull;
        if (entry[1] != size) continue;
        u32 same = 0;
        while (same < size && blob[entry[0] + same] == text[start + same]) same++;
        if (same == size) return entry[2];
    }
}

INLINE u64 item(u32 start, u32 size) { return (u64)size << 32 | start; }

// Each piece: an added token, a word (value >> 32 at most 1: whole pieces may also take tokens
// whose own merges give something else), or work: short_items to merge, whole to cut.
KERNEL look_up_pieces(
    const u32 *head, const u32 *starts, const u8 *text, const u8 *mark, const u32 *pieces,
    const u64 *words, u32 word_shift, const u64 *long_words, u64 long_mask, const u64 *long_index,
    const u8 *blob, u32 longest_word, u32 limit, u32 *tok, u64 *short_items, u64 *whole,
    u32 *counts, u32 *flags)
{
    u32 count = counts[PIECES], bytes = head[HEAD_BYTES];
    for (u32 first = global_thread() & ~31u; first < count; first += all_threads()) {
        u32 k = first + lane_of(), start = 0, size = 0;
        bool merges = false, cuts = false;
        if (k < count) {
            start = pieces[k];
            size = (k + 1u < count ? pieces[k + 1u] : bytes) - start;
            if (mark[start] & LITERAL) {
                // tok holds it already.
            } else if (size > limit) {
                leave_to_host(head, starts, flags, start, LONG_PIECE);
            } else {
                u64 value = NO_SLOT;
                if (size <= SHORT_WORD) value = find_word(text, start, size, words, word_shift);
                else if (size <= longest_word)
                    value = find_long_word(
                        text, start, size, long_words, long_mask, long_index, blob);
                if (value >> 32 <= 1ull) tok[start] = (u32)value | size << ID_BITS;
                else if (size <= SHORT_WORD) merges = size > 1u;
                else cuts = true;
            }
        }
        u32 at = warp_append(&counts[SHORT_ITEMS], merges);
        if (merges) short_items[at] = item(start, size);
        at = warp_append(&counts[WHOLE], cuts);
        if (cuts) whole[at] = item(start, size);
    }
}

#define SPAN_BITS 20

INLINE bool span_is_set(const u64 *spans, u64 bit) { return spans[bit >> 6] >> (bit & 63ull) & 1ull; }
INLINE u64 span_bit(u64 left, u64 right) { return ((left * MIX_A + right) * GOLDEN) >> (64 - SPAN_BITS); }

// Whether no token holds the two characters side by side, nor parts of both; each is its bytes in
// one number.
INLINE bool may_cut(const u64 *spans, u64 left, u64 right)
{
    if (span_is_set(spans, span_bit(left, right))) return false;
    if (span_is_set(spans, span_bit(left, 0ull))) return false;
    if (span_is_set(spans, span_bit(0ull, right))) return false;
    u64 first = right;
    while (first > 0xFFull) first >>= 8;
    return !span_is_set(spans, (1ull << SPAN_BITS) + ((left & 0xFFull) << 8 | first));
}

INLINE bool cut_at(const u8 *text, u32 start, u32 at, u32 end, const u64 *spans)
{
    if (at <= start || at >= end || continues(text[at])) return false;
    u32 before = at - 1u;
    while (before > start && continues(text[before])) before--;
    u64 left = 0, right = text[at];
    for (u32 b = before; b < at; b++) left = left << 8 | text[b];
    for (u32 b = at + 1u; b < end && continues(text[b]); b++) right = right << 8 | text[b];
    return may_cut(spans, left, right);
}

// One warp cuts one piece: a lane per byte; the lane of a cut closes the part on its left.
KERNEL cut_pieces(
    const u8 *text, const u64 *whole, const u64 *spans, u64 *parts, u32 *counts)
{
    u32 count = counts[WHOLE], lane = lane_of();
    for (u32 k = global_thread() >> 5; k < count; k += all_threads() >> 5) {
        u32 start = (u32)whole[k], end = start + (u32)(whole[k] >> 32), open = start;
        for (u32 base = start; base <= end; base += 32u) {
            u32 at = base + lane;
            bool cut = at == end || cut_at(text, start, at, end, spans);
            u32 mask = __ballot_sync(ALL_LANES, cut), below = mask & low_bits(lane);
            u32 from = below ? base + 31u - (u32)__clz(below) : open;
            u32 to = warp_append(&counts[PARTS], cut);
            if (cut) parts[to] = item(from, at - from);
            if (mask) open = base + 31u - (u32)__clz(mask);
        }
    }
}

// Parts: a canonical word (value >> 32 zero: nothing that only whole pieces may be), or sorted.
KERNEL look_up_parts(
    const u8 *text, const u64 *parts, const u64 *words, u32 word_shift, u32 *tok, u64 *short_items,
    u64 *medium_items, u64 *long_items, u32 *counts)
{
    u32 count = counts[PARTS];
    for (u32 first = global_thread() & ~31u; first < count; first += all_threads()) {
        u32 k = first + lane_of(), size = 0;
        u64 part = 0;
        if (k < count) {
            part = parts[k];
            u32 start = (u32)part;
            size = (u32)(part >> 32);
            if (size <= SHORT_WORD) {
                u64 value = find_word(text, start, size, words, word_shift);
                if (value >> 32 == 0ull) tok[start] = (u32)value | size << ID_BITS;
                if (value >> 32 == 0ull || size == 1u) size = 0;
            }
        }
        bool is_short = size && size <= SHORT_BYTES, is_long = size > MEDIUM_BYTES;
        bool is_medium = size > SHORT_BYTES && !is_long;
        u32 at = warp_append(&counts[SHORT_ITEMS], is_short);
        if (is_short) short_items[at] = part;
        at = warp_append(&counts[MEDIUM_ITEMS], is_medium);
        if (is_medium) medium_items[at] = part;
        at = warp_append(&counts[LONG_ITEMS], is_long);
        if (is_long) long_items[at] = part;
    }
}

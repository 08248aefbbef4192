// From flags per byte to lists of places: count by tile, sum the tiles, write. No order is lost.

INLINE u32 tiles_of(u32 bytes) { return (bytes + TILE - 1u) / TILE; }

// Sum counts over the tiles' threads; the block's total goes to tiles[tile].
INLINE void count_tile(u32 *sums, u32 *tiles, u32 tile, u32 count)
{
    u32 total;
    block_sum_below(sums, count, &total);
    if (threadIdx.x == 0u) tiles[tile] = total;
}

// starts_here[group]: of PER_THREAD bytes, the ones at which a segment starts: synchronizing
// boundaries (two_sided[x * classes + y]), and the edges of texts and added tokens. Clears piece.
KERNEL find_segments(
    const u32 *head, const u8 *cls, const u8 *mark, const u8 *two_sided, u32 kinds,
    u16 *starts_here, u8 *piece, u32 *tiles)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 first = tile * TILE + threadIdx.x * PER_THREAD, bits = 0;
        // Buffers are made of whole tiles; what stands behind the last byte is masked below.
        const u64 *marks = (const u64 *)(mark + first), *found = (const u64 *)(cls + first);
        u32 edge = first ? mark[first - 1u] : 0u, left = CONTINUATION;
        for (u32 before = first; before && left == CONTINUATION;) left = cls[--before];
        for (u32 b = 0; b < PER_THREAD && first + b < bytes; b++) {
            u32 here = (u32)(marks[b >> 3] >> (b & 7u) * 8u) & 255u;
            u32 kind = (u32)(found[b >> 3] >> (b & 7u) * 8u) & 255u;
            bool starts = (here & (TEXT | LITERAL)) || (edge & (LITERAL | INSIDE));
            if (kind != CONTINUATION) {
                if (left != CONTINUATION) starts = starts || two_sided[left * kinds + kind];
                left = kind;
            }
            bits |= (u32)(starts && !(here & INSIDE)) << b;
            edge = here;
        }
        ((u64 *)(piece + first))[0] = 0;
        ((u64 *)(piece + first))[1] = 0;
        if (first < bytes) starts_here[first / PER_THREAD] = (u16)bits;
        count_tile(sums, tiles, tile, (u32)__popc(bits));
    }
}

// Exclusive sums of tiles, in place, by one block; the total goes to counts[which].
KERNEL sum_tiles(const u32 *head, u32 *tiles, u32 *counts, u32 which)
{
    SHARED(u32, sums);
    u32 count = tiles_of(head[HEAD_BYTES]), each = (count + blockDim.x - 1u) / blockDim.x;
    u32 first = threadIdx.x * each, last = first + each, sum = 0, total;
    if (last > count) last = count;
    for (u32 t = first; t < last; t++) sum += tiles[t];
    sum = block_sum_below(sums, sum, &total);
    for (u32 t = first; t < last; t++) {
        u32 here = tiles[t];
        tiles[t] = sum;
        sum += here;
    }
    if (threadIdx.x == 0u) counts[which] = total;
}

KERNEL write_segments(const u32 *head, const u16 *starts_here, const u32 *tiles, u32 *segments)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 first = tile * TILE + threadIdx.x * PER_THREAD, total;
        u32 bits = first < bytes ? starts_here[first / PER_THREAD] : 0u;
        u32 at = tiles[tile] + block_sum_below(sums, (u32)__popc(bits), &total);
        for (; bits; bits &= bits - 1u) segments[at++] = first + (u32)__ffs(bits) - 1u;
    }
}

// The lowest bit of each of eight bytes that are 0 or 1.
INLINE u32 low_bit_of_bytes(u64 bytes) { return (u32)(bytes * 0x0102040810204080ull >> 56); }

INLINE u32 piece_bits(const u8 *piece, u32 first, u32 bytes)
{
    if (first >= bytes) return 0;
    const u64 *words = (const u64 *)(piece + first);
    u32 bits = low_bit_of_bytes(words[0]) | low_bit_of_bytes(words[1]) << 8;
    return bits & low_bits(bytes - first);
}

KERNEL count_pieces(const u32 *head, const u8 *piece, u32 *tiles)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 bits = piece_bits(piece, tile * TILE + threadIdx.x * PER_THREAD, bytes);
        count_tile(sums, tiles, tile, (u32)__popc(bits));
    }
}

KERNEL write_pieces(const u32 *head, const u8 *piece, const u32 *tiles, u32 *pieces)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 first = tile * TILE + threadIdx.x * PER_THREAD, total;
        u32 bits = piece_bits(piece, first, bytes);
        u32 at = tiles[tile] + block_sum_below(sums, (u32)__popc(bits), &total);
        for (; bits; bits &= bits - 1u) pieces[at++] = first + (u32)__ffs(bits) - 1u;
    }
}

INLINE u32 token_bits(const u32 *tok, u32 first, u32 bytes)
{
    u32 bits = 0;
    for (u32 b = 0; b < PER_THREAD && first + b < bytes; b++)
        bits |= (u32)(tok[first + b] != 0u) << b;
    return bits;
}

KERNEL count_tokens(const u32 *head, const u32 *tok, u32 *tiles)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 bits = token_bits(tok, tile * TILE + threadIdx.x * PER_THREAD, bytes);
        count_tile(sums, tiles, tile, (u32)__popc(bits));
    }
}

// out: the ids of all tokens, and behind them their byte lengths. before[byte], where a text
// starts: the tokens on its left.
KERNEL write_tokens(
    const u32 *head, const u8 *mark, const u32 *tok, const u32 *tiles, const u32 *counts, u32 *out,
    u32 *before)
{
    SHARED(u32, sums);
    u32 bytes = head[HEAD_BYTES], tokens = counts[TOKENS];
    for (u32 tile = blockIdx.x; tile < tiles_of(bytes); tile += gridDim.x) {
        u32 first = tile * TILE + threadIdx.x * PER_THREAD, total;
        u32 bits = token_bits(tok, first, bytes);
        u32 at = tiles[tile] + block_sum_below(sums, (u32)__popc(bits), &total);
        for (u32 b = 0; b < PER_THREAD && first + b < bytes; b++) {
            u32 i = first + b;
            if (mark[i] & TEXT) before[i] = at;
            if (!(bits >> b & 1u)) continue;
            out[at] = tok[i] & low_bits(ID_BITS);
            out[tokens + at] = tok[i] >> ID_BITS;
            at++;
        }
    }
}

// offsets[t]: tokens before text t; offsets[texts]: all.
KERNEL write_offsets(
    const u32 *head, const u32 *starts, const u32 *before, const u32 *counts, u32 *offsets)
{
    u32 bytes = head[HEAD_BYTES], texts = head[HEAD_TEXTS];
    for (u32 t = global_thread(); t <= texts; t += all_threads())
        offsets[t] = starts[t] < bytes ? before[starts[t]] : counts[TOKENS];
}

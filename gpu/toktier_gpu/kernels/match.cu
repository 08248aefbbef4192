// The fused pre-tokenizer machine: one thread walks one segment and marks where pieces start.

// Rows of a program: op | register << 4 | back << 8 | byte << 16 (tables.Op).
#define OP_START 0u
#define OP_SAVE 2u
#define OP_START_REGISTER 3u

struct Places {
    u32 at, last, before;     // bytes of the character just read and the two before it
    u32 saved0, saved1, saved2, saved3;
};

INLINE u32 saved(const Places &p, u32 which)
{
    return which == 0u ? p.saved0 : which == 1u ? p.saved1 : which == 2u ? p.saved2 : p.saved3;
}

INLINE void save(Places &p, u32 which, u32 value)
{
    if (which == 0u) p.saved0 = value;
    else if (which == 1u) p.saved1 = value;
    else if (which == 2u) p.saved2 = value;
    else p.saved3 = value;
}

INLINE void run_program(
    u32 number, const u32 *program_start, const u32 *program, Places &p, u8 *piece)
{
    for (u32 row = program_start[number]; row < program_start[number + 1u]; row++) {
        u32 line = program[row], op = line & 15u, which = line >> 4 & 15u, back = line >> 8 & 15u;
        u32 place = (back == 0u ? p.at : back == 1u ? p.last : p.before) + (line >> 16);
        if (op == OP_START) piece[place] = 1;
        else if (op == OP_SAVE) save(p, which, place);
        else if (op == OP_START_REGISTER) piece[saved(p, which)] = 1;
        else save(p, which, saved(p, back));
    }
}

// machine[state * (kinds + 1) + class]: program << 16 | next state; class kinds: end of text.
KERNEL match_segments(
    const u32 *head, const u32 *starts, const u32 *counts, const u32 *segments, const u8 *cls,
    const u8 *mark, const u32 *machine, u32 kinds, const u32 *program_start, const u32 *program,
    u32 limit, u8 *piece, u32 *flags)
{
    u32 count = counts[SEGMENTS], bytes = head[HEAD_BYTES];
    for (u32 k = global_thread(); k < count; k += all_threads()) {
        u32 start = segments[k], end = k + 1u < count ? segments[k + 1u] : bytes;
        if (mark[start] & LITERAL) {
            piece[start] = 1;
            continue;
        }
        if (end - start > limit) {
            piece[start] = 1;
            leave_to_host(head, starts, flags, start, LONG_SEGMENT);
            continue;
        }
        Places p = {start, start, start, 0, 0, 0, 0};
        u32 state = 0, step;
        for (u32 at = start; at < end;) {
            step = machine[state * (kinds + 1u) + cls[at]];
            p.before = p.last;
            p.last = p.at;
            p.at = at;
            state = step & 0xFFFFu;
            if (step >> 16 == 1u) piece[at] = 1;
            else if (step >> 16) run_program(step >> 16, program_start, program, p, piece);
            do at++;
            while (at < end && cls[at] == CONTINUATION);
        }
        p.before = p.last;
        p.last = p.at;
        p.at = end;
        step = machine[state * (kinds + 1u) + kinds];
        if (step >> 16) run_program(step >> 16, program_start, program, p, piece);
    }
}

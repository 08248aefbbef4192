// The shim's scheduler: fibers, barriers, and the order in which CUDA threads run.
//
// Under TSan this file is compiled without instrumentation: only the kernels are watched.
#include "cuda_shim.hpp"

namespace shim {

Fiber *current = nullptr;
Launch launch;

namespace {

Mode mode = Mode::ordered;
uint64_t random_state = 1;
Fiber home; // the scheduler itself
std::vector<Fiber *> idle, spent;
std::deque<Fiber *> ready;
std::vector<Block *> resident;
std::string failure;
// What a launch hands over to its threads, and takes over from them. Two, so that one thread's end is
// not ordered before another's beginning.
char begins, ends;

uint64_t random_number()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

#if defined(TOKTIER_TSAN)
// A fiber that has run a thread may not run another of the same launch: it would order the two.
constexpr bool kFiberPerThread = true;
void release(char *place) { __tsan_release(place); }
void acquire(char *place) { __tsan_acquire(place); }
extern "C" void AnnotateIgnoreReadsBegin(const char *, int);
extern "C" void AnnotateIgnoreReadsEnd(const char *, int);
extern "C" void AnnotateIgnoreWritesBegin(const char *, int);
extern "C" void AnnotateIgnoreWritesEnd(const char *, int);
void look_away()
{
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}
void look_again()
{
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
}
#else
constexpr bool kFiberPerThread = false;
void release(char *) {}
void acquire(char *) {}
void look_away() {}
void look_again() {}
#endif

// While it lives, TSan does not see what the current fiber does to the shim's own lists.
struct Unseen {
    Unseen() { look_away(); }
    ~Unseen() { look_again(); }
};

#if defined(__x86_64__)
extern "C" void shim_swap(void **save, void *load);
asm(R"(
.text
.globl shim_swap
.type shim_swap,@function
shim_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size shim_swap,.-shim_swap
)");
#endif

void enter(Fiber *to)
{
    Fiber *from = current;
    current = to;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&from->fake, to->stack, to->stack_size);
#endif
#if defined(TOKTIER_TSAN)
    __tsan_switch_to_fiber(to->tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
    shim_swap(&from->saved, to->saved);
#else
    swapcontext(&from->context, &to->context);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

bool take_thread(Fiber *fiber)
{
    Block *block = fiber->block;
    if (block->next == launch.block.x) return false;
    fiber->thread.x = block->order[block->next++];
    return true;
}

void run_threads()
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &home.stack_size);
    home.stack = const_cast<void *>(bottom);
#endif
    while (true) {
        Fiber *self = current;
        do {
            acquire(&begins);
            try {
                launch.call(launch.arguments);
            } catch (const std::exception &error) {
                failure = error.what();
            }
            release(&ends);
            Unseen here;
            self->block->finished++;
            if (!self->block->waiting.empty() && self->block->arrived)
                failure = "a thread ended while others wait at a barrier";
        } while (!kFiberPerThread && failure.empty() && take_thread(self));
        {
            Unseen here;
            (kFiberPerThread ? spent : idle).push_back(self);
        }
        enter(&home);
    }
}

#if !defined(__x86_64__)
void start_context() { run_threads(); }
#endif

Fiber *new_fiber()
{
    Fiber *fiber = new Fiber;
    void *memory = aligned_alloc(64, kStack);
    if (!memory) throw std::runtime_error("no memory for a fiber");
    fiber->stack = memory;
#if defined(__x86_64__)
    void **top = (void **)((char *)memory + kStack);
    *--top = nullptr; // keeps the stack aligned as after a call
    *--top = (void *)run_threads;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    fiber->saved = top;
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = memory;
    fiber->context.uc_stack.ss_size = kStack;
    makecontext(&fiber->context, start_context, 0);
#endif
#if defined(TOKTIER_TSAN)
    fiber->tsan = __tsan_create_fiber(0);
#endif
    return fiber;
}

Fiber *fiber_for(Block *block)
{
    Fiber *fiber;
    if (idle.empty()) {
        fiber = new_fiber();
    } else {
        fiber = idle.back();
        idle.pop_back();
    }
    fiber->block = block;
    take_thread(fiber);
    return fiber;
}

void yield_to_scheduler() { enter(&home); }

void wake(Block *block, int warp)
{
    auto &waiting = block->waiting;
    size_t kept = 0;
    for (auto &entry : waiting) {
        if (entry.second == warp) ready.push_back(entry.first);
        else waiting[kept++] = entry;
    }
    waiting.resize(kept);
}

Block *open_block(unsigned index)
{
    Block *block = new Block;
    block->index.x = index;
    block->order.resize(launch.block.x);
    for (unsigned i = 0; i < launch.block.x; i++) block->order[i] = i;
    if (mode != Mode::ordered)
        for (unsigned i = launch.block.x; i > 1; i--)
            std::swap(block->order[i - 1], block->order[random_number() % i]);
    block->warps.resize(launch.block.x / kWarp);
    block->shared = (unsigned char *)malloc(launch.shared_bytes);
    if (launch.shared_bytes) memset(block->shared, 0xA5, launch.shared_bytes);
    return block;
}

void close_block(size_t which)
{
    Block *block = resident[which];
    free(block->shared);
    delete block;
    resident.erase(resident.begin() + (long)which);
}

// One choice of the scheduler; false: nothing can run.
bool step()
{
    std::vector<Block *> unstarted;
    for (Block *block : resident)
        if (block->next < launch.block.x) unstarted.push_back(block);
    bool start = !unstarted.empty();
    if (start && !ready.empty() && mode != Mode::ordered) start = random_number() % 2;
    if (start) {
        Block *block = unstarted[mode == Mode::ordered ? 0 : random_number() % unstarted.size()];
        enter(fiber_for(block));
        return true;
    }
    if (ready.empty()) return false;
    size_t which = mode == Mode::ordered ? 0 : random_number() % ready.size();
    Fiber *fiber = ready[which];
    ready[which] = ready.front();
    ready.pop_front();
    enter(fiber);
    return true;
}

} // namespace

void wait_block()
{
    Unseen here;
    Fiber *self = current;
    Block *block = self->block;
    unsigned generation = block->generation;
    char *sync = &block->sync[generation % 2];
    if (block->finished) throw std::runtime_error("a barrier that some threads never reach");
    release(sync);
    if (++block->arrived == launch.block.x) {
        block->arrived = 0;
        block->generation++;
        wake(block, -1);
    } else {
        block->waiting.emplace_back(self, -1);
        yield_to_scheduler();
    }
    acquire(sync);
}

const uint64_t *exchange(unsigned operation, uint64_t value)
{
    Unseen here;
    Fiber *self = current;
    Block *block = self->block;
    int number = (int)(self->thread.x / kWarp);
    Warp *warp = &block->warps[(size_t)number];
    unsigned parity = warp->generation % 2;
    if (warp->arrived && warp->operation != operation)
        throw std::runtime_error("lanes of a warp at different operations");
    warp->operation = operation;
    warp->slots[parity][lane()] = value;
    release(&warp->sync[parity]);
    if (++warp->arrived == kWarp) {
        warp->arrived = 0;
        warp->generation++;
        wake(block, number);
    } else {
        block->waiting.emplace_back(self, number);
        yield_to_scheduler();
    }
    acquire(&warp->sync[parity]);
    return warp->slots[parity];
}

void preempt()
{
    if (mode != Mode::preempted || random_number() % 4) return;
    Unseen here;
    ready.push_back(current);
    yield_to_scheduler();
}

void set_mode(unsigned chosen, uint64_t seed)
{
    mode = (Mode)chosen;
    random_state = seed * 0x9E3779B97F4A7C15ull + 1;
}

// Run one launch to its end. An empty string, or what went wrong (the process is then of no use).
std::string run(const Launch &wanted)
{
    Unseen here;
    launch = wanted;
    if (launch.block.x % kWarp) return "a block is not made of whole warps";
#if defined(TOKTIER_TSAN)
    if (!home.tsan) home.tsan = __tsan_get_current_fiber();
#endif
    current = &home;
    release(&begins);
    std::vector<unsigned> order(launch.grid.x);
    for (unsigned i = 0; i < launch.grid.x; i++) order[i] = i;
    if (mode != Mode::ordered)
        for (unsigned i = launch.grid.x; i > 1; i--)
            std::swap(order[i - 1], order[random_number() % i]);
    size_t most = mode == Mode::preempted ? 3 : 1, opened = 0;
    while (failure.empty()) {
        while (resident.size() < most && opened < order.size())
            resident.push_back(open_block(order[opened++]));
        if (resident.empty()) break;
        bool ran = step();
        for (size_t i = resident.size(); i-- > 0;)
            if (resident[i]->finished == launch.block.x) close_block(i);
        if (!ran && failure.empty()) failure = "threads wait for each other for ever";
    }
    acquire(&ends);
    idle.insert(idle.end(), spent.begin(), spent.end());
    spent.clear();
    return failure;
}

} // namespace shim

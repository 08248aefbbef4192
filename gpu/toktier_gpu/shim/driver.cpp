// The shim as a process: allocate, copy, launch, by commands on standard input.
//
// A process, not a library: a sanitizer that finds something ends it and tells on standard error.
// Little-endian. A id size | P id offset size bytes | G id offset size -> bytes | M mode seed |
// L name grid block shared count (is_buffer value offset)* -> 0, or 1 size message.
#include "cuda_shim.hpp"
#include <map>
#include <sys/personality.h>
#include <unistd.h>

namespace shim {
void set_mode(unsigned chosen, uint64_t seed);
std::string run(const Launch &wanted);
} // namespace shim

struct Kernel {
    const char *name;
    unsigned arguments;
    shim::Call call;
};

extern const Kernel kernels[];
extern const unsigned kernel_count;

static void read_all(void *to, size_t size)
{
    if (size && fread(to, 1, size, stdin) != size) exit(0);
}

template <class T> static T read_number()
{
    T value;
    read_all(&value, sizeof value);
    return value;
}

static std::map<uint32_t, std::pair<unsigned char *, uint64_t>> buffers;

static unsigned char *place(uint32_t id, uint64_t offset, uint64_t size)
{
    auto found = buffers.find(id);
    if (found == buffers.end() || offset + size > found->second.second) {
        fprintf(stderr, "a copy outside of buffer %u\n", id);
        exit(3);
    }
    return found->second.first + offset;
}

static std::string launch()
{
    std::string name(read_number<uint8_t>(), ' ');
    read_all(&name[0], name.size());
    shim::Launch wanted;
    wanted.grid.x = read_number<uint32_t>();
    wanted.block.x = read_number<uint32_t>();
    wanted.shared_bytes = read_number<uint32_t>();
    std::vector<uint64_t> arguments(read_number<uint8_t>());
    for (uint64_t &argument : arguments) {
        bool is_buffer = read_number<uint8_t>();
        uint64_t value = read_number<uint64_t>(), offset = read_number<uint64_t>();
        argument = is_buffer ? (uint64_t)place((uint32_t)value, offset, 0) : value;
    }
    for (unsigned i = 0; i < kernel_count; i++) {
        if (name != kernels[i].name) continue;
        if (arguments.size() != kernels[i].arguments) return "wrong number of arguments";
        wanted.call = kernels[i].call;
        wanted.arguments = arguments.data();
        return shim::run(wanted);
    }
    return "no such kernel";
}

int main(int, char **argv)
{
#if defined(TOKTIER_TSAN)
    // Old TSan runtimes do not know the address layout of new kernels.
    int now = personality(0xFFFFFFFF);
    if (now >= 0 && !(now & ADDR_NO_RANDOMIZE) && personality((unsigned)now | ADDR_NO_RANDOMIZE) >= 0)
        execv("/proc/self/exe", argv);
#endif
    (void)argv;
    setvbuf(stdin, nullptr, _IOFBF, 1 << 20);
    while (true) {
        char command = (char)read_number<uint8_t>();
        if (command == 'A') {
            uint32_t id = read_number<uint32_t>();
            uint64_t size = read_number<uint64_t>();
            unsigned char *memory = (unsigned char *)malloc(size);
            memset(memory, 0xA5, size);
            buffers[id] = {memory, size};
        } else if (command == 'P') {
            uint32_t id = read_number<uint32_t>();
            uint64_t offset = read_number<uint64_t>(), size = read_number<uint64_t>();
            read_all(place(id, offset, size), size);
        } else if (command == 'G') {
            uint32_t id = read_number<uint32_t>();
            uint64_t offset = read_number<uint64_t>(), size = read_number<uint64_t>();
            fwrite(place(id, offset, size), 1, size, stdout);
            fflush(stdout);
        } else if (command == 'M') {
            unsigned mode = read_number<uint8_t>();
            shim::set_mode(mode, read_number<uint64_t>());
        } else {
            std::string failure = launch();
            uint32_t size = (uint32_t)failure.size();
            fputc(size ? 1 : 0, stdout);
            if (size) {
                fwrite(&size, sizeof size, 1, stdout);
                fwrite(failure.data(), 1, size, stdout);
            }
            fflush(stdout);
        }
    }
}

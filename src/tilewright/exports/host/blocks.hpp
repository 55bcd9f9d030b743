// What an evaluated plan needs to be launched: argument blocks as the compiled kernels declare them, and scratch memory.
#pragma once

#include "plan.hpp"

namespace {
namespace plan {

// -- argument blocks --

// Writes a number as the kernel declares it; nothing wraps or is cut off.
inline void store_number(unsigned char *where, char code, const Argument &argument) {
    const bool is_real = argument.kind == Argument::real;
    if (code == 'f' || code == 'd') {
        const double wide = is_real ? argument.value : double(argument.number);
        if (code == 'd') {
            std::memcpy(where, &wide, 8);
            return;
        }
        const float narrow = float(wide);
        if (std::isfinite(wide) && !std::isfinite(narrow)) fault(std::to_string(wide) + " is beyond the range of a float");
        std::memcpy(where, &narrow, 4);
        return;
    }
    if (code == '?') {
        *where = static_cast<unsigned char>(argument.number != 0);
        return;
    }
    static const char codes[] = "bBhHiIqQ";
    static const int bytes[] = {1, 1, 2, 2, 4, 4, 8, 8};
    static const int64_t low[] = {-128, 0, -32768, 0, INT32_MIN, 0, INT64_MIN, 0};
    static const int64_t high[] = {127, 255, 32767, 65535, INT32_MAX, UINT32_MAX, INT64_MAX, INT64_MAX};
    const int which = int(std::strchr(codes, code) - codes);
    if (argument.number < low[which] || argument.number > high[which])
        fault(std::to_string(argument.number) + " does not fit the kernel's integer of " + std::to_string(bytes[which]) +
              " byte(s)");
    std::memcpy(where, &argument.number, size_t(bytes[which])); // little-endian, as every machine with a CUDA driver
}

// The argument block of a launch; `descriptors` are 128 bytes each, in the order of the plan's maps.
inline void fill_block(const Plan &plan, const Launch &launch, const uint64_t *addresses, const unsigned char *descriptors,
                       unsigned char *block, void **parameters) {
    const Kernel &kernel = plan.kernels[launch.kernel];
    for (int i = 0; i < kernel.parameter_count; ++i) {
        const Argument &argument = plan.arguments[size_t(launch.first_argument + i)];
        unsigned char *where = block + kernel.parameters[i].offset;
        parameters[i] = where;
        switch (argument.kind) {
        case Argument::tensor: std::memcpy(where, &addresses[argument.number], 8); break;
        case Argument::absent: std::memset(where, 0, 8); break;
        case Argument::map: std::memcpy(where, descriptors + 128 * argument.number, 128); break;
        default: store_number(where, kernel.parameters[i].code, argument);
        }
    }
}

// The argument blocks of all launches, filled before the first one starts: a number that does not fit launches nothing.
class ArgumentBlocks {
  public:
    static constexpr size_t alignment = 128;

    void fill(const Plan &plan, const uint64_t *addresses, const unsigned char *descriptors) {
        size_t bytes = alignment, count = 0;
        for (const Launch &launch : plan.launches) {
            bytes += (size_t(plan.kernels[launch.kernel].block_bytes) + alignment - 1) / alignment * alignment;
            count += size_t(plan.kernels[launch.kernel].parameter_count) + 1;
        }
        if (memory_.size() < bytes) memory_.resize(bytes);
        parameters_.resize(count);
        first_.clear();
        unsigned char *block = memory_.data() + (alignment - reinterpret_cast<uintptr_t>(memory_.data()) % alignment) % alignment;
        count = 0;
        for (const Launch &launch : plan.launches) {
            const Kernel &kernel = plan.kernels[launch.kernel];
            try {
                if (kernel.block_bytes > 4096) fault("more than 4096 bytes of arguments");
                fill_block(plan, launch, addresses, descriptors, block, &parameters_[count]);
            } catch (const Fault &why) {
                throw StepError{plan.file, launch.line, why.found};
            }
            first_.push_back(count);
            count += size_t(kernel.parameter_count) + 1;
            block += (size_t(kernel.block_bytes) + alignment - 1) / alignment * alignment;
        }
    }
    void **of(size_t launch) { return &parameters_[first_[launch]]; }

  private:
    std::vector<unsigned char> memory_;
    std::vector<void *> parameters_;
    std::vector<size_t> first_;
};

// -- scratch: one allocation, what is to be cleared first --

struct Arena {
    int64_t bytes = 0, cleared_bytes = 0;
};

// Gives every scratch buffer its place; addresses of scratch slots are set relative to the arena's start.
inline Arena lay_out(const Plan &plan, uint64_t *addresses) {
    Arena arena;
    for (int pass = 0; pass < 2; ++pass) {
        for (const Buffer &one : plan.buffers) {
            if (one.is_out || (one.clearing == Clearing::zeroed) != (pass == 0)) continue;
            addresses[one.tensor.slot] = uint64_t(arena.bytes);
            arena.bytes = add(arena.bytes, round_up(one.bytes, 256));
        }
        if (pass == 0) arena.cleared_bytes = arena.bytes;
    }
    return arena;
}

} // namespace plan
} // namespace

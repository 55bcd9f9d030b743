// A door into generated host code for tests: a call as numbers in, the evaluated plan as JSON out. Nothing is launched.
#include <cstdio>

#include "blocks.hpp"
#include "maps.hpp"
#include GENERATED

namespace {

// Reads what `probe.py` packs: for every parameter, whether it is there, and then what it is.
struct Numbers {
    const int64_t *next;
    int64_t take() { return *next++; }
    void tensor(int, plan::Tensor &tensor, int slot, bool) {
        tensor.slot = slot;
        tensor.given = take() != 0;
        if (!tensor.given) return;
        tensor.dtype = plan::DType(take());
        tensor.alignment = take();
        const int64_t rank = take();
        tensor.shape.clear(), tensor.stride.clear();
        for (int64_t i = 0; i < rank; ++i) tensor.shape.push_back(take());
        for (int64_t i = 0; i < rank; ++i) tensor.stride.push_back(take());
    }
    void single(int64_t &value) { value = take(); }
    void single(bool &value) { value = take() != 0; }
    void single(double &value) {
        const int64_t bits = take();
        std::memcpy(&value, &bits, 8);
    }
    template <class T> void single(plan::List<T> &values) {
        values.clear();
        for (int64_t left = take(); left > 0; --left) {
            T value;
            single(value);
            values.push_back(value);
        }
    }
    template <class T> void number(int, T &value, int) {
        take();
        single(value);
    }
    template <class T> void number(int, std::optional<T> &value, int) {
        value.reset();
        if (take() == 0) return;
        T inner;
        single(inner);
        value = inner;
    }
};

std::string list(const int64_t *begin, const int64_t *end) {
    std::string text = "[";
    for (const int64_t *one = begin; one != end; ++one) text += (one == begin ? "" : ",") + std::to_string(*one);
    return text + "]";
}
std::string list(const plan::Sizes &sizes) { return list(sizes.begin(), sizes.end()); }
std::string three(const uint32_t *sizes) {
    const int64_t wide[] = {sizes[0], sizes[1], sizes[2]};
    return list(wide, wide + 3);
}

std::string described(const plan::Plan &plan, const plan::Launch &launch) {
    std::vector<unsigned char> block(4096), descriptors(128 * (plan.maps.size() + 1));
    std::vector<void *> parameters(256);
    uint64_t addresses[64];
    for (int i = 0; i < 64; ++i) addresses[i] = 0x1000u + unsigned(i);
    plan::fill_block(plan, launch, addresses, descriptors.data(), block.data(), parameters.data());
    const plan::Kernel &kernel = plan.kernels[launch.kernel];
    std::string hex;
    for (int i = 0; i < kernel.block_bytes; ++i) {
        char digits[3];
        std::snprintf(digits, 3, "%02x", block[size_t(i)]);
        hex += digits;
    }
    return std::string("{\"kernel\":\"") + kernel.expression + "\",\"grid\":" + three(launch.grid) + ",\"block\":" +
           three(launch.block) + ",\"smem\":" + std::to_string(launch.smem_bytes) + ",\"cluster\":" + three(launch.cluster) +
           ",\"cooperative\":" + std::to_string(launch.cooperative) + ",\"pdl\":" + std::to_string(launch.programmatic) +
           ",\"line\":" + std::to_string(launch.line) + ",\"arguments\":\"" + hex + "\"}";
}

std::string described(const plan::Plan &plan) {
    std::string text = "{\"file\":" + std::to_string(plan.file) + ",\"constants\":" +
                       list(plan.key.data(), plan.key.data() + plan.constants) + ",\"buffers\":[";
    for (const plan::Buffer &one : plan.buffers)
        text += std::string(&one == &plan.buffers[0] ? "" : ",") + "[\"" + one.name + "\"," + std::to_string(one.is_out) + "," +
                std::to_string(int(one.clearing)) + ",\"" + plan::name_of(one.tensor.dtype) + "\"," + list(one.tensor.shape) +
                "," + list(one.tensor.stride) + "," + std::to_string(one.bytes) + "]";
    text += "],\"maps\":[";
    for (const plan::TensorMap &one : plan.maps)
        text += std::string(&one == &plan.maps[0] ? "" : ",") + "[\"" + one.name + "\"," + std::to_string(one.slot) + "," +
                list(one.shape) + "," + list(one.stride_bytes) + "," + list(one.box) + "," + list(one.step) + "," +
                std::to_string(one.swizzle) + "," + std::to_string(one.fill_nan) + "," + std::to_string(one.l2_bytes) + "]";
    text += "],\"launches\":[";
    for (const plan::Launch &one : plan.launches) text += (&one == &plan.launches[0] ? "" : ",") + described(plan, one);
    return text + "]}";
}

std::string quoted(const std::string &found) {
    std::string text = "\"";
    for (char one : found) text += one == '"' || one == '\\' ? '\'' : one;
    return text + "\"";
}

} // namespace

extern "C" const char *probe(const int64_t *numbers, const int64_t *facts) {
    static std::string answer;
    const plan::Device device{facts[0], facts[1], facts[2], facts[3], facts[4], facts[5]};
    generated::Call call;
    Numbers reader{numbers};
    try {
        generated::read_call(reader, call);
        plan::Plan plan;
        std::vector<plan::Refusal> refusals;
        if (plan::select(generated::files, generated::file_count, generated::kernels, call, device, plan, refusals)) {
            answer = described(plan);
        } else {
            answer = "{\"refused\":[";
            for (const plan::Refusal &one : refusals)
                answer += std::string(&one == &refusals[0] ? "" : ",") + "[" + std::to_string(one.line) + "," + quoted(one.found) + "]";
            answer += "]}";
        }
    } catch (const plan::StepError &error) {
        answer = "{\"error\":" + std::to_string(error.line) + ",\"found\":" + quoted(error.found) + "}";
    } catch (const plan::Fault &fault) {
        answer = "{\"error\":0,\"found\":" + quoted(fault.found) + "}";
    }
    return answer.c_str();
}

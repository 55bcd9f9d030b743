// The CUDA driver by the addresses of its functions: contexts, modules, launches. No CUDA header and no library is needed:
// the few types are declared here as the driver's ABI fixes them, and whoever opens libcuda hands the addresses over.
#pragma once

#include <string>
#include <vector>

#include "blocks.hpp"
#include "maps.hpp"

namespace {
namespace driver {

using Handle = void *;

struct Attribute {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int flag;
        struct {
            unsigned int x, y, z;
        } dimension;
    } value;
};

struct Config {
    unsigned int grid[3], block[3], shared_bytes;
    Handle stream;
    Attribute *attributes;
    unsigned int attribute_count;
};

// Every function that is used, in the order in which `names` lists them.
struct Functions {
    int (*init)(unsigned int);
    int (*device_get)(int *, int);
    int (*device_attribute)(int *, int, int);
    int (*retain_context)(Handle *, int);
    int (*get_current)(Handle *);
    int (*set_current)(Handle);
    int (*load_module)(Handle *, const void *);
    int (*get_function)(Handle *, Handle, const char *);
    int (*load_function)(Handle);
    int (*set_attribute)(Handle, int, int);
    int (*launch)(const Config *, Handle, void **, void **);
    int (*clear)(uint64_t, unsigned char, size_t, Handle);
    int (*error_name)(int, const char **);
    int (*encode_map)(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *,
                      int, int, int, int);
};

static const char *const names[] = {
    "cuInit",           "cuDeviceGet",        "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent",
    "cuCtxSetCurrent",  "cuModuleLoadData",   "cuModuleGetFunction",  "cuFuncLoad",               "cuFuncSetAttribute",
    "cuLaunchKernelEx", "cuMemsetD8Async",    "cuGetErrorName",       "cuTensorMapEncodeTiled",
};
constexpr int function_count = sizeof(names) / sizeof(names[0]);
static_assert(sizeof(Functions) == function_count * sizeof(void *), "one name for each function");

static Functions functions;

struct Error {
    std::string found;
};

inline void check(int code, const std::string &tried) {
    if (code == 0) return;
    const char *name = nullptr;
    if (functions.error_name == nullptr || functions.error_name(code, &name) != 0 || name == nullptr) name = "CUDA_ERROR";
    throw Error{std::string(name) + " (" + std::to_string(code) + "): " + tried};
}

// Makes a context current on this thread for a while, whatever was current before.
class InContext {
  public:
    explicit InContext(Handle context) {
        check(functions.get_current(&before_), "ask for the thread's context");
        elsewhere_ = before_ != context;
        if (elsewhere_) check(functions.set_current(context), "make the device's context current");
    }
    ~InContext() {
        if (elsewhere_) functions.set_current(before_);
    }
    InContext(const InContext &) = delete;
    InContext &operator=(const InContext &) = delete;

  private:
    Handle before_ = nullptr;
    bool elsewhere_ = false;
};

struct LoadedKernel {
    Handle function = nullptr;
    unsigned int shared_bytes = 48 << 10; // what it may ask for without being allowed more
    bool large_clusters = false;
};

// One GPU: its facts and what was loaded onto it.
struct Gpu {
    bool is_open = false;
    Handle context = nullptr;
    plan::Device facts{};
    std::vector<Handle> modules;
    std::vector<LoadedKernel> kernels;
};

inline int64_t attribute(int device, int which) {
    int value = 0;
    check(functions.device_attribute(&value, which, device), "read an attribute of the device");
    return value;
}

inline void open(Gpu &gpu, int index, int modules, int kernels) {
    int device = 0;
    check(functions.init(0), "initialise the CUDA driver");
    check(functions.device_get(&device, index), "open cuda:" + std::to_string(index));
    check(functions.retain_context(&gpu.context, device), "retain the primary context of cuda:" + std::to_string(index));
    const int64_t cc = 10 * attribute(device, 75) + attribute(device, 76);
    const bool clusters = cc >= 90 && attribute(device, 120) != 0;
    const int64_t most = !clusters ? 1 : cc == 90 || cc == 100 || cc == 103 ? 16 : 8;
    gpu.facts = plan::Device{cc, attribute(device, 16), attribute(device, 97), attribute(device, 81), attribute(device, 38), most};
    gpu.modules.assign(size_t(modules), nullptr);
    gpu.kernels.assign(size_t(kernels), LoadedKernel{});
    gpu.is_open = true;
}

inline void load_kernel(Gpu &gpu, const plan::Kernel &kernel, int number) {
    LoadedKernel &loaded = gpu.kernels[size_t(number)];
    if (loaded.function != nullptr) return;
    InContext here(gpu.context);
    Handle function = nullptr;
    check(functions.get_function(&function, gpu.modules[size_t(kernel.module)], kernel.symbol),
          std::string("find kernel ") + kernel.expression);
    // Wholly: a lazily loaded kernel could not be launched while a graph is captured.
    check(functions.load_function(function), std::string("load kernel ") + kernel.expression);
    loaded.function = function;
}

// Everything a launch needs to be allowed, which is remembered: it is asked for once.
inline void allow(Gpu &gpu, const plan::Launch &launch) {
    LoadedKernel &loaded = gpu.kernels[size_t(launch.kernel)];
    if (launch.smem_bytes > loaded.shared_bytes) {
        check(functions.set_attribute(loaded.function, 8, int(launch.smem_bytes)), "allow dynamic shared memory");
        loaded.shared_bytes = launch.smem_bytes;
    }
    const uint64_t blocks = uint64_t(launch.cluster[0]) * launch.cluster[1] * launch.cluster[2];
    if (blocks > 8 && !loaded.large_clusters) {
        check(functions.set_attribute(loaded.function, 14, 1), "allow clusters of more than 8 blocks");
        loaded.large_clusters = true;
    }
}

inline void encode(const plan::TensorMap &map, uint64_t address, unsigned char *descriptor) {
    uint64_t shape[5], stride[5] = {};
    uint32_t box[5], step[5];
    const size_t rank = map.shape.size();
    for (size_t i = 0; i < rank; ++i) {
        shape[i] = uint64_t(map.shape[i]);
        box[i] = uint32_t(map.box[i]);
        step[i] = uint32_t(map.step[i]);
        if (i + 1 < rank) stride[i] = uint64_t(map.stride_bytes[i]);
    }
    check(functions.encode_map(descriptor, plan::map_data_type(map.dtype), uint32_t(rank), reinterpret_cast<void *>(address), shape,
                               stride, box, step, 0, plan::map_swizzle(map.swizzle), plan::map_l2(map.l2_bytes), map.fill_nan),
          std::string("encode map ") + map.name);
}

inline void start(const plan::Launch &launch, const plan::Kernel &kernel, Handle function, void **parameters, Handle stream) {
    Attribute attributes[3];
    Config config{};
    std::memcpy(config.grid, launch.grid, sizeof config.grid);
    std::memcpy(config.block, launch.block, sizeof config.block);
    config.shared_bytes = launch.smem_bytes;
    config.stream = stream;
    const uint32_t *cluster = launch.cluster[0] != 0 ? launch.cluster : kernel.cluster;
    if (cluster[0] != 0) {
        Attribute &one = attributes[config.attribute_count++];
        one.id = 4;
        one.value.dimension = {cluster[0], cluster[1], cluster[2]};
    }
    if (launch.cooperative) attributes[config.attribute_count].id = 2, attributes[config.attribute_count++].value.flag = 1;
    if (launch.programmatic) attributes[config.attribute_count].id = 6, attributes[config.attribute_count++].value.flag = 1;
    config.attributes = config.attribute_count > 0 ? attributes : nullptr;
    check(functions.launch(&config, function, parameters, nullptr), std::string("launch ") + kernel.expression);
}

// Clears, then launches, in order on one stream, in the GPU's context. `addresses` has every slot; `arena` is where
// scratch begins.
inline void run(const Gpu &gpu, const plan::Plan &plan, const uint64_t *addresses, uint64_t arena, int64_t cleared_bytes,
                Handle stream) {
    constexpr size_t most_maps = 16;
    alignas(64) unsigned char descriptors[128 * most_maps];
    if (plan.maps.size() > most_maps) throw Error{"more than 16 tensor maps in one call"};
    for (size_t i = 0; i < plan.maps.size(); ++i) encode(plan.maps[i], addresses[plan.maps[i].slot], descriptors + 128 * i);
    static thread_local plan::ArgumentBlocks blocks;
    blocks.fill(plan, addresses, descriptors);
    for (const plan::Buffer &one : plan.buffers)
        if (one.is_out && one.clearing == plan::Clearing::zeroed && one.bytes > 0)
            check(functions.clear(addresses[one.tensor.slot], 0, size_t(one.bytes), stream), std::string("clear ") + one.name);
    if (cleared_bytes > 0) check(functions.clear(arena, 0, size_t(cleared_bytes), stream), "clear scratch");
    for (size_t i = 0; i < plan.launches.size(); ++i) {
        const plan::Launch &launch = plan.launches[i];
        start(launch, plan.kernels[launch.kernel], gpu.kernels[size_t(launch.kernel)].function, blocks.of(i), stream);
    }
}

} // namespace driver
} // namespace

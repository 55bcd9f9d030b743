// The CUDA runtime under a plan: facts of the current device, clears, tensor maps, launches.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>

#include "blocks.hpp"
#include "maps.hpp"

namespace {
namespace runtime {

struct Error {
    cudaError_t code;
    std::string found;
};

inline void check(cudaError_t code, const std::string &tried) {
    if (code != cudaSuccess) throw Error{code, std::string(cudaGetErrorName(code)) + ": " + tried};
}

inline int64_t attribute(int device, cudaDeviceAttr which) {
    int value = 0;
    check(cudaDeviceGetAttribute(&value, which, device), "read an attribute of the device");
    return value;
}

// The facts of the current device, read once.
inline const plan::Device &current_device() {
    constexpr int most_devices = 64;
    static plan::Device facts[most_devices];
    static bool known[most_devices];
    static std::mutex lock;
    int device = 0;
    check(cudaGetDevice(&device), "ask for the current device");
    if (device >= most_devices) throw Error{cudaErrorInvalidDevice, "a device of number 64 or more"};
    const std::lock_guard<std::mutex> held(lock);
    if (!known[device]) {
        const int64_t cc = 10 * attribute(device, cudaDevAttrComputeCapabilityMajor) +
                           attribute(device, cudaDevAttrComputeCapabilityMinor);
        const int64_t most = cc < 90 ? 1 : cc == 90 || cc == 100 || cc == 103 ? 16 : 8;
        facts[device] = plan::Device{cc,
                                     attribute(device, cudaDevAttrMultiProcessorCount),
                                     attribute(device, cudaDevAttrMaxSharedMemoryPerBlockOptin),
                                     attribute(device, cudaDevAttrMaxSharedMemoryPerMultiprocessor),
                                     attribute(device, cudaDevAttrL2CacheSize),
                                     most};
        known[device] = true;
    }
    return facts[device];
}

using EncodeMap = CUresult (*)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *, const cuuint64_t *,
                               const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver by way of the runtime, so that nothing but the runtime is linked.
inline EncodeMap encode_map() {
    static EncodeMap found = nullptr;
    if (found == nullptr) {
        void *address = nullptr;
        cudaDriverEntryPointQueryResult answer;
#if CUDART_VERSION >= 12050
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000, cudaEnableDefault, &answer),
              "find cuTensorMapEncodeTiled");
#else
        check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &address, cudaEnableDefault, &answer),
              "find cuTensorMapEncodeTiled");
#endif
        if (address == nullptr) throw Error{cudaErrorNotSupported, "the driver has no cuTensorMapEncodeTiled"};
        found = reinterpret_cast<EncodeMap>(address);
    }
    return found;
}

inline void encode(const plan::TensorMap &map, uint64_t address, unsigned char *descriptor) {
    cuuint64_t shape[5], stride[5] = {};
    cuuint32_t box[5], step[5];
    const size_t rank = map.shape.size();
    for (size_t i = 0; i < rank; ++i) {
        shape[i] = cuuint64_t(map.shape[i]);
        box[i] = cuuint32_t(map.box[i]);
        step[i] = cuuint32_t(map.step[i]);
        if (i + 1 < rank) stride[i] = cuuint64_t(map.stride_bytes[i]);
    }
    const CUresult code = encode_map()(reinterpret_cast<CUtensorMap *>(descriptor), CUtensorMapDataType(plan::map_data_type(map.dtype)),
                                       cuuint32_t(rank), reinterpret_cast<void *>(address), shape, stride, box, step,
                                       CU_TENSOR_MAP_INTERLEAVE_NONE, CUtensorMapSwizzle(plan::map_swizzle(map.swizzle)),
                                       CUtensorMapL2promotion(plan::map_l2(map.l2_bytes)), CUtensorMapFloatOOBfill(map.fill_nan));
    if (code != CUDA_SUCCESS) throw Error{cudaErrorInvalidValue, std::string("encode map ") + map.name};
}

// Asked for at every launch that needs it: the setting belongs to the device, and asking is cheap.
inline void allow(const plan::Launch &launch, const void *function) {
    if (launch.smem_bytes > (48u << 10))
        check(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(launch.smem_bytes)),
              "allow dynamic shared memory");
    if (uint64_t(launch.cluster[0]) * launch.cluster[1] * launch.cluster[2] > 8)
        check(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), "allow large clusters");
}

inline void start(const plan::Launch &launch, const plan::Kernel &kernel, const void *function, void **parameters,
                  cudaStream_t stream) {
    allow(launch, function);
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(launch.grid[0], launch.grid[1], launch.grid[2]);
    config.blockDim = dim3(launch.block[0], launch.block[1], launch.block[2]);
    config.dynamicSmemBytes = launch.smem_bytes;
    config.stream = stream;
    config.attrs = attributes;
    const uint32_t *cluster = launch.cluster[0] != 0 ? launch.cluster : kernel.cluster;
    if (cluster[0] != 0) {
        cudaLaunchAttribute &one = attributes[config.numAttrs++];
        one.id = cudaLaunchAttributeClusterDimension;
        one.val.clusterDim.x = cluster[0], one.val.clusterDim.y = cluster[1], one.val.clusterDim.z = cluster[2];
    }
    if (launch.cooperative) {
        cudaLaunchAttribute &one = attributes[config.numAttrs++];
        one.id = cudaLaunchAttributeCooperative;
        one.val.cooperative = 1;
    }
    if (launch.programmatic) {
        cudaLaunchAttribute &one = attributes[config.numAttrs++];
        one.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        one.val.programmaticStreamSerializationAllowed = 1;
    }
    check(cudaLaunchKernelExC(&config, function, parameters), std::string("launch ") + kernel.expression);
}

// Clears, then launches, in order on one stream. `functions` has the kernels in the order of the plan's table.
inline void run(const plan::Plan &plan, const void *const *functions, const uint64_t *addresses, uint64_t arena,
                int64_t cleared_bytes, cudaStream_t stream) {
    constexpr size_t most_maps = 16;
    alignas(64) unsigned char descriptors[128 * most_maps];
    if (plan.maps.size() > most_maps) throw Error{cudaErrorInvalidValue, "more than 16 tensor maps in one call"};
    for (size_t i = 0; i < plan.maps.size(); ++i) encode(plan.maps[i], addresses[plan.maps[i].slot], descriptors + 128 * i);
    static thread_local plan::ArgumentBlocks blocks;
    blocks.fill(plan, addresses, descriptors);
    for (const plan::Buffer &one : plan.buffers)
        if (one.is_out && one.clearing == plan::Clearing::zeroed && one.bytes > 0)
            check(cudaMemsetAsync(reinterpret_cast<void *>(addresses[one.tensor.slot]), 0, size_t(one.bytes), stream),
                  std::string("clear ") + one.name);
    if (cleared_bytes > 0)
        check(cudaMemsetAsync(reinterpret_cast<void *>(arena), 0, size_t(cleared_bytes), stream), "clear scratch");
    for (size_t i = 0; i < plan.launches.size(); ++i) {
        const plan::Launch &launch = plan.launches[i];
        start(launch, plan.kernels[launch.kernel], functions[launch.kernel], blocks.of(i), stream);
    }
}

} // namespace runtime
} // namespace

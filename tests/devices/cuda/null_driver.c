/* A CUDA driver for tests on machines without one. "Device" memory is host memory; a kernel is a host function.
 *
 * It has the entry points the launchers use, keeps a log of what they asked for, and can be told to fail. A function
 * handle is the address of a null_function, which says how large each parameter is and what to run on them.
 */
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef void (*kernel_body)(void **parameters);

typedef struct {
    kernel_body body; /* may be null */
    int parameter_count;
    int sizes[16];
} null_function;

static char text[1 << 16];
static size_t used;
static CUcontext current;
static int calls_until_failure = -1;
static CUresult failure;

/* A full log stays full: what no longer fits is not recorded. */
#define RECORD(...) \
    (used + 1 < sizeof text ? (void)(used += (size_t)snprintf(text + used, sizeof text - used, __VA_ARGS__)) : (void)0)

const char *null_log(void) { return text; }
CUcontext null_current(void) { return current; }

void null_reset(CUcontext context) {
    used = 0;
    text[0] = 0;
    current = context;
    calls_until_failure = -1;
}

/* The call after `calls` more of them fails with `code`; launches and clears count. */
void null_fail(int calls, int code) {
    calls_until_failure = calls;
    failure = (CUresult)code;
}

static CUresult answer(void) {
    if (calls_until_failure < 0) return CUDA_SUCCESS;
    return calls_until_failure-- == 0 ? failure : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    RECORD("context %llx\n", (unsigned long long)(uintptr_t)context);
    return CUDA_SUCCESS;
}

#undef cuMemsetD8Async
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t bytes, CUstream stream) {
    CUresult code = answer();
    if (code != CUDA_SUCCESS) return code;
    memset((void *)(uintptr_t)address, value, bytes);
    RECORD("clear %zu bytes stream %llx\n", bytes, (unsigned long long)(uintptr_t)stream);
    return CUDA_SUCCESS;
}

static void record_attribute(const CUlaunchAttribute *attribute) {
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        RECORD(" cluster %u,%u,%u", attribute->value.clusterDim.x, attribute->value.clusterDim.y,
               attribute->value.clusterDim.z);
    else if (attribute->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
        RECORD(" cooperative %d", attribute->value.cooperative);
    else if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
        RECORD(" pdl %d", attribute->value.programmaticStreamSerializationAllowed);
    else
        RECORD(" attribute %d", (int)attribute->id);
}

#undef cuLaunchKernelEx
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction handle, void **parameters, void **extra) {
    CUresult code = answer();
    if (code != CUDA_SUCCESS) return code;
    if (extra != NULL) return CUDA_ERROR_INVALID_VALUE;
    const null_function *function = (const null_function *)handle;
    RECORD("launch grid %u,%u,%u block %u,%u,%u smem %u stream %llx", config->gridDimX, config->gridDimY,
           config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
           (unsigned long long)(uintptr_t)config->hStream);
    for (unsigned int i = 0; i < config->numAttrs; ++i) record_attribute(&config->attrs[i]);
    for (int i = 0; i < function->parameter_count; ++i) {
        RECORD(" %d:", i);
        for (int k = 0; k < function->sizes[i]; ++k) RECORD("%02x", ((const unsigned char *)parameters[i])[k]);
    }
    RECORD("\n");
    if (function->body != NULL) function->body(parameters);
    return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if ((uintptr_t)map % 64 != 0 || (uintptr_t)address % 16 != 0 || rank < 1 || rank > 5)
        return CUDA_ERROR_INVALID_VALUE;
    RECORD("map type %d rank %u interleave %d swizzle %d l2 %d fill %d", (int)type, rank, (int)interleave, (int)swizzle,
           (int)promotion, (int)fill);
    for (cuuint32_t i = 0; i < rank; ++i)
        RECORD(" [%llu/%u step %u]", (unsigned long long)shape[i], box[i], steps[i]);
    for (cuuint32_t i = 0; i + 1 < rank; ++i) RECORD(" stride %llu", (unsigned long long)strides[i]);
    RECORD("\n");
    memset(map, 0xAB, sizeof *map);
    memcpy(map, &address, sizeof address);
    return CUDA_SUCCESS;
}

/* -- what preparing asks for: one device that looks like an H200, modules that are any ELF image -- */

static null_function only_function = {NULL, 0, {0}};
static int dynamic_bytes_allowed = 48 * 1024;
static CUcontext stack[16];
static int depth;

CUresult cuInit(unsigned int flags) { return flags == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult cuDriverGetVersion(int *version) {
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    (void)device;
    snprintf(name, (size_t)length, "NVIDIA H200");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    (void)device;
    *bytes = 150ull << 30;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 60 << 20; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *value = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(uintptr_t)(0xC0DE + device);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    stack[depth++] = current;
    current = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
    *context = current;
    current = stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    if (current == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
    *module = (CUmodule)(uintptr_t)0x3000;
    RECORD("load\n");
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
    (void)module;
    RECORD("unload\n");
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    (void)module;
    if (strcmp(name, "missing") == 0) return CUDA_ERROR_NOT_FOUND;
    *function = (CUfunction)&only_function;
    return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
    (void)function;
    RECORD("load function\n");
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    (void)function;
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
    *value = dynamic_bytes_allowed;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    (void)function;
    RECORD("attribute %d = %d\n", (int)attribute, value);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
    if (value > 227 * 1024) return CUDA_ERROR_INVALID_VALUE;
    dynamic_bytes_allowed = value;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t dynamic) {
    (void)function;
    (void)dynamic;
    *blocks = 2048 / threads;
    return CUDA_SUCCESS;
}

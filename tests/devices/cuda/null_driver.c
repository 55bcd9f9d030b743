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

/* A CUDA driver for tests: it answers what an H200 would and writes down what it is asked to do. Nothing runs. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static char log_text[1 << 16];
static size_t log_used;
static void *current = (void *)0x77;

#define SAY(...) (log_used += (size_t)snprintf(log_text + log_used, sizeof log_text - log_used, __VA_ARGS__))

const char *take_log(void) {
    static char copy[sizeof log_text];
    memcpy(copy, log_text, sizeof copy);
    log_used = 0;
    log_text[0] = 0;
    return copy;
}

int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index < 2 ? 0 : 101; }
int cuDeviceGetAttribute(int *value, int which, int device) {
    (void)device;
    switch (which) {
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 120: *value = 1; break;
    case 16: *value = 132; break;
    case 97: *value = 232448; break;
    case 81: *value = 233472; break;
    case 38: *value = 62914560; break;
    default: return 1;
    }
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(0x100 + device); return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; SAY("context %p\n", context); return 0; }
int cuModuleLoadData(void **module, const void *image) {
    *module = (void *)0x200;
    SAY("module %s\n", memcmp(image, "\x7f" "ELF", 4) == 0 ? "cubin" : "ptx");
    return 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    (void)module;
    *function = (void *)0x300;
    SAY("function %s\n", name);
    return 0;
}
int cuFuncLoad(void *function) { (void)function; return 0; }
int cuFuncSetAttribute(void *function, int which, int value) { (void)function; SAY("allow %d %d\n", which, value); return 0; }
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, void *stream) {
    SAY("clear %llx %u %zu %p\n", (unsigned long long)address, value, bytes, stream);
    return 0;
}
int cuGetErrorName(int code, const char **name) { (void)code; *name = "CUDA_ERROR_OF_THE_STUB"; return 0; }
int cuTensorMapEncodeTiled(void) { return 0; }

typedef struct {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    void *attributes;
    unsigned attribute_count;
} config;

int failing_launches;

int cuLaunchKernelEx(const config *how, void *function, void **parameters, void **extra) {
    (void)function, (void)extra;
    if (failing_launches > 0) return --failing_launches, 700;
    uint64_t first;
    memcpy(&first, parameters[0], 8);
    SAY("launch %u,%u,%u %u,%u,%u %u %p %u %llx\n", how->grid[0], how->grid[1], how->grid[2], how->block[0], how->block[1],
        how->block[2], how->shared_bytes, how->stream, how->attribute_count, (unsigned long long)first);
    return 0;
}

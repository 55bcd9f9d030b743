/* Runs the clears and kernel launches of a plan in one call from Python.
 *
 * A sequence is prepared once: handles, grids, attributes, argument blocks with holes. A launch fills the holes
 * (addresses, tensor maps, late numbers) in a copy of the blocks, so one sequence may be launched from several threads,
 * and hands everything to the driver with the interpreter's lock released. It allocates no device memory, knows no
 * torch, and needs no CUDA header: the few driver types are declared below and libcuda is opened at run time.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* -- the driver's types and entry points, as its ABI fixes them -- */

typedef int driver_result;
typedef void *driver_handle;

typedef struct {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int flag;
        struct {
            unsigned int x, y, z;
        } dimension;
    } value;
} launch_attribute;

typedef struct {
    unsigned int grid[3];
    unsigned int block[3];
    unsigned int shared_bytes;
    driver_handle stream;
    launch_attribute *attributes;
    unsigned int attribute_count;
} launch_config;

enum { ATTRIBUTE_COOPERATIVE = 2, ATTRIBUTE_CLUSTER = 4, ATTRIBUTE_PROGRAMMATIC = 6, MOST_ATTRIBUTES = 3 };
enum { DESCRIPTOR_BYTES = 128, BLOCK_ALIGNMENT = 64, STACK_BYTES = 8192 };

typedef driver_result (*launch_kernel_function)(const launch_config *, driver_handle, void **, void **);
typedef driver_result (*clear_bytes_function)(uint64_t, unsigned char, size_t, driver_handle);
typedef driver_result (*get_current_function)(driver_handle *);
typedef driver_result (*set_current_function)(driver_handle);

static launch_kernel_function launch_kernel;
static clear_bytes_function clear_bytes;
static get_current_function get_current;
static set_current_function set_current;

/* -- a prepared sequence; the three field types have the layout Python packs with struct -- */

typedef struct {
    uint32_t offset, slot;
    uint64_t addend;
} pointer_field;

typedef struct {
    uint32_t offset, index;
} descriptor_field;

typedef struct {
    uint32_t offset, index;
    char code[8]; /* a struct code: ? b B h H i I q Q f d */
} late_field;

typedef struct {
    uint32_t slot, unused;
    uint64_t addend, bytes;
} clear_step;

typedef struct {
    launch_config config;
    launch_attribute attributes[MOST_ATTRIBUTES];
    driver_handle function;
    size_t block_start; /* of this launch's argument block in the copy made at a call */
    size_t block_bytes;
    size_t parameter_start;
    Py_ssize_t parameter_count, pointer_count, descriptor_count, late_count;
    unsigned char *template_block;
    uint32_t *parameters; /* offset of each in the block */
    pointer_field *pointers;
    descriptor_field *descriptors;
    late_field *late;
} launch_step;

typedef struct {
    driver_handle context;
    Py_ssize_t clear_count, launch_count;
    Py_ssize_t slots, descriptors, late; /* how many of each a call brings; of late numbers it may bring more */
    size_t all_block_bytes, all_parameters;
    clear_step *clears;
    launch_step *launches;
} sequence;

static const char CAPSULE_NAME[] = "tilewright.devices.cuda._launcher.sequence";

static void free_sequence(sequence *made) {
    if (made == NULL) return;
    if (made->launches != NULL) {
        for (Py_ssize_t i = 0; i < made->launch_count; ++i) {
            launch_step *step = &made->launches[i];
            free(step->template_block);
            free(step->parameters);
            free(step->pointers);
            free(step->descriptors);
            free(step->late);
        }
    }
    free(made->clears);
    free(made->launches);
    free(made);
}

static void destroy_capsule(PyObject *capsule) { free_sequence(PyCapsule_GetPointer(capsule, CAPSULE_NAME)); }

/* A copy of a bytes object seen as records of `record_bytes`; sets *count. NULL with an exception on failure. */
static void *copy_records(PyObject *packed, size_t record_bytes, Py_ssize_t *count) {
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(packed, &data, &size) < 0) return NULL;
    if ((size_t)size % record_bytes != 0) {
        PyErr_SetString(PyExc_ValueError, "packed records have a broken length");
        return NULL;
    }
    *count = size / (Py_ssize_t)record_bytes;
    void *copy = malloc(size > 0 ? (size_t)size : 1);
    if (copy == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    memcpy(copy, data, (size_t)size);
    return copy;
}

static void add_attributes(launch_step *step, const unsigned int cluster[3], int cooperative, int programmatic) {
    unsigned int count = 0;
    if (cluster[0] != 0) {
        step->attributes[count].id = ATTRIBUTE_CLUSTER;
        step->attributes[count].value.dimension.x = cluster[0];
        step->attributes[count].value.dimension.y = cluster[1];
        step->attributes[count++].value.dimension.z = cluster[2];
    }
    if (cooperative) {
        step->attributes[count].id = ATTRIBUTE_COOPERATIVE;
        step->attributes[count++].value.flag = 1;
    }
    if (programmatic) {
        step->attributes[count].id = ATTRIBUTE_PROGRAMMATIC;
        step->attributes[count++].value.flag = 1;
    }
    step->config.attributes = count > 0 ? step->attributes : NULL;
    step->config.attribute_count = count;
}

/* Bytes a struct code stands for; an unknown code is larger than any argument block. */
static size_t late_bytes(char code) {
    switch (code) {
    case '?': case 'b': case 'B': return 1;
    case 'h': case 'H': return 2;
    case 'i': case 'I': case 'f': return 4;
    case 'q': case 'Q': case 'd': return 8;
    default: return SIZE_MAX / 2;
    }
}

/* Holes that would write past the block, or ask for what no call brings, are refused here, once. */
static int check_fields(const sequence *made, const launch_step *step) {
    for (Py_ssize_t i = 0; i < step->pointer_count; ++i)
        if (step->pointers[i].offset + 8u > step->block_bytes || step->pointers[i].slot >= (size_t)made->slots) return -1;
    for (Py_ssize_t i = 0; i < step->descriptor_count; ++i)
        if (step->descriptors[i].offset + (size_t)DESCRIPTOR_BYTES > step->block_bytes ||
            step->descriptors[i].index >= (size_t)made->descriptors)
            return -1;
    for (Py_ssize_t i = 0; i < step->late_count; ++i)
        if (step->late[i].offset + late_bytes(step->late[i].code[0]) > step->block_bytes ||
            step->late[i].index >= (size_t)made->late)
            return -1;
    for (Py_ssize_t i = 0; i < step->parameter_count; ++i)
        if (step->parameters[i] >= step->block_bytes) return -1;
    return 0;
}

static int read_launch(PyObject *description, sequence *made, launch_step *step) {
    unsigned long long function;
    unsigned int cluster[3];
    unsigned int *grid = step->config.grid, *block = step->config.block;
    int cooperative, programmatic;
    PyObject *template_block, *parameters, *pointers, *descriptors, *late;
    Py_ssize_t block_bytes;
    if (!PyArg_ParseTuple(description, "K(III)(III)I(III)ppSSSSS", &function, &grid[0], &grid[1], &grid[2], &block[0],
                          &block[1], &block[2], &step->config.shared_bytes, &cluster[0], &cluster[1], &cluster[2],
                          &cooperative, &programmatic, &template_block, &parameters, &pointers, &descriptors, &late))
        return -1;
    step->function = (driver_handle)(uintptr_t)function;
    add_attributes(step, cluster, cooperative, programmatic);
    if ((step->template_block = copy_records(template_block, 1, &block_bytes)) == NULL) return -1;
    if ((step->parameters = copy_records(parameters, sizeof(uint32_t), &step->parameter_count)) == NULL) return -1;
    if ((step->pointers = copy_records(pointers, sizeof(pointer_field), &step->pointer_count)) == NULL) return -1;
    if ((step->descriptors = copy_records(descriptors, sizeof(descriptor_field), &step->descriptor_count)) == NULL)
        return -1;
    if ((step->late = copy_records(late, sizeof(late_field), &step->late_count)) == NULL) return -1;
    step->block_bytes = (size_t)block_bytes;
    step->block_start = made->all_block_bytes;
    made->all_block_bytes += (step->block_bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
    step->parameter_start = made->all_parameters;
    made->all_parameters += (size_t)step->parameter_count;
    if (check_fields(made, step) < 0) {
        PyErr_SetString(PyExc_ValueError, "a field of the launch lies outside its argument block or names nothing");
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(prepare_doc, "prepare(context, slots, descriptors, late, clears, launches) -> sequence\n\n"
                          "A sequence that `launch` runs. `clears` is bytes, `launches` a tuple of descriptions.");

static PyObject *prepare(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long context;
    Py_ssize_t slots, descriptors, late;
    PyObject *clears, *launches;
    if (!PyArg_ParseTuple(arguments, "KnnnSO!", &context, &slots, &descriptors, &late, &clears, &PyTuple_Type, &launches))
        return NULL;
    sequence *made = calloc(1, sizeof(sequence));
    if (made == NULL) return PyErr_NoMemory();
    made->context = (driver_handle)(uintptr_t)context;
    made->slots = slots;
    made->descriptors = descriptors;
    made->late = late;
    Py_ssize_t count = PyTuple_Size(launches);
    made->launches = calloc(count > 0 ? (size_t)count : 1, sizeof(launch_step));
    if (made->launches == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    made->launch_count = count;
    if ((made->clears = copy_records(clears, sizeof(clear_step), &made->clear_count)) == NULL) goto failed;
    for (Py_ssize_t i = 0; i < made->clear_count; ++i) {
        if (made->clears[i].slot >= (size_t)slots) {
            PyErr_SetString(PyExc_ValueError, "a clear names no slot");
            goto failed;
        }
    }
    for (Py_ssize_t i = 0; i < count; ++i)
        if (read_launch(PyTuple_GetItem(launches, i), made, &made->launches[i]) < 0) goto failed;
    PyObject *capsule = PyCapsule_New(made, CAPSULE_NAME, destroy_capsule);
    if (capsule != NULL) return capsule;
failed:
    free_sequence(made);
    return NULL;
}

/* -- a call -- */

static int store_integer(unsigned char *where, char code, PyObject *value) {
    if (code == 'Q') {
        uint64_t wide = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred()) return -1;
        memcpy(where, &wide, 8);
        return 0;
    }
    static const char codes[] = "bBhHiIq";
    static const long long low[] = {-128, 0, -32768, 0, INT32_MIN, 0, INT64_MIN};
    static const long long high[] = {127, 255, 32767, 65535, INT32_MAX, UINT32_MAX, INT64_MAX};
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return -1;
    int which = (int)(strchr(codes, code) - codes); /* one of them: prepare checked */
    size_t size = late_bytes(code);
    if (number < low[which] || number > high[which]) {
        PyErr_Format(PyExc_OverflowError, "%lld does not fit the kernel's integer parameter of %zu byte(s)", number, size);
        return -1;
    }
    memcpy(where, &number, size); /* little-endian, as every machine with a CUDA driver */
    return 0;
}

static int store_late(unsigned char *where, char code, PyObject *value) {
    if (code == 'f' || code == 'd') {
        double wide = PyFloat_AsDouble(value);
        if (wide == -1.0 && PyErr_Occurred()) return -1;
        if (code == 'd') {
            memcpy(where, &wide, 8);
            return 0;
        }
        float narrow = (float)wide;
        if (isfinite(wide) && !isfinite(narrow)) {
            PyErr_Format(PyExc_OverflowError, "%R does not fit the kernel's parameter of type float", value);
            return -1;
        }
        memcpy(where, &narrow, 4);
        return 0;
    }
    if (code == '?') {
        int truth = PyObject_IsTrue(value);
        if (truth < 0) return -1;
        *where = (unsigned char)truth;
        return 0;
    }
    return store_integer(where, code, value);
}

static int fill_blocks(const sequence *made, unsigned char *blocks, void **parameters, const uint64_t *addresses,
                       PyObject *descriptors, PyObject *late) {
    for (Py_ssize_t i = 0; i < made->launch_count; ++i) {
        const launch_step *step = &made->launches[i];
        unsigned char *block = blocks + step->block_start;
        memcpy(block, step->template_block, step->block_bytes);
        for (Py_ssize_t k = 0; k < step->pointer_count; ++k) {
            uint64_t address = addresses[step->pointers[k].slot] + step->pointers[k].addend;
            memcpy(block + step->pointers[k].offset, &address, 8);
        }
        for (Py_ssize_t k = 0; k < step->descriptor_count; ++k) {
            char *data;
            Py_ssize_t size;
            PyObject *descriptor = PyTuple_GetItem(descriptors, step->descriptors[k].index);
            if (PyBytes_AsStringAndSize(descriptor, &data, &size) < 0) return -1;
            if (size != DESCRIPTOR_BYTES) {
                PyErr_Format(PyExc_ValueError, "a tensor map has %zd bytes instead of 128", size);
                return -1;
            }
            memcpy(block + step->descriptors[k].offset, data, DESCRIPTOR_BYTES);
        }
        for (Py_ssize_t k = 0; k < step->late_count; ++k) {
            const late_field *field = &step->late[k];
            if (store_late(block + field->offset, field->code[0], PyTuple_GetItem(late, field->index)) < 0) return -1;
        }
        for (Py_ssize_t k = 0; k < step->parameter_count; ++k)
            parameters[step->parameter_start + (size_t)k] = block + step->parameters[k];
    }
    return 0;
}

/* 0, or the driver's code below and one more than the number of the step that failed above. */
static uint64_t run_steps(const sequence *made, void **parameters, const uint64_t *addresses, driver_handle stream) {
    for (Py_ssize_t i = 0; i < made->clear_count; ++i) {
        const clear_step *step = &made->clears[i];
        driver_result code = clear_bytes(addresses[step->slot] + step->addend, 0, (size_t)step->bytes, stream);
        if (code != 0) return ((uint64_t)(i + 1) << 32) | (uint32_t)code;
    }
    for (Py_ssize_t i = 0; i < made->launch_count; ++i) {
        const launch_step *step = &made->launches[i];
        launch_config config = step->config;
        config.stream = stream;
        driver_result code = launch_kernel(&config, step->function, parameters + step->parameter_start, NULL);
        if (code != 0) return ((uint64_t)(made->clear_count + i + 1) << 32) | (uint32_t)code;
    }
    return 0;
}

static uint64_t run_in_context(const sequence *made, void **parameters, const uint64_t *addresses, driver_handle stream) {
    driver_handle before = NULL;
    driver_result code = get_current(&before);
    if (code == 0 && before == made->context) return run_steps(made, parameters, addresses, stream);
    if (code == 0) code = set_current(made->context);
    if (code != 0) return (uint32_t)code;
    uint64_t failure = run_steps(made, parameters, addresses, stream);
    code = set_current(before);
    return failure != 0 ? failure : (uint32_t)code;
}

static int read_addresses(const sequence *made, PyObject *pointers, uint64_t *addresses) {
    for (Py_ssize_t i = 0; i < made->slots; ++i) {
        addresses[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(pointers, i));
        if (addresses[i] == (uint64_t)-1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

PyDoc_STRVAR(launch_doc, "launch(sequence, stream, pointers, descriptors, late) -> int\n\n"
                         "Run a sequence on a stream. 0 when the driver took everything; else the driver's code in the\n"
                         "low 32 bits and one more than the number of the failing step above them.");

static PyObject *launch(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
    (void)module;
    if (count != 5) {
        PyErr_Format(PyExc_TypeError, "launch takes 5 arguments, not %zd", count);
        return NULL;
    }
    const sequence *made = PyCapsule_GetPointer(arguments[0], CAPSULE_NAME);
    if (made == NULL) return NULL;
    driver_handle stream = (driver_handle)(uintptr_t)PyLong_AsUnsignedLongLong(arguments[1]);
    if (stream == (driver_handle)(uintptr_t)-1 && PyErr_Occurred()) return NULL;
    PyObject *pointers = arguments[2], *descriptors = arguments[3], *late = arguments[4];
    if (PyTuple_Size(pointers) != made->slots || PyTuple_Size(descriptors) != made->descriptors ||
        PyTuple_Size(late) < made->late) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "the call brings the wrong number of values");
        return NULL;
    }
    if (launch_kernel == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the driver is not open; call open_driver first");
        return NULL;
    }
    size_t bytes = made->all_block_bytes + made->all_parameters * sizeof(void *) + (size_t)made->slots * 8;
    _Alignas(BLOCK_ALIGNMENT) unsigned char on_stack[STACK_BYTES];
    unsigned char *raw = NULL, *memory = on_stack;
    if (bytes > STACK_BYTES) {
        raw = malloc(bytes + BLOCK_ALIGNMENT);
        if (raw == NULL) return PyErr_NoMemory();
        memory = raw + (BLOCK_ALIGNMENT - (uintptr_t)raw % BLOCK_ALIGNMENT) % BLOCK_ALIGNMENT;
    }
    void **parameters = (void **)(memory + made->all_block_bytes);
    uint64_t *addresses = (uint64_t *)(parameters + made->all_parameters);
    PyObject *answer = NULL;
    if (read_addresses(made, pointers, addresses) == 0 &&
        fill_blocks(made, memory, parameters, addresses, descriptors, late) == 0) {
        PyThreadState *state = PyEval_SaveThread();
        uint64_t failure = run_in_context(made, parameters, addresses, stream);
        PyEval_RestoreThread(state);
        answer = PyLong_FromUnsignedLongLong(failure);
    }
    free(raw);
    return answer;
}

PyDoc_STRVAR(open_driver_doc, "open_driver(path) -> None\n\nOpen libcuda; OSError when it or an entry point is missing.");

static PyObject *open_driver(PyObject *module, PyObject *path) {
    (void)module;
    PyObject *encoded = PyUnicode_AsUTF8String(path);
    if (encoded == NULL) return NULL;
    char *text = PyBytes_AsString(encoded);
    void *library = text != NULL ? dlopen(text, RTLD_NOW | RTLD_LOCAL) : NULL;
    Py_DECREF(encoded);
    if (library != NULL) {
        launch_kernel_function found_launch = (launch_kernel_function)dlsym(library, "cuLaunchKernelEx");
        clear_bytes_function found_clear = (clear_bytes_function)dlsym(library, "cuMemsetD8Async");
        get_current_function found_get = (get_current_function)dlsym(library, "cuCtxGetCurrent");
        set_current_function found_set = (set_current_function)dlsym(library, "cuCtxSetCurrent");
        if (found_launch != NULL && found_clear != NULL && found_get != NULL && found_set != NULL) {
            launch_kernel = found_launch;
            clear_bytes = found_clear;
            get_current = found_get;
            set_current = found_set;
            Py_RETURN_NONE;
        }
    }
    const char *reason = dlerror();
    PyErr_Format(PyExc_OSError, "cannot use %U as the CUDA driver: %s", path, reason != NULL ? reason : "no reason given");
    return NULL;
}

static PyMethodDef methods[] = {
    {"open_driver", open_driver, METH_O, open_driver_doc},
    {"prepare", prepare, METH_VARARGS, prepare_doc},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, launch_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_launcher", "Clears and kernel launches of a plan in one call.", -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__launcher(void) { return PyModule_Create(&module_definition); }

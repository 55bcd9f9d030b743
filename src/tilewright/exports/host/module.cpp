// The exported operation as a Python function on CUDA tensors: read the arguments, evaluate the plan, allocate, launch.
//
// Python's stable ABI only, so one build serves every Python from 3.10 on and every torch: tensors are read through their
// Python attributes. What torch does - allocate, name the current stream - is handed over by `setup`.
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <deque>

#include "driver.hpp"

#include "generated.hpp"
#include "python_arguments.hpp"

#ifdef __GLIBCXX__
// libstdc++ has it since 2021 only; with one of our own the module loads beside older ones too.
namespace std {
[[noreturn]] __attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw std::bad_alloc(); }
} // namespace std
#endif

namespace {

std::deque<driver::Gpu> gpus; // their places stay: another thread may be launching on one

// -- a call --

driver::Gpu &gpu_of(int index) {
    if (driver::functions.init == nullptr) throw driver::Error{"libcuda.so.1 was not found; install the NVIDIA driver"};
    if (size_t(index) >= gpus.size()) gpus.resize(size_t(index) + 1);
    driver::Gpu &gpu = gpus[size_t(index)];
    if (!gpu.is_open) {
        int kernels = 0;
        for (int i = 0; i < generated::file_count; ++i) kernels += generated::files[i].row_count;
        driver::open(gpu, index, generated::module_count, kernels);
    }
    return gpu;
}

void load(driver::Gpu &gpu, int number) {
    const plan::Kernel &kernel = generated::kernels[number];
    driver::Handle &module = gpu.modules[size_t(kernel.module)];
    if (module == nullptr) {
        const Ref image(PyObject_CallFunction(hooks.image, "iL", kernel.module, (long long)gpu.facts.cc));
        const char *bytes = PyBytes_AsString(image.get());
        if (bytes == nullptr) throw PythonError{};
        driver::InContext here(gpu.context);
        driver::check(driver::functions.load_module(&module, bytes), "load a module; was it exported for this GPU?");
    }
    driver::load_kernel(gpu, kernel, number);
}

Ref tuple_of(const plan::Sizes &sizes) {
    Ref tuple(PyTuple_New(Py_ssize_t(sizes.size())));
    for (size_t i = 0; i < sizes.size(); ++i) {
        PyObject *size = PyLong_FromLongLong(sizes[i]);
        if (size == nullptr || PyTuple_SetItem(tuple.get(), Py_ssize_t(i), size) < 0) throw PythonError{};
    }
    return tuple;
}

Ref allocate(PyObject *like, const plan::Tensor &tensor) {
    const Ref shape = tuple_of(tensor.shape);
    const bool plain = plan::is_contiguous(tensor);
    const Ref method(PyObject_GetAttr(like, plain ? word_new_empty : word_new_empty_strided));
    const Ref arguments(plain ? PyTuple_Pack(1, shape.get()) : PyTuple_Pack(2, shape.get(), tuple_of(tensor.stride).get()));
    return Ref(PyObject_Call(method.get(), arguments.get(), dtype_keywords[int(tensor.dtype)]));
}

uint64_t address_of(PyObject *tensor) {
    const uint64_t address = PyLong_AsUnsignedLongLong(call_method(tensor, word_data_ptr).get());
    if (PyErr_Occurred()) throw PythonError{};
    return address;
}

bool is_watched(const Reader &reader) {
    if (reader.wants_grad && truth_of(Ref(PyObject_CallObject(hooks.grad_enabled, nullptr)).get())) return true;
    for (Py_ssize_t i = 0, count = PyTuple_Size(hooks.watchers); i < count; ++i)
        if (truth_of(Ref(PyObject_CallObject(PyTuple_GetItem(hooks.watchers, i), nullptr)).get())) return true;
    return false;
}

// What is changed in place may share no memory with another argument.
void check_overlap(const generated::Call &call, const Reader &reader) {
    for (int one = 0; one < generated::tensor_count; ++one) {
        if (!generated::is_in_place[one] || !call.tensors[one].given) continue;
        for (int other = 0; other < generated::tensor_count; ++other) {
            const plan::Tensor &a = call.tensors[one], &b = call.tensors[other];
            if (one == other || !b.given || !plan::is_contiguous(a) || !plan::is_contiguous(b)) continue;
            const uint64_t a_end = reader.addresses[one] + uint64_t(plan::elements(a) * plan::size_of(a.dtype));
            const uint64_t b_end = reader.addresses[other] + uint64_t(plan::elements(b) * plan::size_of(b.dtype));
            if (reader.addresses[one] < b_end && reader.addresses[other] < a_end) {
                PyErr_Format(PyExc_RuntimeError, "argument tensor %d is changed in place and shares memory with tensor %d", one + 1,
                             other + 1);
                throw PythonError{};
            }
        }
    }
}

std::string reasons(const std::vector<plan::Refusal> &refusals) {
    std::string text;
    for (const plan::Refusal &one : refusals)
        text += (text.empty() ? "" : "; ") + std::string(generated::files[one.file].name) + ":" + std::to_string(one.line) + ": " + one.found;
    return text;
}

PyObject *results_of(std::vector<Ref> &made, const plan::Plan &plan) {
    const int *order = generated::result_buffers[plan.file];
    if (generated::result_count == 0) Py_RETURN_NONE;
    if (generated::result_count == 1) return made[size_t(order[0])].release();
    Ref tuple(PyTuple_New(generated::result_count));
    for (int i = 0; i < generated::result_count; ++i)
        if (PyTuple_SetItem(tuple.get(), i, made[size_t(order[i])].release()) < 0) throw PythonError{};
    return tuple.release();
}

void mark_changed(const generated::Call &call, PyObject *const *arguments) {
    for (int slot = 0; slot < generated::tensor_count; ++slot) {
        if (!generated::is_in_place[slot] || !call.tensors[slot].given) continue;
        PyObject *tensor = arguments[generated::tensor_positions[slot]];
        if (truth_of(call_method(tensor, word_is_inference).get())) continue;
        Ref(PyObject_CallFunctionObjArgs(hooks.increment_version, tensor, nullptr));
    }
}

PyObject *run(PyObject *const *arguments, bool short_way) {
    Reader reader{arguments, short_way};
    generated::Call call;
    static thread_local plan::Plan plan;
    std::vector<plan::Refusal> refusals;
    generated::read_call(reader, call);
    if (reader.device < 0 || (short_way && is_watched(reader))) throw NotPlain{};
    driver::Gpu &gpu = gpu_of(reader.device);
    if (!plan::select(generated::files, generated::file_count, generated::kernels, call, gpu.facts, plan, refusals)) {
        if (short_way) throw NotPlain{};
        PyErr_SetString(refused, reasons(refusals).c_str());
        throw PythonError{};
    }
    check_overlap(call, reader);
    for (const plan::Launch &launch : plan.launches) load(gpu, launch.kernel);
    const plan::Arena arena = plan::lay_out(plan, reader.addresses);
    std::vector<Ref> made; // a result for each `out` buffer, nothing for scratch
    made.reserve(plan.buffers.size());
    for (const plan::Buffer &one : plan.buffers) {
        if (one.is_out) {
            made.push_back(allocate(reader.first, one.tensor));
            reader.addresses[one.tensor.slot] = address_of(made.back().get());
        } else {
            made.push_back(Ref((Py_INCREF(Py_None), Py_None)));
        }
    }
    uint64_t scratch = 0;
    std::vector<Ref> kept; // scratch, until everything is on the stream
    if (arena.bytes > 0) {
        plan::Sizes bytes;
        bytes.push_back(arena.bytes);
        kept.push_back(allocate(reader.first, plan::buffer(plan::DType::u8, bytes)));
        scratch = address_of(kept.back().get());
    }
    for (const plan::Buffer &one : plan.buffers)
        if (!one.is_out) reader.addresses[one.tensor.slot] += scratch;
    const Ref stream(PyObject_CallFunction(hooks.current_stream, "i", reader.device));
    driver::Handle handle = reinterpret_cast<driver::Handle>(uintptr_t(PyLong_AsUnsignedLongLong(stream.get())));
    if (PyErr_Occurred()) throw PythonError{};
    {
        driver::InContext here(gpu.context);
        for (const plan::Launch &one : plan.launches) driver::allow(gpu, one);
        const WithoutLock others_may_run;
        driver::run(gpu, plan, reader.addresses, scratch, arena.cleared_bytes, handle);
    }
    mark_changed(call, arguments);
    return results_of(made, plan);
}

PyObject *guarded(PyObject *const *arguments, Py_ssize_t count, bool short_way) {
    if (count != generated::parameter_count) {
        PyErr_Format(PyExc_TypeError, "takes %d arguments, %zd were given", generated::parameter_count, count);
        return nullptr;
    }
    try {
        return run(arguments, short_way);
    } catch (const NotPlain &) {
    } catch (const PythonError &) {
        if (!short_way) return nullptr;
        PyErr_Clear(); // the long way says what is wrong
    } catch (const plan::Fault &fault) {
        if (!short_way) return PyErr_SetString(refused, fault.found.c_str()), nullptr;
    } catch (const plan::StepError &error) {
        PyErr_Format(PyExc_RuntimeError, "%s:%d: %s", generated::files[error.file].name, error.line, error.found.c_str());
        return nullptr;
    } catch (const driver::Error &error) {
        return PyErr_SetString(PyExc_RuntimeError, error.found.c_str()), nullptr;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
    if (!short_way) return PyErr_SetString(PyExc_RuntimeError, "no argument is a CUDA tensor"), nullptr;
    Py_INCREF(Py_NotImplemented);
    return Py_NotImplemented;
}

PyObject *call(PyObject *, PyObject *const *arguments, Py_ssize_t count) { return guarded(arguments, count, true); }
PyObject *launch(PyObject *, PyObject *const *arguments, Py_ssize_t count) { return guarded(arguments, count, false); }

// -- what Python hands over --

PyObject *setup(PyObject *, PyObject *arguments) {
    if (!PyArg_ParseTuple(arguments, "OOOOOOO", &hooks.tensor_types, &hooks.dtypes, &hooks.current_stream, &hooks.grad_enabled,
                          &hooks.watchers, &hooks.image, &hooks.increment_version))
        return nullptr;
    for (PyObject *one : {hooks.tensor_types, hooks.dtypes, hooks.current_stream, hooks.grad_enabled, hooks.watchers, hooks.image,
                          hooks.increment_version})
        Py_INCREF(one);
    for (int i = 0; i < 12; ++i) {
        dtype_keywords[i] = PyDict_New();
        if (dtype_keywords[i] == nullptr || PyDict_SetItem(dtype_keywords[i], word_dtype, PyTuple_GetItem(hooks.dtypes, i)) < 0)
            return nullptr;
    }
    Py_RETURN_NONE;
}

PyObject *open_driver(PyObject *, PyObject *addresses) {
    void *found[driver::function_count];
    for (int i = 0; i < driver::function_count; ++i) {
        PyObject *address = PyDict_GetItemString(addresses, driver::names[i]);
        found[i] = address != nullptr ? PyLong_AsVoidPtr(address) : nullptr;
        if (PyErr_Occurred()) return nullptr;
        if (found[i] == nullptr) return PyErr_Format(PyExc_OSError, "the CUDA driver has no %s; install a newer one", driver::names[i]);
    }
    std::memcpy(static_cast<void *>(&driver::functions), found, sizeof found);
    Py_RETURN_NONE;
}

PyObject *driver_names(PyObject *, PyObject *) {
    PyObject *list = PyTuple_New(driver::function_count);
    for (int i = 0; list != nullptr && i < driver::function_count; ++i)
        PyTuple_SetItem(list, i, PyUnicode_FromString(driver::names[i]));
    return list;
}

PyMethodDef methods[] = {
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL, "Run it, or answer NotImplemented where torch must have a say."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Run it on CUDA tensors; raises Refused where no kernel takes them."},
    {"setup", setup, METH_VARARGS, "Hand over what torch does."},
    {"open_driver", open_driver, METH_O, "Hand over the addresses of the driver's functions."},
    {"driver_names", driver_names, METH_NOARGS, "The driver's functions that are needed."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", "An exported operation.", -1, methods, nullptr, nullptr, nullptr, nullptr};

} // namespace

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == nullptr) return nullptr;
    refused = PyErr_NewException("_native.Refused", PyExc_RuntimeError, nullptr);
    if (refused == nullptr || PyModule_AddObjectRef(module, "Refused", refused) < 0) return nullptr;
    const struct {
        PyObject **word;
        const char *text;
    } words[] = {{&word_shape, "shape"},         {&word_stride, "stride"},       {&word_dtype, "dtype"},
                 {&word_data_ptr, "data_ptr"},   {&word_get_device, "get_device"}, {&word_requires_grad, "requires_grad"},
                 {&word_is_neg, "is_neg"},       {&word_new_empty, "new_empty"}, {&word_new_empty_strided, "new_empty_strided"},
                 {&word_is_inference, "is_inference"}};
    for (const auto &one : words)
        if ((*one.word = PyUnicode_InternFromString(one.text)) == nullptr) return nullptr;
    return module;
}

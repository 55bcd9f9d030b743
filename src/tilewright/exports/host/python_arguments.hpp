// The arguments of a call out of Python: tensors through their attributes, numbers with their types checked.
#pragma once

#include <Python.h>

#include "plan.hpp"

namespace {

// A Python error is set.
struct PythonError {};
// Not a call for the short way: a subclass, a gradient, a mode, a tensor of another device.
struct NotPlain {};

struct Hooks {
    PyObject *tensor_types;  // torch.Tensor and torch.nn.Parameter
    PyObject *dtypes;        // in the order of plan::DType; None for one that this torch has not
    PyObject *current_stream; // of a device's index
    PyObject *grad_enabled;
    PyObject *watchers;  // functions that answer whether somebody watches or rewrites operations
    PyObject *image;     // of a module's number and a compute capability: the bytes to load
    PyObject *increment_version;
};
Hooks hooks;
PyObject *refused; // the exception: no kernel takes the call
PyObject *word_shape, *word_stride, *word_dtype, *word_data_ptr, *word_get_device, *word_requires_grad, *word_is_neg,
    *word_new_empty, *word_new_empty_strided, *word_is_inference;
PyObject *dtype_keywords[12];

// -- owning references --

class Ref {
  public:
    explicit Ref(PyObject *object) : object_(object) {
        if (object == nullptr) throw PythonError{};
    }
    ~Ref() { Py_XDECREF(object_); }
    Ref(const Ref &) = delete;
    Ref &operator=(const Ref &) = delete;
    Ref(Ref &&other) noexcept : object_(other.object_) { other.object_ = nullptr; }
    PyObject *get() const { return object_; }
    PyObject *release() {
        PyObject *object = object_;
        object_ = nullptr;
        return object;
    }

  private:
    PyObject *object_;
};

// The interpreter's lock given up for a while: a full queue of launches makes the driver wait.
class WithoutLock {
  public:
    WithoutLock() : state_(PyEval_SaveThread()) {}
    ~WithoutLock() { PyEval_RestoreThread(state_); }

  private:
    PyThreadState *state_;
};

int64_t integer_of(PyObject *object) {
    const long long value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw PythonError{};
    return value;
}

bool truth_of(PyObject *object) {
    const int value = PyObject_IsTrue(object);
    if (value < 0) throw PythonError{};
    return value != 0;
}

Ref call_method(PyObject *object, PyObject *name) { return Ref(PyObject_CallMethodObjArgs(object, name, nullptr)); }

void read_sizes(PyObject *tuple, plan::Sizes &sizes) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0) throw PythonError{};
    sizes.clear();
    for (Py_ssize_t i = 0; i < count; ++i) sizes.push_back(integer_of(PyTuple_GetItem(tuple, i)));
}

// -- arguments --

struct Reader {
    PyObject *const *arguments;
    bool short_way;
    int device = -1;
    bool wants_grad = false;
    PyObject *first = nullptr; // the first tensor: results are made like it
    uint64_t addresses[generated::slot_count + 1] = {};

    void tensor(int position, plan::Tensor &tensor, int slot, bool optional) {
        PyObject *object = arguments[position];
        tensor.slot = slot;
        tensor.given = false;
        if (object == Py_None) {
            if (optional) return;
            PyErr_Format(PyExc_TypeError, "argument %d is a tensor, found None", position + 1);
            throw PythonError{};
        }
        check_kind(object, position);
        if (short_way && !wants_grad) wants_grad = truth_of(Ref(PyObject_GetAttr(object, word_requires_grad)).get());
        const int index = int(integer_of(call_method(object, word_get_device).get()));
        if (index < 0 && short_way) throw NotPlain{};
        if (index < 0 || (device >= 0 && device != index)) {
            PyErr_Format(PyExc_RuntimeError, "argument %d is on another device than the rest; all tensors lie on one GPU", position + 1);
            throw PythonError{};
        }
        device = index;
        if (first == nullptr) first = object;
        read_layout(object, tensor);
        const uint64_t address = PyLong_AsUnsignedLongLong(call_method(object, word_data_ptr).get());
        if (PyErr_Occurred()) throw PythonError{};
        addresses[slot] = address;
        tensor.alignment = address == 0 ? 256 : int64_t(address & (~address + 1));
        if (tensor.alignment > 256) tensor.alignment = 256;
    }
    void check_kind(PyObject *object, int position) const {
        const PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
        for (Py_ssize_t i = 0, count = PyTuple_Size(hooks.tensor_types); i < count; ++i)
            if (PyTuple_GetItem(hooks.tensor_types, i) == type) return;
        if (short_way) throw NotPlain{};
        const int is = PyObject_IsInstance(object, PyTuple_GetItem(hooks.tensor_types, 0));
        if (is > 0) return;
        if (is == 0) PyErr_Format(PyExc_TypeError, "argument %d is a tensor, found %R", position + 1, object);
        throw PythonError{};
    }
    static void read_layout(PyObject *object, plan::Tensor &tensor) {
        tensor.given = true;
        read_sizes(Ref(PyObject_GetAttr(object, word_shape)).get(), tensor.shape);
        read_sizes(call_method(object, word_stride).get(), tensor.stride);
        const Ref dtype(PyObject_GetAttr(object, word_dtype));
        for (int i = 0; i < 12; ++i) {
            if (PyTuple_GetItem(hooks.dtypes, i) == dtype.get()) {
                tensor.dtype = plan::DType(i);
                // A negated view is one more way of not lying as it seems.
                if (!plan::is_contiguous(tensor) && truth_of(call_method(object, word_is_neg).get()))
                    plan::fault("a tensor is a negated view");
                return;
            }
        }
        plan::fault("a tensor has a dtype that no kernel takes");
    }

    void single(int position, int64_t &value) const {
        PyObject *object = arguments[position];
        if (PyBool_Check(object) || !PyLong_Check(object)) wrong(position, "an int");
        value = integer_of(object);
    }
    void single(int position, bool &value) const {
        if (!PyBool_Check(arguments[position])) wrong(position, "a bool");
        value = arguments[position] == Py_True;
    }
    void single(int position, double &value) const {
        PyObject *object = arguments[position];
        if (PyBool_Check(object) || !(PyFloat_Check(object) || PyLong_Check(object))) wrong(position, "a float");
        value = PyFloat_AsDouble(object);
        if (value == -1.0 && PyErr_Occurred()) throw PythonError{};
    }
    template <class T> void single(int position, plan::List<T> &values) const {
        const Ref items(PySequence_Tuple(arguments[position]));
        values.clear();
        for (Py_ssize_t i = 0, count = PyTuple_Size(items.get()); i < count; ++i) {
            PyObject *one = PyTuple_GetItem(items.get(), i);
            T value;
            Reader{&one, short_way}.single(0, value);
            values.push_back(value);
        }
    }
    [[noreturn]] void wrong(int position, const char *wanted) const {
        PyErr_Format(PyExc_TypeError, "argument %d is %s, found %R", position + 1, wanted, arguments[position]);
        throw PythonError{};
    }
    template <class T> static int64_t count_of(const T &) { return -1; }
    template <class T> static int64_t count_of(const plan::List<T> &values) { return int64_t(values.size()); }
    template <class T> void number(int position, T &value, int length) const {
        single(position, value);
        if (length >= 0 && count_of(value) != length) wrong(position, "a list of another length");
    }
    template <class T> void number(int position, std::optional<T> &value, int length) const {
        value.reset();
        if (arguments[position] == Py_None) return;
        T inner;
        number(position, inner, length);
        value = inner;
    }
};

} // namespace

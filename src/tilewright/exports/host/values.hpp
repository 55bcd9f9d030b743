// What a launch plan computes with, in C++: tensors as a plan sees them, lists, checked arithmetic.
//
// Integers have 64 bits and overflow is a fault; integer division is C's and refuses negatives; an operation on finite
// floats must stay finite. A fault in a `let` or `need` means that the file does not take the call; one in a step is an
// error.
// Everything has internal linkage, so that several exported operations can be linked into one program.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace {
namespace plan {

struct Fault {
    std::string found;
};

[[noreturn]] inline void fault(const std::string &found) { throw Fault{found}; }

// -- values --

enum class DType : int { f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean };

inline int64_t size_of(DType dtype) {
    static const int64_t bytes[] = {8, 4, 2, 2, 1, 1, 8, 4, 2, 1, 1, 1};
    return bytes[static_cast<int>(dtype)];
}

inline const char *name_of(DType dtype) {
    static const char *const names[] = {"f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2",
                                        "i64", "i32", "i16", "i8",   "u8",     "bool"};
    return names[static_cast<int>(dtype)];
}

// A list of sizes, strides or numbers. Its items lie inside it: a call allocates nothing for them.
template <class T> class List {
  public:
    static constexpr size_t most = 64;

    List() = default;
    List(const List &other) { *this = other; }
    List &operator=(const List &other) {
        count_ = other.count_;
        for (size_t i = 0; i < count_; ++i) items_[i] = other.items_[i];
        return *this;
    }
    void push_back(T item) {
        if (count_ == most) fault("makes a list of more than 64 items, which this export does not carry");
        items_[count_++] = item;
    }
    void clear() { count_ = 0; }
    size_t size() const { return count_; }
    const T &operator[](size_t i) const { return items_[i]; }
    T &operator[](size_t i) { return items_[i]; }
    const T *begin() const { return items_; }
    const T *end() const { return items_ + count_; }

  private:
    size_t count_ = 0;
    T items_[most];
};

template <class A, class B> bool operator==(const List<A> &a, const List<B> &b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
        if (a[i] != b[i]) return false;
    return true;
}
template <class A, class B> bool operator!=(const List<A> &a, const List<B> &b) { return !(a == b); }

using Sizes = List<int64_t>;

// What may be known of a tensor. `slot` is where a call keeps its address: parameters first, then buffers.
struct Tensor {
    bool given = false;
    DType dtype = DType::f32;
    Sizes shape, stride;
    int64_t alignment = 256;
    int slot = 0;
};

struct Device {
    int64_t cc, sms, smem_block, smem_sm, l2;
    int64_t max_cluster;
};

inline Sizes contiguous_stride(const Sizes &shape) {
    Sizes stride = shape;
    int64_t step = 1;
    for (size_t i = shape.size(); i-- > 0;) {
        stride[i] = step;
        if (__builtin_mul_overflow(step, shape[i] > 1 ? shape[i] : 1, &step)) fault("overflows a 64-bit integer");
    }
    return stride;
}

inline bool is_empty(const Sizes &shape) {
    for (int64_t size : shape)
        if (size == 0) return true;
    return false;
}

// -- operators --

inline int64_t add(int64_t a, int64_t b) {
    int64_t result;
    if (__builtin_add_overflow(a, b, &result)) fault("overflows a 64-bit integer");
    return result;
}
inline int64_t subtract(int64_t a, int64_t b) {
    int64_t result;
    if (__builtin_sub_overflow(a, b, &result)) fault("overflows a 64-bit integer");
    return result;
}
inline int64_t multiply(int64_t a, int64_t b) {
    int64_t result;
    if (__builtin_mul_overflow(a, b, &result)) fault("overflows a 64-bit integer");
    return result;
}
inline double checked(double result, double a, double b) {
    if (std::isfinite(result) || !(std::isfinite(a) && std::isfinite(b))) return result;
    fault("overflows a float");
}
inline double add(double a, double b) { return checked(a + b, a, b); }
inline double subtract(double a, double b) { return checked(a - b, a, b); }
inline double multiply(double a, double b) { return checked(a * b, a, b); }
inline double add(int64_t a, double b) { return add(double(a), b); }
inline double add(double a, int64_t b) { return add(a, double(b)); }
inline double subtract(int64_t a, double b) { return subtract(double(a), b); }
inline double subtract(double a, int64_t b) { return subtract(a, double(b)); }
inline double multiply(int64_t a, double b) { return multiply(double(a), b); }
inline double multiply(double a, int64_t b) { return multiply(a, double(b)); }

inline void check_division(int64_t a, int64_t b) {
    if (b == 0) fault("divides by zero");
    if (a < 0 || b < 0) fault("divides a negative integer or by one");
}
inline int64_t divide(int64_t a, int64_t b) {
    check_division(a, b);
    return a / b;
}
inline double divide(double a, double b) {
    if (b == 0) fault("divides by zero");
    return checked(a / b, a, b);
}
inline double divide(int64_t a, double b) { return divide(double(a), b); }
inline double divide(double a, int64_t b) { return divide(a, double(b)); }
inline int64_t remainder(int64_t a, int64_t b) {
    check_division(a, b);
    return a % b;
}
inline int64_t negate(int64_t a) { return subtract(INT64_C(0), a); }
inline double negate(double a) { return -a; }

template <class T> const T &item(const List<T> &values, int64_t position) {
    const int64_t count = int64_t(values.size());
    if (position < -count || position >= count)
        fault("index " + std::to_string(position) + " is outside a list of " + std::to_string(count));
    return values[size_t(position < 0 ? position + count : position)];
}

template <class T> List<T> cut(const List<T> &values, std::optional<int64_t> low, std::optional<int64_t> high) {
    const int64_t count = int64_t(values.size());
    auto place = [count](int64_t end) { return end < 0 ? (end + count < 0 ? 0 : end + count) : end > count ? count : end; };
    List<T> result;
    for (int64_t i = low ? place(*low) : 0; i < (high ? place(*high) : count); ++i) result.push_back(values[size_t(i)]);
    return result;
}

template <class T> struct Element { using type = T; };
template <class T> struct Element<List<T>> { using type = T; };
template <class T> void splice(List<T> &list, const T &value) { list.push_back(value); }
template <class T> void splice(List<T> &list, const List<T> &values) {
    for (const T &value : values) list.push_back(value);
}
inline Sizes spliced() { return Sizes(); }
template <class First, class... Rest> auto spliced(const First &first, const Rest &...rest) {
    List<typename Element<First>::type> list;
    splice(list, first);
    (splice(list, rest), ...);
    return list;
}

template <class T, class U> bool contains(const List<T> &values, const U &wanted) {
    for (const T &value : values)
        if (value == wanted) return true;
    return false;
}

// -- functions --

inline int64_t ceil_div(int64_t a, int64_t b) {
    check_division(a, b);
    return a / b + (a % b != 0);
}
inline int64_t round_up(int64_t a, int64_t b) { return multiply(ceil_div(a, b), b); }
template <class T> T least(T only) { return only; }
template <class A, class B, class... Rest> auto least(A a, B b, Rest... rest) {
    using T = std::common_type_t<A, B, Rest...>;
    return least(T(b) < T(a) ? T(b) : T(a), T(rest)...);
}
template <class T> T greatest(T only) { return only; }
template <class A, class B, class... Rest> auto greatest(A a, B b, Rest... rest) {
    using T = std::common_type_t<A, B, Rest...>;
    return greatest(T(b) > T(a) ? T(b) : T(a), T(rest)...);
}
template <class T> T product(const List<T> &values) {
    T result = 1;
    for (const T &value : values) result = multiply(result, value);
    return result;
}
template <class T> int64_t length(const List<T> &values) { return int64_t(values.size()); }
inline int64_t floor_log2(int64_t a) {
    if (a <= 0) fault("log2 of " + std::to_string(a));
    return 63 - __builtin_clzll(uint64_t(a));
}
inline int64_t next_pow2(int64_t a) {
    if (a <= 0) fault("next_pow2 of " + std::to_string(a));
    const int64_t exponent = a == 1 ? 0 : 64 - __builtin_clzll(uint64_t(a - 1));
    if (exponent > 62) fault("overflows a 64-bit integer");
    return INT64_C(1) << exponent;
}
inline double square_root(double a) {
    if (a < 0) fault("sqrt of " + std::to_string(a));
    return std::sqrt(a);
}
inline double square_root(int64_t a) { return square_root(double(a)); }

// -- names --

inline const Tensor &given(const Tensor &tensor, const char *name) {
    if (!tensor.given) fault(std::string("`") + name + "` was not given");
    return tensor;
}
template <class T> const T &given(const std::optional<T> &value, const char *name) {
    if (!value) fault(std::string("`") + name + "` was not given");
    return *value;
}
inline bool has(const Tensor &tensor) { return tensor.given; }
template <class T> bool has(const std::optional<T> &value) { return value.has_value(); }
inline int64_t elements(const Tensor &tensor) {
    if (is_empty(tensor.shape)) return 0; // whatever the other sizes are
    return product(tensor.shape);
}

// A `const`, `out` or `scratch`: one that fails matters only where it is read, or once every `need` holds.
template <class T> struct Deferred {
    T value{};
    bool failed = false;
    std::string found;
    int line = 0;
    const T &operator()() const {
        if (failed) throw Fault{found};
        return value;
    }
};
template <class Make> auto deferred(int line, Make make) {
    Deferred<std::decay_t<decltype(make())>> result;
    result.line = line;
    try {
        result.value = make();
    } catch (const Fault &why) {
        result.failed = true;
        result.found = why.found;
    }
    return result;
}

} // namespace plan
} // namespace

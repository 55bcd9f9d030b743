// What host code of CUDA programs is compiled against in place of CUDA and torch: tensors without memory, and
// kernels that write down how they were launched. Everything that is not here is refused by the compiler, by name.
#pragma once
#include <algorithm>
#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__
#define __constant__
#define __restrict__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define __CUDACC__ 1
#define CUDA_VERSION 13000
#define CUDART_VERSION 13000

typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned long ulong;

#define exit(code) ::tw::fail("the launcher ends the program")
#define abort() ::tw::fail("the launcher ends the program")

namespace tw {
[[noreturn]] inline void fail(const std::string& what) { throw std::runtime_error(what); }
template <class T> struct lane { using type = T; };  // of a vector of CUDA's
}  // namespace tw

// -- values of CUDA's own types; only their sizes matter here --
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct uint3 { unsigned x, y, z; };
#define TW_VECTOR(T, N)                                                              \
  struct alignas(sizeof(T) * 2) N##2 { T x, y; }; struct N##3 { T x, y, z; };        \
  struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) N##4 { T x, y, z, w; };    \
  inline N##2 make_##N##2(T x, T y) { return {x, y}; }                               \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
TW_VECTOR(float, float) TW_VECTOR(double, double) TW_VECTOR(int, int) TW_VECTOR(unsigned char, uchar)
TW_VECTOR(short, short) TW_VECTOR(long long, longlong) TW_VECTOR(char, char) TW_VECTOR(unsigned short, ushort)
#define TW_LANES(T, N) template <> struct tw::lane<N##2> { using type = T; }; template <> struct tw::lane<N##3> { using type = T; }; \
  template <> struct tw::lane<N##4> { using type = T; };
TW_LANES(float, float) TW_LANES(double, double) TW_LANES(int, int) TW_LANES(unsigned char, uchar) TW_LANES(char, char)
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct __half {
  unsigned short bits = 0;
  __half() = default;
  __half(float v) { std::memcpy(&bits, reinterpret_cast<char*>(&v) + 2, 2); }
  operator float() const { float v = 0; std::memcpy(reinterpret_cast<char*>(&v) + 2, &bits, 2); return v; }
};
struct __nv_bfloat16 {
  unsigned short bits = 0;
  __nv_bfloat16() = default;
  __nv_bfloat16(float v) { std::memcpy(&bits, reinterpret_cast<char*>(&v) + 2, 2); }
  operator float() const { float v = 0; std::memcpy(reinterpret_cast<char*>(&v) + 2, &bits, 2); return v; }
};
struct __half2 { __half x, y; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
TW_LANES(unsigned, uint)
template <> struct tw::lane<__half2> { using type = __half; };
template <> struct tw::lane<__nv_bfloat162> { using type = __nv_bfloat16; };
struct __nv_fp8_e4m3 { unsigned char bits; };
struct __nv_fp8_e5m2 { unsigned char bits; };
namespace tw { struct fp8_e4m3fnuz { unsigned char bits; }; struct fp8_e5m2fnuz { unsigned char bits; }; }
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
inline __half __float2half(float v) { return v; }
inline float __half2float(__half v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
template <class A, class B> auto min(A a, B b) -> std::common_type_t<A, B> { return b < a ? b : a; }
template <class A, class B> auto max(A a, B b) -> std::common_type_t<A, B> { return a < b ? b : a; }

template <class T> T __ldg(const T* at) { return *at; }
template <class T> T __ldcs(const T* at) { return *at; }
template <class T> T __ldcg(const T* at) { return *at; }
template <class T> void __stcs(T* at, T value) { *at = value; }
template <class T> void __stcg(T* at, T value) { *at = value; }

namespace c10 {
enum class ScalarType {
  Float, Double, Half, BFloat16, Long, Int, Short, Char, Byte, Bool, Float8_e4m3fn, Float8_e5m2, UInt16, UInt32, UInt64,
  Float8_e4m3fnuz, Float8_e5m2fnuz, ComplexHalf, ComplexFloat, Undefined
};
enum class DeviceType { CPU, CUDA };
using Half = __half;
using BFloat16 = __nv_bfloat16;
using Float8_e4m3fn = __nv_fp8_e4m3;
using Float8_e5m2 = __nv_fp8_e5m2;
using Float8_e4m3fnuz = tw::fp8_e4m3fnuz;
using Float8_e5m2fnuz = tw::fp8_e5m2fnuz;
}  // namespace c10

namespace tw {
template <class... P> std::string text(const P&... parts) {
  std::ostringstream out;
  ((out << parts), ...);
  return out.str();
}
inline const char* const names[] = {"f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool", "f8e4m3", "f8e5m2",
                                    "u16", "u32", "u64", "f8e4m3fnuz", "f8e5m2fnuz", "c16", "c32", "undefined"};
inline const int sizes[] = {4, 8, 2, 2, 8, 4, 2, 1, 1, 1, 1, 1, 2, 4, 8, 1, 1, 4, 8, 0};
inline c10::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < 12; ++i)
    if (name == names[i]) return c10::ScalarType(i);
  fail("no dtype " + name);
}
template <class T> constexpr const char* type_name() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return "f32";
  else if constexpr (std::is_same_v<U, double>) return "f64";
  else if constexpr (std::is_same_v<U, __half>) return "f16";
  else if constexpr (std::is_same_v<U, __nv_bfloat16>) return "bf16";
  else if constexpr (std::is_same_v<U, __nv_fp8_e4m3>) return "f8e4m3";
  else if constexpr (std::is_same_v<U, __nv_fp8_e5m2>) return "f8e5m2";
  else if constexpr (std::is_same_v<U, bool>) return "bool";
  else if constexpr (std::is_integral_v<U>)
    return sizeof(U) == 8 ? "i64" : sizeof(U) == 4 ? "i32" : sizeof(U) == 2 ? "i16" : std::is_signed_v<U> ? "i8" : "u8";
  else return "";
}
template <c10::ScalarType tag> constexpr auto of_dtype() {
  using c10::ScalarType;
  if constexpr (tag == ScalarType::Float) return float();
  else if constexpr (tag == ScalarType::Double) return double();
  else if constexpr (tag == ScalarType::Half) return __half();
  else if constexpr (tag == ScalarType::BFloat16) return __nv_bfloat16();
  else if constexpr (tag == ScalarType::Long || tag == ScalarType::UInt64) return int64_t();
  else if constexpr (tag == ScalarType::Int || tag == ScalarType::UInt32) return int();
  else if constexpr (tag == ScalarType::Short || tag == ScalarType::UInt16) return int16_t();
  else if constexpr (tag == ScalarType::Char) return int8_t();
  else if constexpr (tag == ScalarType::Byte) return uint8_t();
  else if constexpr (tag == ScalarType::Float8_e5m2) return __nv_fp8_e5m2();
  else if constexpr (tag == ScalarType::Float8_e4m3fn) return __nv_fp8_e4m3();
  else if constexpr (tag == ScalarType::Float8_e4m3fnuz) return tw::fp8_e4m3fnuz();
  else if constexpr (tag == ScalarType::Float8_e5m2fnuz) return tw::fp8_e5m2fnuz();
  else return bool();
}
// Every tensor's memory is an address nobody may touch: its number, shifted.
constexpr int shift = 40;
inline long long next_id = 0;
inline long long multiprocessors = 132;
inline int launch_line = 0;
inline std::ostringstream said;
// A pointer to whatever the kernel it is passed to takes.
struct Bare {
  char* at;
  template <class T> operator T*() const { return (T*)at; }
};
inline void* address(long long id) { return reinterpret_cast<void*>((id + 1) << shift); }
inline std::string list(const std::vector<int64_t>& items) {
  std::ostringstream out;
  for (size_t i = 0; i < items.size(); ++i) out << (i ? "," : "") << items[i];
  return out.str();
}
template <class S> void configure(int line, dim3 grid, dim3 block, size_t smem, S) {
  said << "LAUNCH\t" << line << '\t' << grid.x << ',' << grid.y << ',' << grid.z << '\t' << block.x << ',' << block.y
       << ',' << block.z << '\t' << smem << '\n';
}
inline void configure(int line, dim3 grid, dim3 block, size_t smem = 0) { configure(line, grid, block, smem, 0); }
struct Launched {
  explicit Launched(const char* name) { said << "KERNEL\t" << name << '\n'; }
  // The compiler's own name of this function says what stands for T: `... [with T = ns::Sum<float>]`.
  template <class T> void type() { said << "TYPE\t" << type_name<T>() << '\t' << __PRETTY_FUNCTION__ << '\n'; }
  template <auto value> void constant() {
    using T = decltype(value);
    if constexpr (std::is_same_v<T, const bool> || std::is_same_v<T, bool>) said << "CONSTANT\tbool\t" << value << '\n';
    else if constexpr (std::is_integral_v<T>) said << "CONSTANT\tint\t" << (long long)value << '\n';
    else said << "CONSTANT\tother\t" << __PRETTY_FUNCTION__ << '\n';
  }
  template <class T> void argument(const T& value) {
    if constexpr (std::is_pointer_v<T>) {
      auto bits = reinterpret_cast<long long>(value);
      if (!bits) said << "ARG\tnull\n";
      else said << "ARG\tpointer\t" << (bits >> shift) - 1 << '\t' << (bits & ((1ll << shift) - 1)) << '\t'
                << type_name<typename lane<std::remove_cv_t<std::remove_pointer_t<T>>>::type>() << '\n';
    } else if constexpr (std::is_same_v<T, bool>) said << "ARG\tbool\t" << value << '\n';
    else if constexpr (std::is_integral_v<T>) said << "ARG\tint\t" << (long long)value << '\n';
    else if constexpr (std::is_floating_point_v<T>) {
      char digits[64];
      std::snprintf(digits, sizeof digits, "%.17g", (double)value);
      said << "ARG\tfloat\t" << digits << '\n';
    } else said << "ARG\tstruct\n";
  }
};
}  // namespace tw

// -- the runtime --
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
typedef cudaError_t cudaError;
typedef struct tw_stream* cudaStream_t;
typedef struct tw_event* cudaEvent_t;
typedef struct tw_library *cublasHandle_t, *cublasLtHandle_t, *cudnnHandle_t;
typedef unsigned long long cudaTextureObject_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout,
  cudaFuncAttributeNonPortableClusterSizeAllowed
};
enum cudaFuncCache { cudaFuncCachePreferNone, cudaFuncCachePreferShared, cudaFuncCachePreferL1, cudaFuncCachePreferEqual };
enum { cudaSharedmemCarveoutDefault = -1, cudaSharedmemCarveoutMaxShared = 100, cudaSharedmemCarveoutMaxL1 = 0 };
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1, cudaEventDefault = 0 };
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount, cudaDevAttrMaxThreadsPerBlock, cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor, cudaDevAttrWarpSize, cudaDevAttrMaxGridDimX,
  cudaDevAttrMaxSharedMemoryPerBlock, cudaDevAttrMaxThreadsPerMultiProcessor
};
struct cudaDeviceProp {
  char name[256] = "GPU";
  int multiProcessorCount = (int)tw::multiprocessors, major = 9, minor = 0, warpSize = 32, maxThreadsPerBlock = 1024;
  int maxThreadsPerMultiProcessor = 2048, maxGridSize[3] = {2147483647, 65535, 65535}, maxThreadsDim[3] = {1024, 1024, 64};
  size_t sharedMemPerBlock = 49152, sharedMemPerBlockOptin = 232448, sharedMemPerMultiprocessor = 233472;
  int l2CacheSize = 60 << 20, regsPerBlock = 65536, regsPerMultiprocessor = 65536;
  size_t totalGlobalMem = 141ull << 30;
};
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = nullptr; return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
#define TW_NOTHING(name) template <class... A> cudaError_t name(A&&...) { return cudaSuccess; }
TW_NOTHING(cudaEventCreate) TW_NOTHING(cudaEventCreateWithFlags) TW_NOTHING(cudaEventRecord) TW_NOTHING(cudaEventDestroy)
TW_NOTHING(cudaEventSynchronize) TW_NOTHING(cudaStreamWaitEvent) TW_NOTHING(cudaStreamCreateWithFlags)
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 1; return cudaSuccess; }
inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
inline cudaError_t cudaFree(const void*) { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) { *p = cudaDeviceProp(); return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }
template <class F> cudaError_t cudaFuncSetCacheConfig(F, cudaFuncCache) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr what, int) {
  const int known[] = {(int)tw::multiprocessors, 1024, 232448, 9, 0, 32, 2147483647, 49152, 2048};
  *value = known[what];
  return cudaSuccess;
}
template <class T> cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  long long id = tw::next_id++;
  tw::said << "ALLOC\t" << id << "\tu8\tempty\t" << bytes << '\n';
  *pointer = reinterpret_cast<T*>(tw::address(id));
  return cudaSuccess;
}
inline cudaError_t cudaMemset(void* pointer, int value, size_t) {
  if (value) tw::fail("cudaMemset with another value than 0");
  tw::said << "ZERO\t" << (reinterpret_cast<long long>(pointer) >> tw::shift) - 1 << '\n';
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(pointer, value, bytes);
}
inline cudaError_t cudaMemcpy(void*, const void*, size_t, cudaMemcpyKind) { tw::fail("cudaMemcpy in the launcher"); }
inline cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t = nullptr) {
  tw::fail("cudaMemcpyAsync in the launcher");
}
template <class... A> cudaError_t cudaMemcpyToSymbol(A&&...) { tw::fail("cudaMemcpyToSymbol: a `__constant__` the host fills"); }
template <class... A> cudaError_t cudaMemcpyToSymbolAsync(A&&...) { tw::fail("cudaMemcpyToSymbolAsync: a `__constant__` the host fills"); }
template <class... A> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(A&&...) { tw::fail("cudaOccupancyMaxActiveBlocksPerMultiprocessor: a launch by occupancy"); }
template <class... A> cudaError_t cudaOccupancyMaxPotentialBlockSize(A&&...) { tw::fail("cudaOccupancyMaxPotentialBlockSize: a launch by occupancy"); }
template <class... A> cudaError_t cudaLaunchCooperativeKernel(A&&...) { tw::fail("cudaLaunchCooperativeKernel"); }
template <class... A> cudaError_t cudaLaunchKernel(A&&...) { tw::fail("cudaLaunchKernel"); }

// -- torch --
namespace c10 {
using IntArrayRef = std::vector<int64_t>;
template <class T> using ArrayRef = std::vector<T>;
template <class T> using optional = std::optional<T>;
using std::nullopt;
using DeviceIndex = int8_t;
struct Device {
  Device(DeviceType = DeviceType::CUDA, int = 0) {}
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  DeviceType type() const { return DeviceType::CUDA; }
  int index() const { return 0; }
  bool operator==(const Device&) const { return true; }
  bool operator!=(const Device&) const { return false; }
  std::string str() const { return "cuda:0"; }
};
inline std::ostream& operator<<(std::ostream& out, ScalarType type) { return out << tw::names[(int)type]; }
inline std::ostream& operator<<(std::ostream& out, const Device&) { return out << "cuda:0"; }
inline std::ostream& operator<<(std::ostream& out, const IntArrayRef& list) { return out << '[' << tw::list(list) << ']'; }
inline size_t elementSize(ScalarType type) { return tw::sizes[(int)type]; }
inline const char* toString(ScalarType type) { return tw::names[(int)type]; }
enum class Layout { Strided };
enum class MemoryFormat { Contiguous, Preserve, ChannelsLast };
struct TensorOptions {
  ScalarType type = ScalarType::Float;
  TensorOptions() = default;
  TensorOptions(ScalarType t) : type(t) {}
  TensorOptions(Device) {}
  TensorOptions(DeviceType) {}
  ScalarType dtype() const { return type; }
  TensorOptions dtype(ScalarType t) const { TensorOptions o = *this; o.type = t; return o; }
  TensorOptions device(Device) const { return *this; }
  TensorOptions device(DeviceType, int = 0) const { return *this; }
  TensorOptions requires_grad(bool) const { return *this; }
  TensorOptions layout(Layout) const { return *this; }
  TensorOptions memory_format(MemoryFormat) const { return *this; }
};
inline std::ostream& operator<<(std::ostream& out, const TensorOptions& o) { return out << o.type; }
}  // namespace c10

namespace at {
using namespace c10;
class Tensor {
 public:
  long long id = -1, offset = 0;
  std::vector<int64_t> shape, step;
  ScalarType scalar = ScalarType::Float;
  Tensor() = default;
  Tensor(long long id, std::vector<int64_t> shape, ScalarType scalar) : id(id), shape(std::move(shape)), scalar(scalar) {
    step.assign(this->shape.size(), 1);
    for (int i = (int)step.size() - 2; i >= 0; --i) step[i] = step[i + 1] * this->shape[i + 1];
  }
  static Tensor make(std::vector<int64_t> shape, ScalarType scalar, const char* content) {
    for (auto size : shape) if (size < 0) tw::fail("a tensor of negative size");
    Tensor made(tw::next_id++, std::move(shape), scalar);
    tw::said << "ALLOC\t" << made.id << '\t' << tw::names[(int)scalar] << '\t' << content << '\t' << tw::list(made.shape) << '\n';
    return made;
  }
  int64_t at(int64_t i) const {
    if (i < 0) i += dim();
    if (i < 0 || i >= dim()) tw::fail("a tensor of " + std::to_string(dim()) + " dimensions is asked for another");
    return i;
  }
  int64_t size(int64_t i) const { return shape[at(i)]; }
  int64_t stride(int64_t i) const { return step[at(i)]; }
  IntArrayRef sizes() const { return shape; }
  IntArrayRef strides() const { return step; }
  int64_t dim() const { return (int64_t)shape.size(); }
  int64_t ndimension() const { return dim(); }
  int64_t numel() const { int64_t n = 1; for (auto s : shape) n *= s; return n; }
  int64_t nbytes() const { return numel() * element_size(); }
  int64_t element_size() const { return tw::sizes[(int)scalar]; }
  int64_t itemsize() const { return element_size(); }
  ScalarType scalar_type() const { return scalar; }
  ScalarType dtype() const { return scalar; }
  ScalarType type() const { return scalar; }
  bool defined() const { return id >= 0; }
  bool is_cuda() const { return true; }
  bool is_cpu() const { return false; }
  bool requires_grad() const { return false; }
  bool is_floating_point() const { return (int)scalar < 4; }
  Device device() const { return {}; }
  int get_device() const { return 0; }
  int get_device_index() const { return 0; }
  TensorOptions options() const { return TensorOptions(scalar); }
  bool is_contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
    int64_t want = 1;
    for (int i = (int)dim() - 1; i >= 0; --i) {
      if (shape[i] != 1 && step[i] != want) return false;
      want *= shape[i];
    }
    return true;
  }
  Tensor contiguous(MemoryFormat = MemoryFormat::Contiguous) const {
    if (!is_contiguous()) tw::fail("`contiguous()` of a tensor that is not: a copy by ATen");
    return *this;
  }
  void* data_ptr() const { return id < 0 ? nullptr : (char*)tw::address(id) + offset * element_size(); }
  template <class T> T* data_ptr() const { check<T>(); return (T*)data_ptr(); }
  template <class T> T* data() const { return data_ptr<T>(); }
  const void* const_data_ptr() const { return data_ptr(); }
  template <class T> const T* const_data_ptr() const { check<T>(); return (const T*)data_ptr(); }
  void* mutable_data_ptr() const { return data_ptr(); }
  template <class T> T* mutable_data_ptr() const { return data_ptr<T>(); }
  template <class T> void check() const {
    std::string wanted = tw::type_name<std::remove_const_t<T>>();
    if (wanted != tw::names[(int)scalar]) tw::fail("data_ptr<" + wanted + ">() of a tensor of " + tw::names[(int)scalar]);
  }
  Tensor with_shape(std::vector<int64_t> wanted) const {
    int64_t known = 1, open = -1;
    for (size_t i = 0; i < wanted.size(); ++i)
      if (wanted[i] < 0) open = (int64_t)i; else known *= wanted[i];
    if (open >= 0 && known) wanted[open] = numel() / known, known *= wanted[open];
    if (known != numel()) tw::fail("a view of another number of elements");
    Tensor view(id, wanted, scalar);
    view.offset = contiguous().offset;
    return view;
  }
  template <class... I> Tensor view(int64_t first, I... rest) const { return with_shape({first, (int64_t)rest...}); }
  Tensor view(std::vector<int64_t> wanted) const { return with_shape(std::move(wanted)); }
  template <class... I> Tensor reshape(I&&... wanted) const { return view(std::forward<I>(wanted)...); }
  Tensor reshape(std::vector<int64_t> wanted) const { return with_shape(std::move(wanted)); }
  Tensor view_as(const Tensor& other) const { return with_shape(other.shape); }
  Tensor reshape_as(const Tensor& other) const { return with_shape(other.shape); }
  Tensor flatten(int64_t first = 0, int64_t last = -1) const {
    first = at(first), last = at(last);
    std::vector<int64_t> merged(shape.begin(), shape.begin() + first);
    int64_t product = 1;
    for (int64_t i = first; i <= last; ++i) product *= shape[i];
    merged.push_back(product);
    merged.insert(merged.end(), shape.begin() + last + 1, shape.end());
    return with_shape(merged);
  }
  Tensor squeeze(int64_t i) const {
    Tensor view = *this;
    i = at(i);
    if (shape[i] == 1) view.shape.erase(view.shape.begin() + i), view.step.erase(view.step.begin() + i);
    return view;
  }
  Tensor squeeze() const {
    Tensor view = *this;
    for (int64_t i = dim() - 1; i >= 0; --i) if (view.shape[i] == 1) view = view.squeeze(i);
    return view;
  }
  Tensor unsqueeze(int64_t i) const {
    Tensor view = *this;
    if (i < 0) i += dim() + 1;
    view.step.insert(view.step.begin() + i, i < dim() ? step[i] * shape[i] : 1);
    view.shape.insert(view.shape.begin() + i, 1);
    return view;
  }
  Tensor transpose(int64_t a, int64_t b) const {
    Tensor view = *this;
    std::swap(view.shape[at(a)], view.shape[at(b)]), std::swap(view.step[at(a)], view.step[at(b)]);
    return view;
  }
  Tensor t() const { return dim() < 2 ? *this : transpose(0, 1); }
  Tensor detach() const { return *this; }
  Tensor cuda() const { return *this; }
  Tensor to(ScalarType wanted) const {
    if (wanted != scalar) tw::fail("`to()` of another dtype: a conversion by ATen");
    return *this;
  }
  Tensor to(Device) const { return *this; }
  Tensor to(DeviceType) const { return *this; }
  Tensor to(TensorOptions o) const { return to(o.type); }
  Tensor& zero_() { tw::said << "ZERO\t" << id << '\n'; return *this; }
  template <class V> Tensor& fill_(V value) { if (value != V(0)) tw::fail("`fill_` with another value than 0"); return zero_(); }
  Tensor clone() const { tw::fail("`clone()`: a copy by ATen"); }
  Tensor new_empty(std::vector<int64_t> wanted, TensorOptions o) const { return make(wanted, o.type, "empty"); }
  Tensor new_empty(std::vector<int64_t> wanted) const { return make(wanted, scalar, "empty"); }
  Tensor new_zeros(std::vector<int64_t> wanted) const { return make(wanted, scalar, "zero"); }
};
using TensorList = std::vector<Tensor>;
inline Tensor empty(std::vector<int64_t> shape, TensorOptions o = {}) { return Tensor::make(std::move(shape), o.type, "empty"); }
inline Tensor zeros(std::vector<int64_t> shape, TensorOptions o = {}) { return Tensor::make(std::move(shape), o.type, "zero"); }
inline Tensor empty_like(const Tensor& x) { return Tensor::make(x.shape, x.scalar, "empty"); }
inline Tensor zeros_like(const Tensor& x) { return Tensor::make(x.shape, x.scalar, "zero"); }
inline Tensor empty_like(const Tensor& x, TensorOptions o) { return Tensor::make(x.shape, o.type, "empty"); }
inline Tensor zeros_like(const Tensor& x, TensorOptions o) { return Tensor::make(x.shape, o.type, "zero"); }
template <class V> Tensor full(std::vector<int64_t> shape, V value, TensorOptions o = {}) {
  if (value != V(0)) tw::fail("`full` with another value than 0");
  return zeros(std::move(shape), o);
}
inline constexpr auto kFloat = ScalarType::Float, kFloat32 = ScalarType::Float, kDouble = ScalarType::Double,
    kFloat64 = ScalarType::Double, kHalf = ScalarType::Half, kFloat16 = ScalarType::Half,
    kBFloat16 = ScalarType::BFloat16, kLong = ScalarType::Long, kInt64 = ScalarType::Long, kInt = ScalarType::Int,
    kInt32 = ScalarType::Int, kShort = ScalarType::Short, kInt16 = ScalarType::Short, kChar = ScalarType::Char,
    kInt8 = ScalarType::Char, kByte = ScalarType::Byte, kUInt8 = ScalarType::Byte, kBool = ScalarType::Bool;
inline constexpr auto kCUDA = DeviceType::CUDA;
inline constexpr auto kCPU = DeviceType::CPU;
inline Device device_of(const Tensor&) { return {}; }
namespace cuda {
struct CUDAStream {
  operator cudaStream_t() const { return nullptr; }
  cudaStream_t stream() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = 0) { return {}; }
inline int MaybeSetDevice(int) { return 0; }
struct CUDAGuard { template <class D> explicit CUDAGuard(D&&) {} };
struct OptionalCUDAGuard { template <class D> explicit OptionalCUDAGuard(D&&) {} };
template <class A, class B> auto ATenCeilDiv(A a, B b) { return (a + b - 1) / b; }
inline cudaDeviceProp* getCurrentDeviceProperties() { static cudaDeviceProp p; p = cudaDeviceProp(); return &p; }
inline cudaDeviceProp* getDeviceProperties(int) { return getCurrentDeviceProperties(); }
}  // namespace cuda
template <class A, class B> auto ceil_div(A a, B b) { return (a + b - 1) / b; }
// What sums of a type are made in.
template <class T> using opmath_type = std::conditional_t<std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, float, T>;
template <class T, bool = true> using acc_type = opmath_type<T>;
}  // namespace at
namespace c10 { namespace cuda { using namespace at::cuda; } }
namespace torch {
using namespace at;
using Dtype = at::ScalarType;
inline TensorOptions dtype(ScalarType t) { return TensorOptions(t); }
inline TensorOptions device(Device) { return {}; }
inline TensorOptions device(DeviceType) { return {}; }
namespace cuda { using namespace at::cuda; inline bool is_available() { return true; } }
namespace headeronly { using namespace c10; using IntHeaderOnlyArrayRef = IntArrayRef; }
// The ABI that stays the same between releases: the same tensors, operations as functions.
namespace stable {
using namespace at;
namespace accelerator { struct DeviceGuard { explicit DeviceGuard(int) {} }; using DeviceIndex = int; }
template <class... A> Tensor empty(std::vector<int64_t> shape, std::optional<ScalarType> type, A&&...) { return at::empty(std::move(shape), type.value_or(ScalarType::Float)); }
inline Tensor new_empty(const Tensor& x, std::vector<int64_t> shape, std::optional<ScalarType> type = {}) { return at::empty(std::move(shape), type.value_or(x.scalar)); }
inline Tensor new_zeros(const Tensor& x, std::vector<int64_t> shape, std::optional<ScalarType> type = {}) { return at::zeros(std::move(shape), type.value_or(x.scalar)); }
inline Tensor view(const Tensor& x, std::vector<int64_t> shape) { return x.view(std::move(shape)); }
inline Tensor reshape(const Tensor& x, std::vector<int64_t> shape) { return x.reshape(std::move(shape)); }
inline Tensor flatten(const Tensor& x, int64_t first = 0, int64_t last = -1) { return x.flatten(first, last); }
inline Tensor transpose(const Tensor& x, int64_t a, int64_t b) { return x.transpose(a, b); }
inline Tensor contiguous(const Tensor& x) { return x.contiguous(); }
inline Tensor zero_(Tensor& x) { return x.zero_(); }
}  // namespace stable
}  // namespace torch
inline int aoti_torch_get_current_cuda_stream(int, void** stream) { *stream = nullptr; return 0; }
inline int torch_get_current_cuda_blas_handle(void** handle) { *handle = nullptr; return 0; }
#define TORCH_ERROR_CODE_CHECK(what) ((void)(what))
#define STD_TORCH_CHECK(...) TORCH_CHECK(__VA_ARGS__)
#define STD_CUDA_CHECK(what) ((void)(what))
#define STD_CUDA_KERNEL_LAUNCH_CHECK() ((void)0)

#define TORCH_CHECK(condition, ...) do { if (!(condition)) ::tw::fail(::tw::text("the check `" #condition "` failed")); } while (0)
#define assert(...) TORCH_CHECK((__VA_ARGS__))
#define TORCH_INTERNAL_ASSERT TORCH_CHECK
#define AT_ASSERTM TORCH_CHECK
#define AT_ASSERT(condition) TORCH_CHECK(condition)
#define AT_ERROR(...) ::tw::fail(::tw::text(__VA_ARGS__))
#define TORCH_WARN(...) ((void)0)
#define C10_CUDA_CHECK(what) ((void)(what))
#define AT_CUDA_CHECK(what) ((void)(what))
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ((void)0)
#define CHECK_CUDA_ERROR(what) ((void)(what))
#define AT_PRIVATE_CASE_TYPE_USING_HINT(tag, name, ...) \
  case tag: { using name [[maybe_unused]] = decltype(::tw::of_dtype<tag>()); __VA_ARGS__(); break; }
#define AT_DISPATCH_CASE(tag, ...) AT_PRIVATE_CASE_TYPE_USING_HINT(tag, scalar_t, __VA_ARGS__)
#define AT_DISPATCH_SWITCH(type, name, ...) [&] { switch (type) { __VA_ARGS__ default: ::tw::fail("a dtype its dispatch lacks"); } }()
#define THO_PRIVATE_CASE_TYPE_USING_HINT AT_PRIVATE_CASE_TYPE_USING_HINT
#define THO_DISPATCH_CASE AT_DISPATCH_CASE
#define THO_DISPATCH_SWITCH AT_DISPATCH_SWITCH
#define TW_CASE(tag, ...) AT_DISPATCH_CASE(c10::ScalarType::tag, __VA_ARGS__)
#define AT_DISPATCH_CASE_FLOATING_TYPES(...) TW_CASE(Float, __VA_ARGS__) TW_CASE(Double, __VA_ARGS__)
#define AT_DISPATCH_CASE_INTEGRAL_TYPES(...) TW_CASE(Long, __VA_ARGS__) TW_CASE(Int, __VA_ARGS__) TW_CASE(Short, __VA_ARGS__) \
  TW_CASE(Char, __VA_ARGS__) TW_CASE(Byte, __VA_ARGS__)
#define TW_HALVES(...) TW_CASE(Half, __VA_ARGS__) TW_CASE(BFloat16, __VA_ARGS__)
#define AT_DISPATCH_FLOATING_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND_HALF(type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) TW_CASE(Half, __VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND(one, type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) TW_HALVES(__VA_ARGS__))
#define AT_DISPATCH_FLOATING_TYPES_AND2(one, two, type, name, ...) AT_DISPATCH_FLOATING_TYPES_AND(one, type, name, __VA_ARGS__)
#define AT_DISPATCH_REDUCED_FLOATING_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, TW_HALVES(__VA_ARGS__))
#define AT_DISPATCH_INTEGRAL_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_INDEX_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_PRIVATE_CASE_TYPE_USING_HINT(c10::ScalarType::Int, index_t, __VA_ARGS__) \
  AT_PRIVATE_CASE_TYPE_USING_HINT(c10::ScalarType::Long, index_t, __VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES(type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND(one, type, name, ...) AT_DISPATCH_SWITCH(type, name, AT_DISPATCH_CASE_FLOATING_TYPES(__VA_ARGS__) AT_DISPATCH_CASE_INTEGRAL_TYPES(__VA_ARGS__) TW_HALVES(__VA_ARGS__))
#define AT_DISPATCH_ALL_TYPES_AND_HALF(type, name, ...) AT_DISPATCH_ALL_TYPES_AND(0, type, name, __VA_ARGS__)
#define AT_DISPATCH_ALL_TYPES_AND2(one, two, type, name, ...) AT_DISPATCH_ALL_TYPES_AND(one, type, name, __VA_ARGS__)

// -- calling a function with what is read from standard input --
namespace tw {
template <class T> using plain = std::remove_cv_t<std::remove_reference_t<T>>;
template <class T> constexpr bool is_vector = false;
template <class T> constexpr bool is_vector<std::vector<T>> = true;
template <class T> constexpr bool is_optional = false;
template <class T> constexpr bool is_optional<std::optional<T>> = true;
template <class T> std::string kind() {
  using U = plain<T>;
  if constexpr (std::is_same_v<U, at::Tensor>) return std::is_lvalue_reference_v<T> ? "tensor" : "tensor";
  else if constexpr (std::is_same_v<U, std::optional<at::Tensor>>) return "optional tensor";
  else if constexpr (std::is_same_v<U, Bare>) return "pointer ";
  else if constexpr (std::is_pointer_v<U>) {
    using P = std::remove_pointer_t<U>;
    if constexpr (std::is_same_v<U, cudaStream_t> || std::is_same_v<U, cublasHandle_t>) return "stream";
    else return std::string(std::is_const_v<P> ? "const pointer " : "pointer ") + type_name<P>();
  } else if constexpr (std::is_same_v<U, bool>) return "bool";
  else if constexpr (std::is_integral_v<U>) return "int";
  else if constexpr (std::is_floating_point_v<U>) return "float";
  else if constexpr (std::is_same_v<U, std::vector<int64_t>>) return "ints";
  else if constexpr (is_optional<U>) return "optional " + kind<typename U::value_type>();
  else return "other";
}
inline at::Tensor read_tensor(const std::string& word) {  // f32:4,8
  auto colon = word.find(':');
  std::vector<int64_t> shape;
  std::istringstream numbers(word.substr(colon + 1));
  for (std::string one; std::getline(numbers, one, ',');) shape.push_back(std::stoll(one));
  return at::Tensor(next_id++, shape, dtype_named(word.substr(0, colon)));
}
template <class T> T read(const std::string& word) {
  if constexpr (std::is_same_v<T, at::Tensor>) return word == "none" ? at::Tensor() : read_tensor(word);
  else if constexpr (std::is_same_v<T, cudaStream_t> || std::is_same_v<T, cublasHandle_t>) return nullptr;
  else if constexpr (std::is_same_v<T, Bare>) return Bare{(char*)address(read_tensor(word).id)};
  else if constexpr (std::is_pointer_v<T>) return word == "none" ? nullptr : (T)address(read_tensor(word).id);
  else if constexpr (std::is_integral_v<T>) return (T)std::stoll(word);
  else if constexpr (std::is_floating_point_v<T>) return (T)std::stod(word);
  else if constexpr (is_optional<T>) {
    if (word == "none") return std::nullopt;
    return read<typename T::value_type>(word);
  } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
    std::vector<int64_t> made;
    std::istringstream numbers(word.substr(1));
    for (std::string one; std::getline(numbers, one, ',');) made.push_back(std::stoll(one));
    return made;
  } else fail("a parameter of a type that cannot be given");
}
inline void result(const at::Tensor& x) {
  said << "RESULT\t" << x.id << '\t' << x.offset << '\t' << x.is_contiguous() << '\t' << names[(int)x.scalar] << '\t' << list(x.shape) << '\n';
}
template <class T> void result(const std::vector<T>& items) { for (auto& item : items) result(item); }
template <class... T> void result(const std::tuple<T...>& items) { std::apply([](auto&... one) { (result(one), ...); }, items); }
template <class T> auto result(const T&) -> std::enable_if_t<!std::is_same_v<T, at::Tensor>> { said << "RESULT\tother\n"; }
template <class R, class... P, size_t... I>
void call(R (*function)(P...), const std::vector<std::string>& words, std::index_sequence<I...>) {
  if (words.size() != sizeof...(P)) fail("another number of arguments");
  std::tuple<plain<P>...> values{read<plain<P>>(words[I])...};
  if constexpr (std::is_void_v<R>) function(static_cast<P>(std::get<I>(values))...);
  else result(function(static_cast<P>(std::get<I>(values))...));
}
template <class R, class... P> void serve(R (*function)(P...)) {
  (std::printf("PARAMETER\t%s\n", kind<P>().c_str()), ...);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream input(line);
    std::vector<std::string> words;
    input >> multiprocessors;
    for (std::string word; input >> word;) words.push_back(word);
    next_id = 0;
    said.str("");
    std::string trouble;
    try { call(function, words, std::index_sequence_for<P...>()); }
    catch (const std::exception& error) { trouble = error.what(); }
    for (char& c : trouble) if (c == '\n' || c == '\t') c = ' ';
    std::printf("RUN\n%s%s%s\nEND\n", said.str().c_str(), trouble.empty() ? "" : "ERROR\t", trouble.c_str());
    std::fflush(stdout);
  }
}
}  // namespace tw

// The rules of a `map`: a TMA descriptor over a tensor, outermost dimension first as the plan writes it.
//
// A view is accepted where every element it reaches is one of the tensor's own. The driver's encoding is not here.
#pragma once

#include "plan.hpp"

namespace {
namespace plan {

struct MapOptions {
    std::optional<Sizes> shape, stride, box, step;
    int64_t swizzle = 0, fill = 0, l2 = 128;
};

inline bool is_regular_stride(int64_t bytes) { return bytes >= 0 && bytes < (INT64_C(1) << 40) && bytes % 16 == 0; }

// A dimension of size 1 is never stepped along, so its stride may be anything; the driver wants a regular one.
inline void replace_idle_strides(int64_t itemsize, const Sizes &shape, Sizes &stride) {
    for (size_t i = shape.size(); i-- > 0;) {
        if (shape[i] != 1) continue;
        if (i + 1 == shape.size()) {
            stride[i] = 1;
        } else if (!is_regular_stride(multiply(stride[i], itemsize))) {
            const int64_t row_bytes = greatest(multiply(multiply(shape[i + 1], stride[i + 1]), itemsize), INT64_C(1));
            stride[i] = (row_bytes + 15) / 16 * 16 / itemsize;
        }
    }
}

struct Run {
    int64_t size, step;
};

// Whether each dimension of the view steps along one evenly spaced run of the tensor's elements, within its end.
inline bool stays_inside(const Tensor &tensor, const Sizes &shape, const Sizes &stride) {
    if (is_empty(tensor.shape)) return false;
    std::vector<Run> dimensions, runs;
    for (size_t i = 0; i < tensor.shape.size(); ++i)
        if (tensor.shape[i] > 1 && tensor.stride[i] > 0) dimensions.push_back(Run{tensor.shape[i], tensor.stride[i]});
    for (size_t i = 1; i < dimensions.size(); ++i)
        for (size_t k = i; k > 0 && dimensions[k].step < dimensions[k - 1].step; --k) std::swap(dimensions[k], dimensions[k - 1]);
    for (const Run &one : dimensions) {
        if (!runs.empty() && runs.back().size * runs.back().step == one.step)
            runs.back().size *= one.size;
        else
            runs.push_back(one);
    }
    std::vector<int64_t> used(runs.size(), 0);
    for (size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] == 1 || stride[i] == 0) continue;
        size_t widest = runs.size();
        for (size_t k = 0; k < runs.size(); ++k)
            if (runs[k].step <= stride[i] && stride[i] % runs[k].step == 0 && (widest == runs.size() || runs[k].step > runs[widest].step))
                widest = k;
        if (widest == runs.size()) return false;
        used[widest] += (shape[i] - 1) * (stride[i] / runs[widest].step);
    }
    for (size_t k = 0; k < runs.size(); ++k)
        if (used[k] >= runs[k].size) return false;
    return true;
}

inline bool is_one_of(int64_t value, std::initializer_list<int64_t> allowed) {
    for (int64_t one : allowed)
        if (one == value) return true;
    return false;
}

inline TensorMap tensor_map(const char *name, const Tensor &tensor, const MapOptions &options) {
    const std::string where = std::string(name) + ": ";
    if (!tensor.given) fault(where + "its tensor was not given");
    const int64_t itemsize = size_of(tensor.dtype);
    const Sizes shape = options.shape ? *options.shape : tensor.shape;
    Sizes stride = options.stride ? *options.stride : options.shape ? contiguous_stride(shape) : tensor.stride;
    const Sizes &box = *options.box;
    Sizes step = shape;
    for (size_t i = 0; i < step.size(); ++i) step[i] = 1;
    if (options.step) step = *options.step;
    const size_t rank = shape.size();
    if (rank < 1 || rank > 5) fault(where + "a map has 1 to 5 dimensions");
    if (stride.size() != rank || box.size() != rank || step.size() != rank) fault(where + "stride, box or step has another rank");
    replace_idle_strides(itemsize, shape, stride);
    for (int64_t size : shape)
        if (size < 1 || size > (INT64_C(1) << 32)) fault(where + "a size is not 1 to 2^32");
    if (stride[rank - 1] != 1) fault(where + "the innermost stride is not 1");
    for (size_t i = 0; i + 1 < rank; ++i)
        if (!is_regular_stride(multiply(stride[i], itemsize))) fault(where + "a stride is no multiple of 16 bytes below 2^40");
    if (!stays_inside(tensor, shape, stride)) fault(where + "the view leaves the tensor");
    for (int64_t size : box)
        if (size < 1 || size > 256) fault(where + "a size of the box is not 1 to 256");
    const int64_t inner_bytes = box[rank - 1] * itemsize;
    if (inner_bytes % 16 != 0) fault(where + "the inner box is no multiple of 16 bytes");
    if (step[rank - 1] != 1) fault(where + "the innermost step is not 1");
    for (int64_t size : step)
        if (size < 1 || size > 8) fault(where + "a step is not 1 to 8");
    if (!is_one_of(options.swizzle, {0, 32, 64, 128})) fault(where + "swizzle is not 0, 32, 64 or 128");
    if (options.swizzle != 0 && inner_bytes > options.swizzle) fault(where + "the inner box is wider than the swizzle");
    if (!is_one_of(options.fill, {0, 1})) fault(where + "fill is not 0 or 1");
    const bool is_float = tensor.dtype <= DType::bf16;
    if (options.fill == 1 && !is_float) fault(where + "fill 1 is NaN, and the tensor is no float");
    if (!is_one_of(options.l2, {0, 64, 128, 256})) fault(where + "l2 is not 0, 64, 128 or 256");
    TensorMap map{name, tensor.slot, tensor.dtype, {}, {}, {}, {}, int(options.swizzle), int(options.l2), options.fill == 1};
    for (size_t i = rank; i-- > 0;) {
        map.shape.push_back(shape[i]);
        map.box.push_back(box[i]);
        map.step.push_back(step[i]);
        if (i + 1 < rank) map.stride_bytes.push_back(stride[i] * itemsize);
    }
    return map;
}

// CUtensorMapDataType. Eight-bit floats travel as bytes: the copy engine moves them and computes nothing.
inline int map_data_type(DType dtype) {
    static const int types[] = {8, 7, 6, 9, 0, 0, 5, 3, 1, 0, 0, 0};
    return types[static_cast<int>(dtype)];
}
inline int map_swizzle(int swizzle) { return swizzle == 0 ? 0 : swizzle == 32 ? 1 : swizzle == 64 ? 2 : 3; }
inline int map_l2(int bytes) { return bytes == 0 ? 0 : bytes == 64 ? 1 : bytes == 128 ? 2 : 3; }

} // namespace plan
} // namespace

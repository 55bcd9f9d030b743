// A launch plan at a call, in C++: layouts, buffers, launches, and which file runs.
//
// The functions that evaluate one kernel file's plan are generated and stand in another file; they call what is here.
// A fault in a `let` or `need` means that the file does not take the call; one in a step is an error. Nothing here
// allocates device memory or knows a GPU's driver.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "values.hpp"

namespace {
namespace plan {

// -- layout --

inline bool is_contiguous(const Tensor &tensor) {
    if (is_empty(tensor.shape)) return true;
    int64_t step = 1;
    for (size_t i = tensor.shape.size(); i-- > 0;) {
        if (tensor.shape[i] == 1) continue;
        if (tensor.stride[i] != step) return false;
        step *= tensor.shape[i];
    }
    return true;
}

// Whether two elements may lie at one address: a stride smaller than what lies inside it.
inline bool overlaps_itself(const Sizes &shape, const Sizes &stride) {
    if (is_empty(shape)) return false;
    bool done[Sizes::most] = {};
    int64_t reach = 0;
    for (size_t turn = 0; turn < shape.size(); ++turn) {
        size_t next = Sizes::most;
        for (size_t i = 0; i < shape.size(); ++i)
            if (!done[i] && shape[i] > 1 && (next == Sizes::most || stride[i] < stride[next])) next = i;
        if (next == Sizes::most) break;
        if (stride[next] <= reach) return true;
        reach = add(reach, multiply(shape[next] - 1, stride[next]));
        done[next] = true;
    }
    return false;
}

inline int64_t extent(const Sizes &shape, const Sizes &stride) {
    if (is_empty(shape)) return 0;
    int64_t reach = 1;
    for (size_t i = 0; i < shape.size(); ++i) reach = add(reach, multiply(shape[i] - 1, stride[i]));
    return reach;
}

inline void check_layout(const Tensor &tensor, const char *name, bool strided, bool unaligned, bool in_place) {
    if (!tensor.given) return;
    if (!strided && !is_contiguous(tensor)) fault(std::string(name) + " is not contiguous");
    if (strided && in_place && overlaps_itself(tensor.shape, tensor.stride))
        fault(std::string(name) + " has elements that share memory, and is changed in place");
    if (is_empty(tensor.shape)) return;
    const int64_t wanted = unaligned ? size_of(tensor.dtype) : 16;
    if (tensor.alignment % wanted != 0) fault(std::string(name) + " is not aligned to " + std::to_string(wanted) + " bytes");
}

// -- leading dimensions: what the `lead` line names is seen with all of them as one --

struct Lead {
    int slot;
    const char *name;
    size_t rank; // as the plan sees it
};

struct Leading {
    bool is_used = false; // else the tensors are as the plan has them
    Sizes sizes;
};

// The tensor with its first `count` dimensions as one; refused where no single step leads through them.
inline Tensor as_one(const Tensor &tensor, size_t count, const char *name) {
    Tensor one = tensor;
    one.shape.clear(), one.stride.clear();
    int64_t rows = 1, step = 1;
    for (size_t i = 0; i < count; ++i) rows = multiply(rows, tensor.shape[i]);
    if (count < tensor.shape.size()) step = multiply(tensor.shape[count], tensor.stride[count]);
    if (rows > 1) {
        int64_t wanted = -1; // of the next dimension outwards
        for (size_t i = count; i-- > 0;) {
            if (tensor.shape[i] == 1) continue;
            if (wanted >= 0 && tensor.stride[i] != wanted)
                fault(std::string("the leading dimensions of ") + name + " do not lie in memory as one");
            if (wanted < 0) step = tensor.stride[i];
            wanted = multiply(tensor.stride[i], tensor.shape[i]);
        }
    }
    one.shape.push_back(rows), one.stride.push_back(step);
    for (size_t i = count; i < tensor.shape.size(); ++i)
        one.shape.push_back(tensor.shape[i]), one.stride.push_back(tensor.stride[i]);
    return one;
}

template <class Call> Leading take_leading(Call &call, std::initializer_list<Lead> leads) {
    Leading leading;
    for (const Lead &lead : leads) {
        const Tensor &tensor = call.tensors[lead.slot];
        leading.is_used = leading.is_used || (tensor.given && tensor.shape.size() != lead.rank);
    }
    if (!leading.is_used) return leading;
    bool is_first = true;
    for (const Lead &lead : leads) {
        Tensor &tensor = call.tensors[lead.slot];
        if (!tensor.given) continue;
        if (tensor.shape.size() + 1 < lead.rank) fault(std::string(lead.name) + " has too few dimensions");
        const size_t count = tensor.shape.size() + 1 - lead.rank;
        const Sizes sizes = cut(tensor.shape, 0, int64_t(count));
        if (!is_first && sizes != leading.sizes) fault(std::string("the leading dimensions of ") + lead.name + " are others");
        leading.sizes = sizes;
        is_first = false;
        tensor = as_one(tensor, count, lead.name);
    }
    return leading;
}

// -- what an evaluation gives --

enum class Clearing : uint8_t { undefined, zeroed };

struct Buffer {
    const char *name;
    bool is_out;
    Clearing clearing;
    bool is_counter;
    Tensor tensor;
    int64_t bytes;
};

inline Tensor buffer(DType dtype, const Sizes &shape, const Sizes &stride) {
    Tensor tensor;
    tensor.given = true;
    tensor.dtype = dtype;
    tensor.shape = shape;
    for (int64_t size : shape)
        if (size < 0) fault("negative size");
    multiply(elements(tensor), size_of(dtype));
    tensor.stride = stride;
    return tensor;
}
inline Tensor buffer(DType dtype, const Sizes &shape) {
    for (int64_t size : shape)
        if (size < 0) fault("negative size");
    return buffer(dtype, shape, contiguous_stride(shape));
}

// A TMA descriptor over a tensor; every list is innermost first, as the driver wants it.
struct TensorMap {
    const char *name;
    int slot;
    DType dtype;
    List<int64_t> shape, stride_bytes, box, step;
    int swizzle, l2_bytes;
    bool fill_nan;
};

struct Argument {
    enum Kind : uint8_t { tensor, absent, map, integer, real, truth } kind;
    int64_t number; // or the slot, or the map's index
    double value;
};

// How one kernel parameter is written: `code` is p for a pointer, m for a tensor map, else a struct code.
struct Parameter {
    char code;
    uint16_t offset;
};

struct Kernel {
    const char *expression; // as the plan names it
    const char *symbol;     // as the module names it
    int module;
    const Parameter *parameters;
    int parameter_count;
    int block_bytes;
    int max_threads;  // of __launch_bounds__; 0: none
    int static_smem_bytes;
    uint32_t cluster[3]; // of __cluster_dims__; 0: none
};

// A build of a kernel by what decides it: the file's constants, the launch, its template arguments.
struct Row {
    const int64_t *key;
    int length;
    int kernel;
};

struct Launch {
    int kernel;
    uint32_t grid[3], block[3], smem_bytes, cluster[3];
    bool cooperative, programmatic;
    int line;
    int first_argument, argument_count;
};

struct NotCarried {
    std::string found;
};

struct StepError {
    int file, line;
    std::string found;
};

struct Dim {
    int64_t size[3] = {1, 1, 1};
    Dim() = default;
    Dim(std::initializer_list<int64_t> sizes) {
        int axis = 0;
        for (int64_t one : sizes) {
            if (one < 0) fault("a size of the launch is negative");
            size[axis++] = one;
        }
    }
    int64_t all() const { return multiply(multiply(size[0], size[1]), size[2]); }
    bool is_empty() const { return size[0] == 0 || size[1] == 0 || size[2] == 0; }
};

// One call's plan. Kept between calls by its owner, so that its memory is allocated once.
struct Plan {
    int file = 0;
    const Row *rows = nullptr;
    int row_count = 0;
    const Kernel *kernels = nullptr;
    std::vector<int64_t> key;
    size_t constants = 0;
    const char *const *constant_names = nullptr;
    std::vector<Buffer> buffers;
    std::vector<TensorMap> maps;
    std::vector<Launch> launches;
    std::vector<Argument> arguments;

    void clear() {
        key.clear();
        buffers.clear();
        maps.clear();
        launches.clear();
        arguments.clear();
    }

    void constant(int64_t value) { key.push_back(value), constants = key.size(); }
    void constant(bool value) { constant(int64_t(value)); }
    void constant(DType value) { constant(int64_t(value)); }
    void constant(double value) {
        int64_t bits;
        std::memcpy(&bits, &value, 8);
        constant(bits);
    }
    template <class T> void template_argument(T value) { key.push_back(int64_t(value)); }

    template <class T> void check(const Deferred<T> &one) const {
        if (one.failed) throw StepError{file, one.line, one.found};
    }
    void add_buffer(const char *name, bool is_out, Clearing clearing, bool is_counter, const Tensor &tensor, bool stated_stride) {
        if (stated_stride) check_dense(name, tensor);
        const int64_t bytes = multiply(extent(tensor.shape, tensor.stride), size_of(tensor.dtype));
        if (is_counter && bytes > (64 << 10)) fault(std::string("counter ") + name + " is larger than 64 KiB");
        buffers.push_back(Buffer{name, is_out, clearing, is_counter, tensor, bytes});
        int64_t scratch = 0;
        for (const Buffer &one : buffers)
            if (!one.is_out) scratch = add(scratch, one.bytes);
        if (scratch > (INT64_C(32) << 30)) fault(std::string(name) + " brings scratch above 32 GiB");
    }
    // The `out` buffer just added as the caller gets it, with the leading dimensions again.
    void lead_result(const Leading &leading) {
        if (!leading.is_used) return;
        Tensor &tensor = buffers.back().tensor;
        if (tensor.shape.size() == 0 || tensor.shape[0] != product(leading.sizes))
            fault(std::string(buffers.back().name) + " has no row for each leading one");
        const Tensor seen = tensor;
        Sizes steps = leading.sizes;
        int64_t step = seen.stride[0];
        for (size_t i = steps.size(); i-- > 0;) {
            steps[i] = step;
            step = multiply(step, leading.sizes[i] > 1 ? leading.sizes[i] : 1);
        }
        tensor.shape = spliced(leading.sizes, cut(seen.shape, 1, std::nullopt));
        tensor.stride = spliced(steps, cut(seen.stride, 1, std::nullopt));
    }
    static void check_dense(const char *name, const Tensor &tensor) {
        if (tensor.stride.size() != tensor.shape.size()) fault(std::string(name) + ": give one stride for each dimension");
        for (int64_t step : tensor.stride)
            if (step < 0) fault(std::string(name) + " has gaps or overlaps");
        if (is_empty(tensor.shape)) return;
        if (overlaps_itself(tensor.shape, tensor.stride) || extent(tensor.shape, tensor.stride) != product(tensor.shape))
            fault(std::string(name) + " has gaps or overlaps");
    }

    Launch &launch(const Device &device, int line, const Dim &grid, const Dim &block, int64_t smem_bytes, const Dim *cluster,
                   bool cooperative, bool programmatic) {
        static const int64_t most_grid[] = {INT64_C(2147483647), 65535, 65535}, most_block[] = {1024, 1024, 64};
        for (int axis = 0; axis < 3; ++axis) {
            if (grid.size[axis] > most_grid[axis]) fault("the grid has " + std::to_string(grid.size[axis]) + " blocks in one axis");
            if (block.size[axis] < 1 || block.size[axis] > most_block[axis])
                fault("the block has " + std::to_string(block.size[axis]) + " threads in one axis");
        }
        if (block.all() > 1024) fault("a block of " + std::to_string(block.all()) + " threads");
        if (smem_bytes < 0 || smem_bytes > device.smem_block)
            fault(std::to_string(smem_bytes) + " bytes of dynamic shared memory");
        Launch made{};
        if (cluster != nullptr) check_cluster(device, grid, *cluster, made);
        for (int axis = 0; axis < 3; ++axis) {
            made.grid[axis] = uint32_t(grid.size[axis]);
            made.block[axis] = uint32_t(block.size[axis]);
        }
        made.smem_bytes = uint32_t(smem_bytes);
        made.cooperative = cooperative;
        made.programmatic = programmatic;
        made.line = line;
        made.first_argument = int(arguments.size());
        launches.push_back(made);
        return launches.back();
    }
    static void check_cluster(const Device &device, const Dim &grid, const Dim &cluster, Launch &made) {
        const int64_t blocks = cluster.all();
        if (blocks < 1) fault("a cluster without blocks");
        if (blocks > device.max_cluster)
            fault("a cluster of " + std::to_string(blocks) + " blocks, this GPU takes " + std::to_string(device.max_cluster));
        for (int axis = 0; axis < 3; ++axis)
            if (grid.size[axis] % cluster.size[axis] != 0) fault("the cluster does not divide the grid");
        if (device.max_cluster == 1) return; // one block is no cluster, and such a GPU knows no other
        for (int axis = 0; axis < 3; ++axis) made.cluster[axis] = uint32_t(cluster.size[axis]);
    }

    void argument(const Tensor &tensor) {
        arguments.push_back(Argument{tensor.given ? Argument::tensor : Argument::absent, tensor.slot, 0});
    }
    void argument(int64_t value) { arguments.push_back(Argument{Argument::integer, value, 0}); }
    void argument(double value) { arguments.push_back(Argument{Argument::real, 0, value}); }
    void argument(bool value) { arguments.push_back(Argument{Argument::truth, value, 0}); }
    template <class T> void argument(const List<T> &values) {
        for (const T &value : values) argument(value);
    }
    template <class T> void argument(const std::optional<T> &value) {
        if (!value) fault("an optional that is passed on was not given");
        argument(*value);
    }
    void map_argument(int index) { arguments.push_back(Argument{Argument::map, index, 0}); }

    // The kernel of the launch just described, by the constants and the template arguments behind them in `key`.
    void finish_launch(const Device &device, int launch_number, size_t template_start) {
        Launch &made = launches.back();
        made.argument_count = int(arguments.size()) - made.first_argument;
        key.insert(key.begin() + long(template_start), launch_number);
        const Kernel &kernel = kernels[find()];
        made.kernel = int(&kernel - kernels);
        key.resize(template_start);
        const int64_t threads = int64_t(made.block[0]) * made.block[1] * made.block[2];
        if (kernel.max_threads > 0 && threads > kernel.max_threads)
            fault(std::to_string(threads) + " threads, __launch_bounds__ allows " + std::to_string(kernel.max_threads));
        if (int64_t(kernel.static_smem_bytes) + made.smem_bytes > device.smem_block) fault("too much shared memory");
        if (kernel.cluster[0] != 0)
            for (int axis = 0; axis < 3; ++axis)
                if (kernel.cluster[axis] != (made.cluster[0] ? made.cluster[axis] : 1)) fault("__cluster_dims__ says otherwise");
        if (kernel.parameter_count != made.argument_count)
            fault("takes " + std::to_string(kernel.parameter_count) + " arguments, " + std::to_string(made.argument_count) +
                  " are passed");
    }
    int find() const {
        for (int i = 0; i < row_count; ++i)
            if (rows[i].length == int(key.size()) && std::memcmp(rows[i].key, key.data(), key.size() * 8) == 0)
                return rows[i].kernel;
        std::string found = "no build was exported for";
        for (size_t i = 0; i < constants; ++i)
            found += std::string(i ? ", " : " ") + constant_names[i] + " = " + std::to_string(key[i]);
        throw NotCarried{constants ? found : "no build was exported for this combination of types"};
    }
};

// -- which file runs --

struct Refusal {
    int file = 0, line = 0;
    std::string found;
};

// Where a choice of the tuned constants won, for which tensors as the plan sees them: a tuner's winner.
struct Winner {
    int choice;
    int64_t cc, sms; // sms: 0 where it is unknown
    const int64_t *tensors; // for each of the op: its number of dimensions or -1 where it was absent, its dtype, its sizes
};

template <class Call> struct File {
    const char *name;
    bool (*evaluate)(const Call &, const Device &, const int64_t *choice, Plan &, Refusal &);
    const int64_t *choices; // one after another
    int choice_count, tune_count;
    const Winner *winners;
    int winner_count;
    const int *plan_ranks; // of each tensor, of those that the `lead` line names; 0 of the others
    const Row *rows;
    int row_count;
    const char *const *constant_names;
};

// How far a winner is from a call, in octaves of sizes and what stands for another GPU; negative where it is of no use.
// As kernel_file/tuned.py has it, but for the GPU's name, of which nothing hangs here but its multiprocessors.
template <class Call>
double distance(const Winner &winner, const Call &call, const Device &device, const int *plan_ranks) {
    if (winner.cc != device.cc) return -1;
    double total = 3;
    if (winner.sms != 0) {
        const double ratio = double(winner.sms) / double(device.sms);
        total = winner.sms == device.sms ? 0 : ratio >= 0.8 && ratio <= 1.25 ? 1 : 3;
    }
    const int64_t *next = winner.tensors;
    for (size_t slot = 0; slot < sizeof call.tensors / sizeof call.tensors[0]; ++slot) {
        const Tensor &tensor = call.tensors[slot];
        const int64_t rank = *next++;
        if ((rank >= 0) != tensor.given) return -1;
        if (rank < 0) continue;
        const DType dtype = DType(*next++);
        const auto is_short = [](DType one) { return one == DType::f16 || one == DType::bf16; };
        if (dtype != tensor.dtype) {
            if (!is_short(dtype) || !is_short(tensor.dtype)) return -1;
            total += 0.5;
        }
        const size_t own = tensor.shape.size();
        const size_t seen = plan_ranks[slot] > 0 ? size_t(plan_ranks[slot]) : own;
        if (size_t(rank) != seen || own + 1 < seen) return -1;
        double rows = 1; // of the dimensions that lead
        for (size_t i = 0; seen > 0 && i + seen < own + 1; ++i) rows *= double(tensor.shape[i]);
        for (size_t i = 0; i < seen; ++i) {
            const double size = i == 0 ? rows : double(tensor.shape[i + own - seen]);
            total += std::fabs(std::log2(size + 1) - std::log2(double(*next++) + 1));
        }
    }
    return total;
}

// The choices of a file in the order in which they are tried: winners, the nearest first, then as they are written.
template <class Call>
std::vector<int> ordered_choices(const File<Call> &file, const Call &call, const Device &device) {
    std::vector<std::pair<double, int>> near;
    for (int i = 0; i < file.winner_count; ++i) {
        const double far = distance(file.winners[i], call, device, file.plan_ranks);
        if (far >= 0) near.push_back({far, file.winners[i].choice});
    }
    std::stable_sort(near.begin(), near.end(), [](const auto &a, const auto &b) { return a.first < b.first; });
    std::vector<int> order;
    const auto add = [&order](int choice) {
        if (std::find(order.begin(), order.end(), choice) == order.end()) order.push_back(choice);
    };
    for (const auto &one : near) add(one.second);
    for (int i = 0; i < file.choice_count; ++i) add(i);
    return order;
}

// The first file and choice whose needs hold; false with one refusal for each file where there is none.
template <class Call>
bool select(const File<Call> *files, int count, const Kernel *kernels, const Call &call, const Device &device, Plan &plan,
            std::vector<Refusal> &refusals) {
    plan.kernels = kernels;
    for (int number = 0; number < count; ++number) {
        const File<Call> &file = files[number];
        plan.file = number;
        plan.rows = file.rows;
        plan.row_count = file.row_count;
        plan.constant_names = file.constant_names;
        Refusal furthest;
        for (const int i : ordered_choices(file, call, device)) {
            Refusal refusal;
            plan.clear();
            if (file.evaluate(call, device, file.choices + size_t(i) * size_t(file.tune_count), plan, refusal)) return true;
            if (refusal.line > furthest.line) furthest = refusal;
        }
        furthest.file = number;
        refusals.push_back(furthest);
    }
    return false;
}

} // namespace plan
} // namespace

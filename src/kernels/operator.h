// An operator as data: what a test, a benchmark, a profile and a plan must know of a kernel or a small layer, said once. The generic test
// (operator_checks.h), `ingot bench` and predictions read it. docs/adding-a-kernel.md shows how to write one.
//
// operators() here has what the files of kernels/operators/ define, layers/operators.h adds those of layers/operators/, optim/operators.h
// adds updates and has all. Plain values; any thread may read them.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "device/aten.h"
#include "device/trace.h"
#include "device/virtual_device.h"
#include "kernels/differentiable.h"

namespace ingot::kernels {

/// What one measured call works on: [rows, width] elements, as profiles name sizes; each operator says what they are of.
struct OperatorSizes {
  int64_t rows = 0, width = 0;
  at::ScalarType dtype = at::kFloat;  // that a model computes in
  at::Device device = at::kCPU;

  /// Of the residual stream, vectors and sums: fp64 for fp64, else fp32.
  at::ScalarType wide() const { return dtype == at::kDouble ? at::kDouble : at::kFloat; }
  /// Random numbers in fp32. Of many, most are repeated: drawing them would take longer than most calls.
  at::Tensor normal(at::IntArrayRef sizes) const;
  /// The same, which get a gradient.
  at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType of) const;
  at::Tensor leaf(at::IntArrayRef sizes) const { return leaf(sizes, dtype); }
  /// int64 from 0 to below `limit`.
  at::Tensor indices(int64_t limit, at::IntArrayRef sizes) const;
};

/// One call as a model makes it. `forward` may keep other tensors than its inputs alive, such as a layer's parameters.
struct OperatorCall {
  using Function = std::function<TensorList(const TensorList& inputs)>;
  TensorList inputs;
  Function forward;
  /// The same by plain operations of ATen, differentiated by autograd, in any dtype: the oracle in fp64. Empty: `forward` in fp64 is that.
  Function reference;
  int64_t count = 1;           // how many pieces of [rows, width] it works on
  bool is_repeatable = false;  // on the same tensors, which the program also finds in its caches
  bool has_backward() const;
};

/// Of the fused kernels, all of a call's together. Bytes are of the tensors read and written; scratch is what lives within a pass alone.
/// FLOPs are those of matmuls and attention, and 0 of what memory bounds.
struct OperatorCost {
  static constexpr int64_t kVaries = -1;  // with the number of threads and the instruction set
  struct Pass {
    double flops = 0;
    int64_t read_bytes = 0, written_bytes = 0, scratch_bytes = 0;
  };
  Pass forward, backward;
  int64_t saved_bytes = 0;  // kept for backward, inputs and outputs included
};

/// Shapes as a trace has them.
using Shapes = std::vector<device::Trace::TensorShape>;
using Size = std::pair<int64_t, int64_t>;  // rows, width

/// A kernel by the name that it gives to device::counted().
struct TracedKernel {
  std::string_view name;
  bool is_backward = false;
  /// The operator's rows and width, from the kernel's inputs and outputs; null: its time is no part of what the operator's call measures.
  Size (*size)(const Shapes& inputs, const Shapes& outputs) = nullptr;
};

struct Tolerance {
  double fp32 = 2e-5, bf16 = 2e-2;  // of the largest magnitude of a tensor
};

struct Operator {
  std::string_view name;  // in profiles
  WorkKind kind = WorkKind::elementwise;
  std::vector<TracedKernel> traced;
  std::vector<device::Target> fused_on;  // where its traced kernels run; elsewhere it is a composition of ATen operations
  OperatorCall (*make)(const OperatorSizes& sizes) = nullptr;
  /// Of the fused kernels; null where there are none.
  OperatorCost (*cost)(const OperatorSizes& sizes) = nullptr;
  std::vector<Size> (*measured)(bool quick) = nullptr;  // sizes worth a time in a profile; null: none
  std::vector<Size> checked;                            // sizes at which the test compares it with its reference
  Tolerance tolerance;
};

/// Those of this folder: what NAME_operators() of every operators/NAME.cpp gives (cmake/operator_list.cpp.in).
const std::vector<Operator>& operators();

/// Null when there is none.
const Operator* find_operator(const std::vector<Operator>& all, std::string_view name);
/// Of a traced kernel, by its name.
const Operator* operator_of_kernel(const std::vector<Operator>& all, std::string_view traced_name);

/// Under which name and size a profile has the time of a traced kernel, alone or with others of its operator; nothing where it has none.
struct MeasuredSize {
  std::string_view name;
  int64_t rows = 0, width = 0;
  bool is_backward = false;
};
std::optional<MeasuredSize> measured_size(const std::vector<Operator>& all, std::string_view traced_name, const Shapes& inputs,
                                          const Shapes& outputs);

}  // namespace ingot::kernels

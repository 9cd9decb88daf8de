// What a program did on a virtual device, as data: operations, allocations, communication and host accesses in the order in which
// they came, each in the scope of work (base/work_scope.h) that it belongs to. Written by a Tracer (tracer.h).
//
// Order is a position: 0, 1, 2 … over all events of one trace. What runs on a backward pass stands in a scope "backward" below the
// scope whose forward pass it differentiates.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/work_kind.h"
#include "device/aten.h"

namespace ingot::device {

struct Trace {
  struct Scope {
    std::string name;
    int32_t parent = -1;  // -1: the root, scope 0
    bool is_backward = false;
    base::Work work;  // as the scope says of itself
  };
  struct TensorShape {
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes;
  };
  /// A kernel that the device would run; views and queries are none. Inputs are the tensors read, an `out` argument is an output.
  struct Operation {
    int32_t name = 0;  // into names: "aten::mm", or one of ingot's own kernels
    int32_t scope = 0;
    int64_t position = 0;
    double flops = 0;  // of matmuls and ingot's own kernels
    int64_t read_bytes = 0, written_bytes = 0;
    int64_t shapes = 0;  // into shape_numbers
    int32_t inputs = 0, outputs = 0;
    int64_t stream = 0;  // 0: the default one
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  struct Allocation {
    int64_t bytes = 0;
    int32_t scope = 0;
    int64_t begin = 0, end = kNever;  // positions; kNever: alive when the trace ended
  };
  /// One collective, send or receive of this rank. bytes, sent and received as comm/operation.h has them.
  struct Communication {
    std::string kind, axis;
    int ranks = 1;
    int first_rank = 0, stride = 1;  // of the group's ranks in the world: first_rank, first_rank + stride, …
    int peer = -1;                   // rank in the world: root of a broadcast or reduce, the other end of a send or receive
    int64_t element_bytes = 1;
    int64_t bytes = 0, sent_bytes = 0, received_bytes = 0;
    int32_t scope = 0, wait_scope = 0;
    int64_t start = 0, wait = kNever;  // positions; kNever: nobody waited
    bool is_blocking = false;
    int64_t stream = 0, wait_stream = 0;  // that it started on, and that it kept waiting
  };
  /// What comes on `stream` from `position` on waits for what `other` had to do at `until`.
  struct StreamWait {
    int64_t stream = 0, other = 0;
    int64_t until = 0, position = 0;
  };
  /// The host reads the device (it waits for it) or a copy between them.
  struct HostAccess {
    enum class Kind : uint8_t { read, copy_to_host, copy_to_device } kind = Kind::read;
    int64_t bytes = 0;
    int32_t name = 0, scope = 0;
    int64_t position = 0;
    bool waits = true;  // the host, until the device has come there
  };

  std::vector<std::string> names;
  std::vector<Scope> scopes;
  std::vector<Operation> operations;
  std::vector<int64_t> shape_numbers;  // per tensor: dtype, number of dims, sizes
  std::vector<Allocation> allocations;
  std::vector<Communication> communications;
  std::vector<HostAccess> host_accesses;
  std::vector<StreamWait> stream_waits;
  int64_t positions = 0;
  int64_t before_bytes = 0;  // allocated before the trace began and not freed within it
  int64_t peak_bytes = 0, peak_position = 0;
  /// Operations whose shapes libtorch has no kernel for and that were taken to leave their outputs' shapes alone, by name.
  std::vector<std::string> guessed;

  std::string_view name_of(const Operation& operation) const { return names[static_cast<size_t>(operation.name)]; }
  std::vector<TensorShape> inputs_of(const Operation& operation) const;
  std::vector<TensorShape> outputs_of(const Operation& operation) const;
  /// "forward/layer 3/attention", a backward pass's "forward/layer 3/attention/backward"; empty for the root.
  std::string path_of(int32_t scope) const;
  bool is_backward(int32_t scope) const { return scopes[static_cast<size_t>(scope)].is_backward; }
  /// The scope itself or the nearest one around it of that name; -1 where there is none.
  int32_t enclosing(int32_t scope, std::string_view name) const;
  /// Indices of the allocations that live at a position.
  std::vector<size_t> alive_at(int64_t position) const;
  double flops() const;
  int64_t waits() const;  // host accesses that wait
};

}  // namespace ingot::device

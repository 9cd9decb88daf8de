#include "plan/trace/alike_operations.h"

namespace ingot::plan {

int32_t AlikeOperations::count(const device::Trace::Operation& o, std::vector<PassOperation>& list) {
  const auto work = works_.of(o);
  std::vector<int64_t> key = {o.name, static_cast<int64_t>(work.kind), work.is_backward ? 1 : 0, o.inputs, o.outputs};
  size_t at = static_cast<size_t>(o.shapes);
  for (int32_t i = 0; i < o.inputs + o.outputs; ++i) {
    const auto size = static_cast<size_t>(2 + trace_.shape_numbers[at + 1]);
    key.insert(key.end(), trace_.shape_numbers.begin() + static_cast<std::ptrdiff_t>(at),
               trace_.shape_numbers.begin() + static_cast<std::ptrdiff_t>(at + size));
    at += size;
  }
  const auto [known, is_new] = known_.try_emplace(std::move(key), static_cast<int32_t>(list.size()));
  if (is_new)
    list.push_back({.name = std::string(trace_.name_of(o)),
                    .inputs = trace_.inputs_of(o),
                    .outputs = trace_.outputs_of(o),
                    .kind = work.kind,
                    .is_backward = work.is_backward,
                    .flops = o.flops,
                    .read_bytes = o.read_bytes,
                    .written_bytes = o.written_bytes});
  ++list[static_cast<size_t>(known->second)].calls;
  return known->second;
}

}  // namespace ingot::plan

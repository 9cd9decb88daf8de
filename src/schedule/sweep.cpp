#include "schedule/sweep.h"

namespace ingot::schedule {

std::vector<Layout> layouts_of(const Sweep& sweep, Method method, int ranks, int64_t seq) {
  auto layout = sweep.base;
  layout.method = method;
  layout.ranks = ranks;
  layout.sizes.seq = seq;
  if (method != Method::tp_sp) return {layout};
  std::vector<Layout> all;
  for (const int tensor : factorisations(ranks)) {
    layout.tensor_ranks = tensor;
    all.push_back(layout);
  }
  return all;
}

std::string name_of(Quantity quantity) {
  return quantity == Quantity::time ? "time" : quantity == Quantity::received_bytes ? "received_bytes" : "peak_bytes";
}

std::optional<int64_t> first_below(const Measure& a, const Measure& b, int64_t from, int64_t to, int64_t step) {
  const auto is_below = [&](int64_t multiple) { return a(multiple * step) < b(multiple * step); };
  int64_t low = (from + step - 1) / step, high = to / step;
  if (low > high || !is_below(high)) return std::nullopt;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (is_below(middle)) high = middle;
    else low = middle + 1;
  }
  return high * step;
}

}  // namespace ingot::schedule

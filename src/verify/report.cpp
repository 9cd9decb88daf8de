#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "verify/verify.h"

namespace ingot::verify {

Comparison compare(const std::string& name, const at::Tensor& got, const at::Tensor& reference, const Tolerance& tolerance) {
  if (got.sizes() != reference.sizes())
    throw base::ModelError("{}: shape [{}] here, [{}] in the reference", name, fmt::join(got.sizes(), ", "),
                           fmt::join(reference.sizes(), ", "));
  Comparison result{.name = name};
  if (!at::isFloatingType(reference.scalar_type())) {
    const auto here = got.to(at::kCPU, at::kLong), there = reference.to(at::kLong);
    result.ids_equal = at::equal(here, there);
    result.max_abs = there.numel() == 0 ? 0 : (here - there).abs().max().item<double>();
    result.pass = *result.ids_equal;
    return result;
  }
  if (reference.numel() == 0) return result.pass = true, result;
  const auto here = got.detach().to(at::kCPU, at::kDouble), there = reference.to(at::kDouble);
  const double largest = there.abs().max().item<double>();
  result.max_abs = (here - there).abs().max().item<double>();
  result.max_rel = largest > 0 ? result.max_abs / largest : result.max_abs;
  result.pass = result.max_abs <= tolerance.rtol * largest + tolerance.atol;  // false for NaN
  return result;
}

bool Report::pass() const {
  return !comparisons.empty() && std::all_of(comparisons.begin(), comparisons.end(), [](const auto& c) { return c.pass; });
}

nlohmann::json Report::json() const {
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& c : comparisons) {
    // NaN has no JSON form: null says that the comparison has no number.
    const auto number = [](double x) { return std::isfinite(x) ? nlohmann::json(x) : nlohmann::json(); };
    tensors[c.name] = {{"max_abs", number(c.max_abs)},
                       {"max_rel", number(c.max_rel)},
                       {"ids_equal", c.ids_equal ? nlohmann::json(*c.ids_equal) : nlohmann::json()},
                       {"pass", c.pass}};
  }
  return {{"pass", pass()}, {"compared", comparisons.size()}, {"tensors", tensors}};
}

std::string Report::text() const {
  auto sorted = comparisons;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    if (a.pass != b.pass) return !a.pass;
    return a.max_rel > b.max_rel;
  });
  std::string out = fmt::format("{:<64} {:>10} {:>10}  {}\n", "tensor", "max_abs", "max_rel", "");
  size_t shown = 0, failed = 0;
  for (const auto& c : sorted) {
    failed += c.pass ? 0 : 1;
    if (c.pass && shown >= 12) continue;
    ++shown;
    out +=
        fmt::format("{:<64} {:>10.2e} {:>10.2e}  {}\n", c.name, c.max_abs, c.max_rel, c.pass ? (c.ids_equal ? "equal" : "ok") : "FAILED");
  }
  out += fmt::format("{} tensors compared, {} failed\n", sorted.size(), failed);
  return out;
}

}  // namespace ingot::verify

#include "checkpoint/load/match.h"

#include <map>

#include "base/text.h"

namespace ingot::checkpoint {
namespace {

using tensor::LogicalTensor;

std::string describe(const LogicalTensor& tensor) {
  return fmt::format("'{}' {} {}", tensor.name, tensor::name_of(tensor.dtype), tensor::to_string(tensor.shape));
}

template <class Element, class Function>
std::string line(const char* kind, const std::vector<Element>& elements, size_t limit, Function&& text) {
  if (elements.empty()) return "";
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(limit, elements.size()); ++i) parts.push_back(text(elements[i]));
  if (elements.size() > limit) parts.push_back(fmt::format("and {} more", elements.size() - limit));
  return fmt::format("\n  {} ({}): {}", kind, elements.size(), base::join(parts, ", "));
}

}  // namespace

std::string Mismatch::describe(size_t limit) const {
  std::vector<std::string> spare;
  for (const LogicalTensor& tensor : unexpected) spare.push_back(tensor.name);
  return line("missing", missing, limit,
              [&](const LogicalTensor& t) { return checkpoint::describe(t) + base::did_you_mean(t.name, spare); }) +
         line("unexpected", unexpected, limit, [](const LogicalTensor& t) { return checkpoint::describe(t); }) +
         line("differently shaped", shapes, limit,
              [](const Pair& p) {
                return fmt::format("'{}' is {} there, {} is wanted", p.wanted.name, tensor::to_string(p.present.shape),
                                   tensor::to_string(p.wanted.shape));
              }) +
         line("differently typed", dtypes, limit, [](const Pair& p) {
           return fmt::format("'{}' is {} there, {} is wanted", p.wanted.name, tensor::name_of(p.present.dtype),
                              tensor::name_of(p.wanted.dtype));
         });
}

Mismatch compare(const std::vector<LogicalTensor>& wanted, const std::vector<LogicalTensor>& present) {
  std::map<std::string, std::pair<const LogicalTensor*, const LogicalTensor*>> both;
  for (const LogicalTensor& tensor : wanted) both[tensor.name].first = &tensor;
  for (const LogicalTensor& tensor : present) both[tensor.name].second = &tensor;
  Mismatch mismatch;
  for (const auto& [name, pair] : both) {
    const auto& [want, have] = pair;
    if (!have) {
      mismatch.missing.push_back(*want);
    } else if (!want) {
      mismatch.unexpected.push_back(*have);
    } else {
      if (want->shape != have->shape) mismatch.shapes.push_back({*want, *have});
      if (want->dtype != have->dtype) mismatch.dtypes.push_back({*want, *have});
    }
  }
  return mismatch;
}

}  // namespace ingot::checkpoint

#include "device/trace.h"

#include <algorithm>
#include <numeric>

namespace ingot::device {
namespace {

std::vector<Trace::TensorShape> shapes_at(const Trace& trace, int64_t at, int32_t skipped, int32_t count) {
  std::vector<Trace::TensorShape> shapes;
  for (int32_t i = 0; i < skipped + count; ++i) {
    const int64_t* numbers = trace.shape_numbers.data() + at;
    if (i >= skipped) shapes.push_back({static_cast<at::ScalarType>(numbers[0]), {numbers + 2, numbers + 2 + numbers[1]}});
    at += 2 + numbers[1];
  }
  return shapes;
}

}  // namespace

std::vector<Trace::TensorShape> Trace::inputs_of(const Operation& o) const { return shapes_at(*this, o.shapes, 0, o.inputs); }
std::vector<Trace::TensorShape> Trace::outputs_of(const Operation& o) const { return shapes_at(*this, o.shapes, o.inputs, o.outputs); }

std::string Trace::path_of(int32_t scope) const {
  std::vector<std::string_view> parts;
  for (; scope > 0; scope = scopes[static_cast<size_t>(scope)].parent) parts.push_back(scopes[static_cast<size_t>(scope)].name);
  std::string path;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    if (!path.empty()) path += '/';
    path += *part;
  }
  return path;
}

int32_t Trace::enclosing(int32_t scope, std::string_view name) const {
  while (scope >= 0 && scopes[static_cast<size_t>(scope)].name != name) scope = scopes[static_cast<size_t>(scope)].parent;
  return scope;
}

std::vector<size_t> Trace::alive_at(int64_t position) const {
  std::vector<size_t> alive;
  for (size_t i = 0; i < allocations.size(); ++i)
    if (allocations[i].begin <= position && allocations[i].end > position) alive.push_back(i);
  return alive;
}

double Trace::flops() const {
  return std::accumulate(operations.begin(), operations.end(), 0.0, [](double sum, const Operation& o) { return sum + o.flops; });
}

int64_t Trace::waits() const {
  return std::count_if(host_accesses.begin(), host_accesses.end(), [](const HostAccess& access) { return access.waits; });
}

}  // namespace ingot::device

#include "tensor/logical_tensor.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/text.h"

namespace ingot::tensor {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t size_bytes;
};
// In the order of the enumeration.
constexpr std::array<DTypeInfo, 14> kDTypes = {{{"fp64", 8},
                                                {"fp32", 4},
                                                {"bf16", 2},
                                                {"fp16", 2},
                                                {"fp8_e4m3", 1},
                                                {"fp8_e5m2", 1},
                                                {"int64", 8},
                                                {"int32", 4},
                                                {"int16", 2},
                                                {"int8", 1},
                                                {"uint8", 1},
                                                {"boolean", 1},
                                                {"complex64", 8},
                                                {"complex128", 16}}};

}  // namespace

int64_t size_bytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size_bytes; }
std::string_view name_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

DType dtype_from_name(std::string_view name) {
  std::vector<std::string> known;
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
    known.emplace_back(kDTypes[i].name);
  }
  throw base::ConfigError("unknown dtype '{}'{}", name, base::did_you_mean(name, known));
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) throw base::ConfigError("the shape {} has a negative extent", to_string(shape));
    if (__builtin_mul_overflow(count, extent, &count))
      throw base::ConfigError("the shape {} has more than 2^63 elements", to_string(shape));
  }
  return count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Box whole(const Shape& shape) { return {Shape(shape.size(), 0), shape}; }

bool is_inside(const Box& box, const Shape& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    if (box.offset[d] < 0 || box.extent[d] < 0 || box.offset[d] > shape[d] || box.extent[d] > shape[d] - box.offset[d]) return false;
  }
  return true;
}

bool intersect(const Box& a, const Box& b, Box& common) {
  common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.extent[d], b.offset[d] + b.extent[d]);
    if (begin >= end) return false;
    common.offset[d] = begin;
    common.extent[d] = end - begin;
  }
  return true;
}

namespace {

// Appends the boxes of the flat slice [begin, end) of the sub-tensor that starts at dim `d`; `prefix` fixes the dims before.
void append_boxes(const Shape& shape, size_t d, Box prefix, int64_t begin, int64_t end, std::vector<Box>& out) {
  if (begin >= end) return;
  int64_t stride = 1;
  for (size_t inner = d + 1; inner < shape.size(); ++inner) stride *= shape[inner];
  if (d + 1 >= shape.size()) {
    if (d < shape.size()) {
      prefix.offset[d] = begin;
      prefix.extent[d] = end - begin;
    }
    out.push_back(std::move(prefix));
    return;
  }
  const int64_t first = begin / stride, last = end / stride;  // rows of this dim
  const int64_t head = begin % stride, tail = end % stride;
  const auto row = [&](int64_t index, int64_t from, int64_t to) {
    Box inner = prefix;
    inner.offset[d] = index;
    inner.extent[d] = 1;
    append_boxes(shape, d + 1, std::move(inner), from, to, out);
  };
  if (first == last) return row(first, head, tail);
  if (head != 0) row(first, head, stride);
  const int64_t full_from = head == 0 ? first : first + 1;
  if (full_from < last) {
    Box full = prefix;
    full.offset[d] = full_from;
    full.extent[d] = last - full_from;
    for (size_t inner = d + 1; inner < shape.size(); ++inner) {
      full.offset[inner] = 0;
      full.extent[inner] = shape[inner];
    }
    out.push_back(std::move(full));
  }
  if (tail != 0) row(last, 0, tail);
}

}  // namespace

std::vector<Box> boxes_of_flat_slice(const Shape& shape, int64_t begin, int64_t end) {
  std::vector<Box> out;
  const int64_t count = element_count(shape);
  if (begin < 0 || end > count || begin > end)
    throw base::ConfigError("the flat slice {}..{} is outside a tensor of {} elements", begin, end, count);
  append_boxes(shape, 0, whole(shape), begin, end, out);
  return out;
}

}  // namespace ingot::tensor

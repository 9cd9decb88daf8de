#include "tensor/part.h"

#include "base/error.h"

namespace ingot::tensor {
namespace {

// A range of one dim as it lies in the local tensor.
struct Placed {
  int64_t local;
  Range range;
};

std::vector<Placed> placed(const std::vector<Range>& ranges) {
  std::vector<Placed> all;
  int64_t local = 0;
  for (const Range& range : ranges) {
    all.push_back({local, range});
    local += range.size();
  }
  return all;
}

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Cuts a local box along every dim where the ranges meet.
void append_regions(const std::vector<std::vector<Placed>>& dims, const Shape& strides, const Box& local, size_t d, Region region,
                    std::vector<Region>& out) {
  if (d == dims.size()) {
    out.push_back(std::move(region));
    return;
  }
  for (const Placed& piece : dims[d]) {
    const int64_t from = std::max(local.offset[d], piece.local);
    const int64_t to = std::min(local.offset[d] + local.extent[d], piece.local + piece.range.size());
    if (from >= to) continue;
    Region part = region;
    part.box.offset.push_back(piece.range.begin + from - piece.local);
    part.box.extent.push_back(to - from);
    part.offset += from * strides[d];
    append_regions(dims, strides, local, d + 1, std::move(part), out);
  }
}

}  // namespace

Range share_of(int64_t n, int64_t index, int64_t count) {
  if (n % count != 0) throw base::ConfigError("{} does not divide into {} equal shares", n, count);
  return {n / count * index, n / count * (index + 1)};
}

Part whole_part(const Shape& shape) {
  Part part;
  for (const int64_t n : shape) part.push_back({{0, n}});
  return part;
}

Shape local_shape(const Shape& shape, const Part& part) {
  if (part.empty()) return shape;
  if (part.size() != shape.size())
    throw base::ConfigError("a part of {} dims does not fit a tensor of shape {}", part.size(), to_string(shape));
  Shape local;
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t size = 0, last = 0;
    for (const Range& range : part[d]) {
      if (range.begin < last || range.end < range.begin || range.end > shape[d])
        throw base::ConfigError("the range {}..{} of dim {} does not fit a tensor of shape {}", range.begin, range.end, d,
                                to_string(shape));
      size += range.size();
      last = range.end;
    }
    local.push_back(size);
  }
  return local;
}

std::vector<Region> regions_of(const Shape& shape, const Part& part, int64_t begin, int64_t end) {
  const Shape local = local_shape(shape, part), strides = strides_of(local);
  std::vector<std::vector<Placed>> dims;
  for (const auto& ranges : part.empty() ? whole_part(shape) : part) dims.push_back(placed(ranges));
  std::vector<Region> all;
  for (const Box& box : boxes_of_flat_slice(local, begin, end)) append_regions(dims, strides, box, 0, {{}, -begin, strides}, all);
  return all;
}

}  // namespace ingot::tensor

#include "checkpoint/format/boxes.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace ingot::checkpoint {
namespace {

std::string describe(const Box& box) {
  return fmt::format("offset {} extent {}", tensor::to_string(box.offset), tensor::to_string(box.extent));
}

__int128 volume(const Box& box) {
  __int128 product = 1;
  for (const int64_t extent : box.extent) product *= extent;
  return product;
}

// Checks a tiling by halving the region until one box is left in each part. In every part the volumes of the boxes, cut to
// the part, must add up to the part's own: a fault shows at the first part where they do not.
class TilingCheck {
 public:
  explicit TilingCheck(const std::vector<const Box*>& boxes) : boxes_(boxes) {}

  std::string run(const Box& region, std::vector<size_t> inside) {
    struct Part {
      Box region;
      std::vector<size_t> inside;
    };
    std::vector<Part> open;
    open.push_back({region, std::move(inside)});
    while (!open.empty()) {
      const Part part = std::move(open.back());
      open.pop_back();
      const std::string fault = compare_volumes(part.region, part.inside);
      if (!fault.empty()) return fault;
      if (part.inside.size() < 2) continue;
      const auto [dim, at] = best_cut(part.region, part.inside);
      Part low{part.region, {}}, high{part.region, {}};
      low.region.extent[dim] = at - part.region.offset[dim];
      high.region.offset[dim] = at;
      high.region.extent[dim] = part.region.extent[dim] - low.region.extent[dim];
      for (const size_t i : part.inside) {
        if (boxes_[i]->offset[dim] < at) low.inside.push_back(i);
        if (boxes_[i]->offset[dim] + boxes_[i]->extent[dim] > at) high.inside.push_back(i);
      }
      open.push_back(std::move(high));
      open.push_back(std::move(low));
    }
    return "";
  }

 private:
  std::string compare_volumes(const Box& region, const std::vector<size_t>& inside) const {
    __int128 sum = 0;
    Box common;
    for (const size_t i : inside) {
      if (tensor::intersect(*boxes_[i], region, common)) sum += volume(common);
    }
    if (sum < volume(region)) return fmt::format("elements in the box {} are in no piece", describe(region));
    if (sum > volume(region)) return fmt::format("pieces overlap in the box {}", describe(region));
    return "";
  }

  // The cut that the fewest boxes cross, of those at the middle of where boxes begin along each dim; there is one, since two
  // boxes that both fill the region would have twice its volume.
  std::pair<size_t, int64_t> best_cut(const Box& region, const std::vector<size_t>& inside) {
    std::pair<size_t, int64_t> best{0, 0};
    size_t best_cost = SIZE_MAX;
    for (size_t dim = 0; dim < region.offset.size(); ++dim) {
      borders_.clear();
      const int64_t begin = region.offset[dim], end = begin + region.extent[dim];
      for (const size_t i : inside) {
        const int64_t from = boxes_[i]->offset[dim], to = from + boxes_[i]->extent[dim];
        if (from > begin) borders_.push_back(from);
        if (to < end) borders_.push_back(to);
      }
      if (borders_.empty()) continue;
      const auto middle = borders_.begin() + static_cast<ptrdiff_t>(borders_.size() / 2);
      std::nth_element(borders_.begin(), middle, borders_.end());
      size_t low = 0, high = 0;
      for (const size_t i : inside) {
        low += boxes_[i]->offset[dim] < *middle;
        high += boxes_[i]->offset[dim] + boxes_[i]->extent[dim] > *middle;
      }
      const size_t cost = 2 * (low + high - inside.size()) + std::max(low, high);
      if (cost < best_cost) {
        best_cost = cost;
        best = {dim, *middle};
      }
    }
    return best;
  }

  const std::vector<const Box*>& boxes_;
  std::vector<int64_t> borders_;
};

// The usual case: all boxes are whole in all dims but one. Their order along it is all there is to check.
// The dim; -1 when it is not the usual case. Boxes lie inside the shape and are not empty.
int cut_dim(const Shape& shape, const std::vector<const Box*>& boxes) {
  int cut = -1;
  for (const Box* box : boxes)
    for (size_t d = 0; d < shape.size(); ++d) {
      if (box->extent[d] == shape[d] || cut == static_cast<int>(d)) continue;
      if (cut >= 0) return -1;
      cut = static_cast<int>(d);
    }
  return cut;
}

bool is_cut_exactly(const Shape& shape, const std::vector<const Box*>& boxes, size_t dim) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  ranges.reserve(boxes.size());
  for (const Box* box : boxes) ranges.emplace_back(box->offset[dim], box->extent[dim]);
  if (!std::is_sorted(ranges.begin(), ranges.end())) std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& [begin, extent] : ranges) {
    if (begin != end) return false;
    end += extent;
  }
  return end == shape[dim];
}

}  // namespace

std::string why_not_tiled(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<const Box*> all;
  all.reserve(boxes.size());
  for (const Box& box : boxes) all.push_back(&box);
  return why_not_tiled_by(shape, all);
}

std::string why_not_tiled_by(const Shape& shape, const std::vector<const Box*>& boxes) {
  for (const Box* box : boxes) {
    if (!tensor::is_inside(*box, shape))
      return fmt::format("the piece at {} is outside the shape {}", describe(*box), tensor::to_string(shape));
    if (volume(*box) == 0) return fmt::format("the piece at {} is empty", describe(*box));
  }
  if (tensor::element_count(shape) == 0) return boxes.empty() ? "" : "a tensor without elements has pieces";
  if (boxes.size() == 1 && boxes[0]->extent == shape) return "";
  if (const int dim = cut_dim(shape, boxes); dim >= 0 && is_cut_exactly(shape, boxes, static_cast<size_t>(dim))) return "";
  std::vector<size_t> inside(boxes.size());
  std::iota(inside.begin(), inside.end(), size_t{0});
  return TilingCheck(boxes).run(tensor::whole(shape), std::move(inside));
}

std::vector<Box> cut(const Box& box, int64_t limit_elements) {
  if (box.extent.empty()) return {box};
  std::vector<Box> out;
  if (tensor::element_count(box.extent) == 0) return out;
  // The outermost dim of which at least one row fits; dims before it are cut into single rows.
  size_t dim = box.extent.size() - 1;
  int64_t row_elements = 1;
  while (dim > 0 && row_elements <= limit_elements / box.extent[dim]) row_elements *= box.extent[dim--];
  const int64_t rows = std::max<int64_t>(1, limit_elements / row_elements);
  const auto end_of = [&](size_t d) { return box.offset[d] + box.extent[d]; };
  Box next = box;
  std::fill_n(next.extent.begin(), dim, 1);
  while (true) {
    next.extent[dim] = std::min(rows, end_of(dim) - next.offset[dim]);
    out.push_back(next);
    next.offset[dim] += next.extent[dim];
    for (size_t d = dim; next.offset[d] == end_of(d); --d) {
      if (d == 0) return out;
      next.offset[d] = box.offset[d];
      ++next.offset[d - 1];
    }
  }
}

BoxIndex::BoxIndex(const std::vector<Box>& boxes) : order_(boxes.size()) {
  std::iota(order_.begin(), order_.end(), size_t{0});
  if (boxes.empty()) return;
  size_t most_places = 0;
  std::vector<int64_t> begins(boxes.size());
  for (size_t dim = 0; dim < boxes[0].offset.size(); ++dim) {
    for (size_t i = 0; i < boxes.size(); ++i) begins[i] = boxes[i].offset[dim];
    std::sort(begins.begin(), begins.end());
    const auto places = static_cast<size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (places > most_places) {
      most_places = places;
      dim_ = dim;
    }
  }
  if (boxes[0].offset.empty()) return;
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return boxes[a].offset[dim_] < boxes[b].offset[dim_]; });
  for (const Box& box : boxes) largest_extent_ = std::max(largest_extent_, box.extent[dim_]);
}

std::vector<size_t> BoxIndex::touching(const std::vector<Box>& boxes, const Box& wanted) const {
  std::vector<size_t> found;
  Box common;
  auto next = order_.begin();
  if (!wanted.offset.empty()) {
    next = std::partition_point(order_.begin(), order_.end(),
                                [&](size_t i) { return boxes[i].offset[dim_] <= wanted.offset[dim_] - largest_extent_; });
  }
  for (; next != order_.end(); ++next) {
    if (!wanted.offset.empty() && boxes[*next].offset[dim_] >= wanted.offset[dim_] + wanted.extent[dim_]) break;
    if (tensor::intersect(boxes[*next], wanted, common)) found.push_back(*next);
  }
  std::sort(found.begin(), found.end());
  return found;
}

int64_t first_element(const Box& box, const Box& common) {
  int64_t at = 0;
  for (size_t d = 0; d < box.extent.size(); ++d) at = at * box.extent[d] + common.offset[d] - box.offset[d];
  return at;
}

int64_t last_element(const Box& box, const Box& common) {
  int64_t at = 0;
  for (size_t d = 0; d < box.extent.size(); ++d) at = at * box.extent[d] + common.offset[d] + common.extent[d] - 1 - box.offset[d];
  return at;
}

int64_t contiguous_offset(const Box& box, const Box& common) {
  const int64_t first = first_element(box, common);
  return last_element(box, common) - first + 1 == tensor::element_count(common.extent) ? first : -1;
}

void copy_box(const std::byte* source, const Box& source_box, std::byte* destination, const Box& destination_box, const Box& common,
              int64_t element_bytes, int64_t source_begin) {
  const size_t dims = common.extent.size();
  // Trailing dims that are whole in both buffers make one run with the dim before them.
  size_t run_dim = dims;
  int64_t run_elements = 1;
  while (run_dim > 0) {
    --run_dim;
    run_elements *= common.extent[run_dim];
    if (common.extent[run_dim] != source_box.extent[run_dim] || common.extent[run_dim] != destination_box.extent[run_dim]) break;
  }
  const auto run_bytes = static_cast<size_t>(run_elements * element_bytes);
  if (run_bytes == 0) return;
  Box row = common;
  for (size_t d = run_dim; d < dims; ++d) row.extent[d] = 1;
  while (true) {
    std::memcpy(destination + first_element(destination_box, row) * element_bytes,
                source + (first_element(source_box, row) - source_begin) * element_bytes, run_bytes);
    size_t d = run_dim;
    do {
      if (d == 0) return;
      --d;
      if (++row.offset[d] < common.offset[d] + common.extent[d]) break;
      row.offset[d] = common.offset[d];
    } while (true);
  }
}

}  // namespace ingot::checkpoint

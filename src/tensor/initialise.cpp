#include "tensor/initialise.h"

#include <algorithm>
#include <array>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "base/random_functions.h"

namespace ingot::tensor {
namespace {

// From element `first` of the tensor on.
void fill_normal(std::span<float> out, uint64_t key, uint64_t first, const Initial& initial) {
  std::array<double, 512> normals;
  for (size_t done = 0; done < out.size(); done += normals.size()) {
    const auto some = std::span(normals).first(std::min(normals.size(), out.size() - done));
    base::normals_at(key, first + done, some);
    for (size_t i = 0; i < some.size(); ++i) out[done + i] = base::scaled_normal(some[i], initial.mean, initial.deviation);
  }
}

// One contiguous run of the innermost dim: `count` elements of the box from its flat position `from`.
void fill_run(std::span<float> out, int64_t from, int64_t to, uint64_t key, const LogicalTensor& tensor, const Box& box,
              const Initial& initial) {
  const size_t dims = tensor.shape.size();
  const int64_t inner = dims == 0 ? 1 : box.extent[dims - 1];
  for (int64_t i = from; i < to;) {
    int64_t rest = i / inner, global = 0, stride = dims == 0 ? 1 : tensor.shape[dims - 1];
    for (size_t d = dims; d-- > 1;) {
      global += (box.offset[d - 1] + rest % box.extent[d - 1]) * stride;
      rest /= box.extent[d - 1];
      stride *= tensor.shape[d - 1];
    }
    const int64_t column = i % inner;
    global += (dims == 0 ? 0 : box.offset[dims - 1]) + column;
    const int64_t run = std::min(inner - column, to - i);
    fill_normal(out.subspan(static_cast<size_t>(i), static_cast<size_t>(run)), key, static_cast<uint64_t>(global), initial);
    i += run;
  }
}

}  // namespace

void initialise(std::span<float> out, uint64_t seed, const LogicalTensor& tensor, const Box& box, const Initial& initial) {
  if (!is_inside(box, tensor.shape) || element_count(box.extent) != static_cast<int64_t>(out.size()))
    throw base::ModelError("cannot initialise a part {} at {} of {} {}", to_string(box.extent), to_string(box.offset), tensor.name,
                           to_string(tensor.shape));
  if (initial.kind == Initial::Kind::constant) {
    std::fill(out.begin(), out.end(), static_cast<float>(initial.mean));
    return;
  }
  const uint64_t key = base::stream_key(seed, tensor.name);
  const auto count = static_cast<int64_t>(out.size());
  const int64_t workers = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, std::max<int64_t>(1, count / 65536));
  std::vector<std::jthread> threads;
  for (int64_t w = 0; w < workers; ++w) {
    threads.emplace_back([&, w] { fill_run(out, count * w / workers, count * (w + 1) / workers, key, tensor, box, initial); });
  }
}

}  // namespace ingot::tensor

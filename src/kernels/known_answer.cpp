#include "kernels/known_answer.h"

#include <fmt/format.h>

#include <vector>

#include "device/device.h"
#include "kernels/matmul.h"

namespace ingot::kernels {
namespace {

// Rows differ from each other, columns, too, and no number is 0 too often.
int32_t left(int64_t row, int64_t column) { return static_cast<int32_t>((row * 7 + column * 11 + row * column % 13) % 17) - 8; }
int32_t right(int64_t row, int64_t column) { return static_cast<int32_t>((row * 5 + column * 3 + row * column % 11) % 17) - 8; }

}  // namespace

int64_t KnownAnswer::usual_size(at::Device device) { return device::is_gpu(device) ? 2048 : 256; }

KnownAnswer::KnownAnswer(at::Device device, at::ScalarType dtype, int64_t size) {
  const auto n = static_cast<size_t>(size);
  std::vector<int32_t> a(n * n), b(n * n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      a[i * n + j] = left(static_cast<int64_t>(i), static_cast<int64_t>(j));
      b[i * n + j] = right(static_cast<int64_t>(i), static_cast<int64_t>(j));
    }
  std::vector<int32_t> product(n * n, 0);
  for (size_t i = 0; i < n; ++i)
    for (size_t k = 0; k < n; ++k)
      for (size_t j = 0; j < n; ++j) product[i * n + j] += a[i * n + k] * b[k * n + j];
  const auto on_device = [&](const std::vector<int32_t>& numbers, at::ScalarType type) {
    return at::tensor(numbers, at::kInt).view({size, size}).to(type).to(device);
  };
  a_ = on_device(a, dtype), b_ = on_device(b, dtype);
  // A GPU's library may add parts of a sum in bf16, which is its right: there the sums are asked for in fp32.
  result_ = on_device(product, device::is_gpu(a_) && dtype != at::kDouble ? at::kFloat : dtype);
}

at::Tensor KnownAnswer::multiply() const { return matmul(a_, b_, result_.scalar_type()); }

std::string KnownAnswer::difference(const at::Tensor& product) const {
  if (at::equal(product, result_)) return "";
  const auto wrong = (product != result_).nonzero().cpu();
  const auto row = wrong[0][0].item<int64_t>(), column = wrong[0][1].item<int64_t>();
  return fmt::format("{} of {} numbers of a product in {} are wrong, the first at [{}, {}]: {} instead of {}", wrong.size(0),
                     result_.numel(), at::toString(a_.scalar_type()), row, column, product[row][column].item<double>(),
                     result_[row][column].item<double>());
}

}  // namespace ingot::kernels

#include "comm/reduce.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace ingot::comm {
namespace {

// One element after another, in the order of the sources, in the dtype that is summed in.
at::Tensor one_by_one(const std::vector<at::Tensor>& sources, Reduction reduction) {
  auto result = at::empty_like(sources.front());
  for (int64_t i = 0; i < result.numel(); ++i) {
    volatile double total = sources.front()[i].item<double>();
    for (size_t s = 1; s < sources.size(); ++s) {
      const volatile double next = sources[s][i].item<double>(), so_far = total;
      if (reduction == Reduction::max) total = so_far < next ? next : so_far;
      else if (reduction == Reduction::min) total = next < so_far ? next : so_far;
      else if (sources[s].scalar_type() == at::kDouble) total = so_far + next;
      else total = static_cast<float>(so_far) + static_cast<float>(next);
    }
    result[i] = double{total};
  }
  return result;
}

// Of NaNs only that they are some.
void expect_same_bits(const at::Tensor& found, const at::Tensor& expected) {
  for (int64_t i = 0; i < found.numel(); ++i) {
    const double a = found[i].item<double>(), b = expected[i].item<double>();
    EXPECT_TRUE((std::isnan(a) && std::isnan(b)) || std::bit_cast<int64_t>(a) == std::bit_cast<int64_t>(b)) << i << ": " << a << ", " << b;
  }
}

// Whatever vectors it is compiled for: sums are neither reordered nor fused, bf16 is rounded once, and what is no number stays none.
TEST(Reduce, gives_the_bits_of_one_element_after_another) {
  constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int64_t count : {1, 7, 16, 1023, 1030})
      for (const size_t ranks : {1, 2, 5}) {
        std::vector<at::Tensor> sources;
        std::vector<const void*> addresses;
        for (size_t r = 0; r < ranks; ++r) {
          auto x = (at::randn({count}, at::kDouble) * at::randn({count}, at::kDouble).mul(8).exp()).to(dtype);
          const double odd[] = {kInf, -kInf, kNan, 0.0, -0.0};
          for (int64_t i = 0; i < std::min<int64_t>(count - 1, 25); ++i)
            if (r < 2) x[i] = odd[r == 0 ? i / 5 : i % 5];
          sources.push_back(x);
          addresses.push_back(sources.back().const_data_ptr());
        }
        for (const auto reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
          SCOPED_TRACE(testing::Message() << dtype << " x " << count << " of " << ranks << ", reduction " << static_cast<int>(reduction));
          auto result = at::empty_like(sources.front());
          reduce(result.mutable_data_ptr(), addresses, count, dtype, reduction);
          expect_same_bits(result, one_by_one(sources, reduction));
        }
      }
}

}  // namespace
}  // namespace ingot::comm

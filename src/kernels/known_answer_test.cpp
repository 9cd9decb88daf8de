#include "kernels/known_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device/test_device.h"

namespace ingot::kernels {
namespace {

class KnownAnswers : public testing::TestWithParam<at::ScalarType> {};

TEST_P(KnownAnswers, are_what_this_machine_computes) {
  for (const int64_t size : {1, 7, 64, 256}) {
    const KnownAnswer known(device::test_device(), GetParam(), size);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(known.find_error(), "") << size;
  }
}

TEST_P(KnownAnswers, differ_from_one_wrong_number) {
  const KnownAnswer known(device::test_device(), GetParam(), 64);
  auto product = known.multiply();
  product[12][7] += 16;
  EXPECT_THAT(known.difference(product),
              testing::MatchesRegex("1 of 4096 numbers of a product in .* are wrong, the first at .12, 7.: .* instead of .*"));
  product[63][63] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(known.difference(product), testing::StartsWith("2 of 4096 numbers"));
}

INSTANTIATE_TEST_SUITE_P(InEachDtype, KnownAnswers, testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

}  // namespace
}  // namespace ingot::kernels

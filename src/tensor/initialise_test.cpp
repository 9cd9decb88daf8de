#include "tensor/initialise.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace ingot::tensor {
namespace {

TEST(Initialise, a_part_has_the_values_it_has_in_the_whole) {
  const LogicalTensor tensor{"model.layers.3.weight", DType::fp32, {6, 5, 7}};
  std::vector<float> all(6 * 5 * 7);
  initialise(all, 11, tensor, whole(tensor.shape), Initial::normal(0.02));
  const Box box{{2, 1, 3}, {3, 2, 4}};
  std::vector<float> part(3 * 2 * 4);
  initialise(part, 11, tensor, box, Initial::normal(0.02));
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t j = 0; j < 2; ++j)
      for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(part[(i * 2 + j) * 4 + k], all[((i + 2) * 5 + j + 1) * 7 + k + 3]);
  EXPECT_EQ(all[9], static_cast<float>(0.02 * base::normal_at(base::stream_key(11, tensor.name), 9)));
}

TEST(Initialise, many_threads_give_what_one_gives) {
  const LogicalTensor tensor{"w", DType::fp32, {1000, 300}};
  std::vector<float> all(300000), row(300);
  initialise(all, 1, tensor, whole(tensor.shape), Initial::normal(1));
  initialise(row, 1, tensor, {{777, 0}, {1, 300}}, Initial::normal(1));
  EXPECT_TRUE(std::equal(row.begin(), row.end(), all.begin() + 777 * 300));
}

}  // namespace
}  // namespace ingot::tensor

#include "kernels/operator.h"

#include <set>

#include "kernels/operator_checks.h"

namespace ingot::kernels {

INSTANTIATE_TEST_SUITE_P(Kernels, OperatorTest, ::testing::ValuesIn(of(operators())), name_of);

TEST(Operators, are_found_by_their_own_names_and_those_of_their_kernels) {
  std::set<std::string_view> names, traced;
  for (const auto& op : operators()) {
    EXPECT_TRUE(names.insert(op.name).second) << op.name << " is listed twice";
    for (const auto& kernel : op.traced) EXPECT_TRUE(traced.insert(kernel.name).second) << kernel.name << " belongs to two operators";
  }
  EXPECT_EQ(find_operator(operators(), "swiglu")->kind, WorkKind::activations);
  EXPECT_EQ(operator_of_kernel(operators(), "cca_taps.backward")->name, "cca_mix");
  EXPECT_EQ(find_operator(operators(), "swigloo"), nullptr);
  EXPECT_EQ(operator_of_kernel(operators(), "aten::mm"), nullptr);
}

TEST(Operators, of_a_traced_kernel_give_the_size_under_which_it_is_measured) {
  const auto found = measured_size(operators(), "swiglu.backward", {{at::kBFloat16, {12, 8}}, {at::kBFloat16, {12, 16}}}, {});
  ASSERT_TRUE(found);
  EXPECT_EQ(found->name, "swiglu");
  EXPECT_EQ(std::pair(found->rows, found->width), std::pair(int64_t{12}, int64_t{8}));
  EXPECT_TRUE(found->is_backward);
  EXPECT_FALSE(measured_size(operators(), "aten::mm", {}, {}));
}

}  // namespace ingot::kernels

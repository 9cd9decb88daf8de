#include "checkpoint/load/match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::checkpoint {
namespace {

using tensor::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<tensor::LogicalTensor> kWanted = {{"a", DType::fp32, {2, 3}}, {"b", DType::bf16, {4}}, {"c.weight", DType::fp32, {}}};

TEST(Match, equal_lists_match_in_any_order) {
  EXPECT_TRUE(compare(kWanted, {kWanted[2], kWanted[0], kWanted[1]}).none());
  EXPECT_EQ(compare(kWanted, kWanted).describe(), "");
}

TEST(Match, each_kind_of_difference_is_told_apart) {
  const Mismatch mismatch = compare(kWanted, {{"a", DType::fp32, {3, 2}}, {"b", DType::fp32, {4}}, {"c.weigth", DType::fp32, {}}});
  ASSERT_EQ(mismatch.missing.size(), 1u);
  EXPECT_EQ(mismatch.missing[0].name, "c.weight");
  ASSERT_EQ(mismatch.unexpected.size(), 1u);
  EXPECT_EQ(mismatch.unexpected[0].name, "c.weigth");
  ASSERT_EQ(mismatch.shapes.size(), 1u);
  EXPECT_EQ(mismatch.shapes[0].present.shape, (tensor::Shape{3, 2}));
  ASSERT_EQ(mismatch.dtypes.size(), 1u);
  EXPECT_EQ(mismatch.dtypes[0].wanted.name, "b");
}

TEST(Match, the_description_lists_all_problems_with_names_and_values) {
  const auto text = compare(kWanted, {{"a", DType::fp32, {3, 2}}, {"b", DType::fp32, {4}}, {"c.weigth", DType::fp32, {}}}).describe();
  EXPECT_THAT(text,
              AllOf(HasSubstr("missing (1): 'c.weight'"), HasSubstr("did you mean 'c.weigth'"), HasSubstr("unexpected (1): 'c.weigth'"),
                    HasSubstr("'a' is [3, 2] there, [2, 3] is wanted"), HasSubstr("'b' is fp32 there, bf16 is wanted")));
}

TEST(Match, long_lists_are_cut_after_ten) {
  std::vector<tensor::LogicalTensor> many;
  for (int i = 10; i < 40; ++i) many.push_back({fmt::format("t{}", i), DType::fp32, {1}});
  EXPECT_THAT(compare(many, {}).describe(),
              AllOf(HasSubstr("missing (30)"), HasSubstr("'t19'"), Not(HasSubstr("'t20'")), HasSubstr("and 20 more")));
}

}  // namespace
}  // namespace ingot::checkpoint

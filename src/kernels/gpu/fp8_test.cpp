// The GPU's rounding to FP8, run by the host thread by thread, against the CPU's to the bit.
#include <gtest/gtest.h>

#include "kernels/gpu/host_kernels.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels::gpu {
namespace {

class GpuFp8 : public testing::TestWithParam<std::tuple<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>, at::ScalarType>> {};

// Exactly: scales are powers of two, and the largest of some numbers is the same in every order.
TEST_P(GpuFp8, equals_the_cpus_in_every_order_of_threads) {
  const auto [tile, size, dtype] = GetParam();
  const auto [height, width] = size;
  at::manual_seed(7);
  const auto x = (at::randn({height, width}) * at::exp2(at::randn({height, width}) * 5)).to(dtype);
  const bool is_tensor = tile.second == 0;
  const auto largest = is_tensor ? x.to(at::kFloat).abs().max().view({1}) : at::Tensor();
  const auto rounded = [&](const auto& kernel) {
    auto out = at::full_like(x, std::numeric_limits<double>::quiet_NaN());
    const int64_t tile_rows = std::max<int64_t>(1, tile.first);
    kernel(cpu::Fp8Problem{.rows = (height + tile_rows - 1) / tile_rows,
                           .height = height,
                           .width = width,
                           .tile_rows = tile_rows,
                           .tile_columns = std::max<int64_t>(1, tile.second),
                           .is_bf16 = dtype == at::kBFloat16,
                           .is_e5m2 = is_tensor,
                           .x = x.const_data_ptr(),
                           .largest = numbers(largest),
                           .out = out.data_ptr()});
    return out;
  };
  const auto expected = rounded([](const cpu::Fp8Problem& p) { cpu::round_to_fp8(p, 0, p.rows); });
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
    for (const uint64_t seed : {0, 1})
      EXPECT_TRUE(at::equal(rounded([&](const cpu::Fp8Problem& p) { kernels->round_to_fp8(p, seed); }), expected)) << seed;
}

TEST(GpuFp8Codes, equal_the_cpus_and_libtorchs) {
  at::manual_seed(9);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const bool is_e5m2 : {false, true})
      for (const bool is_transposed : {false, true})
        for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{16, 16}, {80, 144}, {is_transposed ? 128 : 7, 48}}) {
          auto x = (at::randn({rows, width}) * at::exp2(at::randn({rows, width}) * 6)).to(dtype);
          x[0][1] = -0.0;
          const auto largest = x.to(at::kFloat).abs().max().view({1});
          const auto format = is_e5m2 ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
          const auto codes_by = [&](const auto& kernel) {
            auto codes = at::full(is_transposed ? at::IntArrayRef{width, rows} : at::IntArrayRef{rows, width}, 0xee, at::kByte);
            auto scale = at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kFloat);
            kernel(cpu::Fp8CodesProblem{.rows = rows,
                                        .width = width,
                                        .is_bf16 = dtype == at::kBFloat16,
                                        .is_e5m2 = is_e5m2,
                                        .is_transposed = is_transposed,
                                        .x = x.const_data_ptr(),
                                        .largest = numbers(largest),
                                        .codes = codes.data_ptr<uint8_t>(),
                                        .scale = scale.data_ptr<float>()});
            return std::pair{codes, scale};
          };
          const auto [codes, scale] = codes_by([](const cpu::Fp8CodesProblem& p) { cpu::fp8_codes(p, 0, p.rows); });
          const auto expected = (x.to(at::kFloat) / scale).to(format).view(at::kByte);
          EXPECT_TRUE(at::equal(codes, is_transposed ? expected.t().contiguous() : expected)) << rows << " x " << width;
          for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
            for (const uint64_t seed : {0, 1}) {
              const auto [found, its_scale] = codes_by([&](const cpu::Fp8CodesProblem& p) { kernels->fp8_codes(p, seed); });
              EXPECT_TRUE(at::equal(found, codes) && at::equal(its_scale, scale)) << rows << " x " << width << " seed " << seed;
            }
        }
}

// Scales and places of groups by their definition, with rows behind the last end and rows that do not count.
TEST(GpuFp8Groups, have_a_scale_each_and_begin_at_multiples_of_sixteen) {
  at::manual_seed(10);
  struct Groups {
    std::vector<int32_t> ends;
    int64_t rows, counting;
  };
  std::vector<int32_t> many(270);  // more than a block has threads
  for (size_t g = 0; g < many.size(); ++g) many[g] = static_cast<int32_t>(g * 3 / 2);
  for (const auto& groups : {Groups{{5, 5, 21, 24}, 24, 24}, Groups{{5, 5, 21, 24}, 30, 22}, Groups{{0, 0, 0}, 3, 0},
                             Groups{{700}, 700, 650}, Groups{{0, 0, 16}, 16, 0}, Groups{many, many.back(), many.back()}}) {
    const auto count = static_cast<int64_t>(groups.ends.size()), places = (groups.rows + 16 * count + 15) / 16 * 16;
    const auto ends = at::tensor(groups.ends, at::kInt), counts = (at::arange(groups.rows) < groups.counting).to(at::kFloat);
    const auto largest = at::exp2(at::randn({groups.rows}) * 9);
    auto scales = at::zeros({groups.rows}), of_groups = at::zeros({count});
    auto rows = at::full({places}, -1, at::kInt), place_ends = at::zeros({count}, at::kInt);
    const auto scale_of = [](double most) { return static_cast<float>(std::exp2(std::ceil(std::log2(most / 448)))); };
    double others = 0;
    for (int64_t row = groups.counting; row < groups.rows; ++row) others = std::max(others, largest[row].item<double>());
    int64_t from = 0, start = 0;
    for (int64_t g = 0; g < count; from = groups.ends[static_cast<size_t>(g++)]) {
      const int64_t end = std::min<int64_t>(groups.ends[static_cast<size_t>(g)], groups.counting);
      double most = 0;
      for (int64_t row = from; row < end; ++row) most = std::max(most, largest[row].item<double>()), rows[start + row - from] = row;
      of_groups[g] = most > 0 ? scale_of(most) : std::exp2(-100.0f);
      if (end > from) scales.narrow(0, from, end - from).fill_(of_groups[g]);
      start += std::max<int64_t>(16, (std::max<int64_t>(0, end - from) + 15) / 16 * 16);
      place_ends[g] = start;
    }
    if (groups.rows > groups.counting) scales.narrow(0, groups.counting, groups.rows - groups.counting).fill_(scale_of(others));
    const auto check = [&](const auto& kernel, const char* what) {
      auto row_scale = at::full({groups.rows}, -1.0f), group_scale = at::full({count}, -1.0f);
      auto row_of_place = at::full({places}, 77, at::kInt), ends_of_places = at::full({count}, 77, at::kInt);
      kernel(cpu::Fp8GroupsProblem{.rows = count,
                                   .all_rows = groups.rows,
                                   .places = places,
                                   .ends = ends.const_data_ptr<int32_t>(),
                                   .counts = numbers(counts),
                                   .largest = numbers(largest),
                                   .row_scale = row_scale.data_ptr<float>(),
                                   .group_scale = group_scale.data_ptr<float>(),
                                   .row_of_place = row_of_place.data_ptr<int32_t>(),
                                   .place_ends = ends_of_places.data_ptr<int32_t>()});
      EXPECT_TRUE(at::equal(row_scale, scales) && at::equal(group_scale, of_groups)) << what << " of " << groups.rows;
      EXPECT_TRUE(at::equal(row_of_place, rows) && at::equal(ends_of_places, place_ends)) << what << " of " << groups.rows;
    };
    // A CPU's threads begin anywhere.
    check([&](const cpu::Fp8GroupsProblem& p) { cpu::fp8_groups(p, p.rows / 2, p.rows), cpu::fp8_groups(p, 0, p.rows / 2); }, "cpu");
    check([&](const cpu::Fp8GroupsProblem& p) { host_kernels_wave32.fp8_groups(p, 1); }, "wave of 32");
    if (count < 100) check([&](const cpu::Fp8GroupsProblem& p) { host_kernels_wave64.fp8_groups(p, 2); }, "wave of 64");
  }
}

TEST(GpuFp8Codes, of_groups_have_a_scale_for_each_row_and_zeros_where_no_row_is) {
  at::manual_seed(11);
  constexpr int64_t kRows = 37, kWidth = 80, kPlaces = 96;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto x = (at::randn({kRows, kWidth}) * at::exp2(at::randn({kRows, 1}) * 6)).to(dtype);
    const auto largest = x.to(at::kDouble).abs().amax(1),
               scale = at::exp2((largest / 448).log2().ceil() + at::arange(kRows) % 2).to(at::kFloat);
    auto places = at::full({kPlaces}, -1, at::kInt);
    places.narrow(0, 0, 20).copy_(at::arange(20)), places.narrow(0, 32, 17).copy_(at::arange(20, kRows));
    const auto plain = (x.to(at::kFloat) / scale.unsqueeze(1)).to(at::kFloat8_e4m3fn).view(at::kByte);
    auto placed = at::zeros({kPlaces, kWidth}, at::kByte);
    placed.narrow(0, 0, 20).copy_(plain.narrow(0, 0, 20)), placed.narrow(0, 32, 17).copy_(plain.narrow(0, 20, 17));
    for (const bool is_placed : {false, true}) {
      const auto expected = is_placed ? placed.t().contiguous() : plain;
      const auto check = [&](const auto& kernel, const char* what) {
        auto codes = at::full(expected.sizes(), 0xee, at::kByte);
        kernel(cpu::Fp8CodesProblem{.rows = is_placed ? kPlaces : kRows,
                                    .width = kWidth,
                                    .is_bf16 = dtype == at::kBFloat16,
                                    .is_transposed = is_placed,
                                    .x = x.const_data_ptr(),
                                    .row_scale = numbers(scale),
                                    .row_of_place = is_placed ? places.const_data_ptr<int32_t>() : nullptr,
                                    .codes = codes.data_ptr<uint8_t>()});
        EXPECT_TRUE(at::equal(codes, expected)) << what << (is_placed ? " placed" : "");
      };
      check([](const cpu::Fp8CodesProblem& p) { cpu::fp8_codes(p, 0, p.rows); }, "cpu");
      for (const uint64_t seed : {0, 1}) {
        check([&](const cpu::Fp8CodesProblem& p) { host_kernels_wave32.fp8_codes(p, seed); }, "wave of 32");
        check([&](const cpu::Fp8CodesProblem& p) { host_kernels_wave64.fp8_codes(p, seed); }, "wave of 64");
      }
    }
  }
}

TEST(GpuLargest, finds_the_largest_magnitude_of_each_row) {
  at::manual_seed(8);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 37, 256, 2080}) {
      auto x = at::randn({5, width}).to(dtype);
      x[2].zero_();
      x[3][width - 1] = -9;
      const auto expected = x.to(at::kFloat).abs().amax(1);
      const auto largest_by = [&](const auto& kernel) {
        auto largest = at::full({5}, std::numeric_limits<double>::quiet_NaN());
        kernel(cpu::LargestProblem{
            .rows = 5, .width = width, .is_bf16 = dtype == at::kBFloat16, .x = x.const_data_ptr(), .largest = largest.data_ptr<float>()});
        return largest;
      };
      EXPECT_TRUE(at::equal(largest_by([](const cpu::LargestProblem& p) { cpu::largest_magnitude(p, 0, p.rows); }), expected)) << width;
      for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64})
        EXPECT_TRUE(at::equal(largest_by([&](const cpu::LargestProblem& p) { kernels->largest_magnitude(p, 1); }), expected)) << width;
    }
}

INSTANTIATE_TEST_SUITE_P(Tiles, GpuFp8,
                         testing::Combine(testing::Values(std::pair{0, 0}, std::pair{1, 32}, std::pair{1, 128}, std::pair{32, 1},
                                                          std::pair{128, 1}, std::pair{128, 128}),
                                          testing::Values(std::pair{5, 40}, std::pair{33, 131}, std::pair{140, 264}, std::pair{1, 1}),
                                          testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           const auto tile = std::get<0>(info.param);
                           const auto size = std::get<1>(info.param);
                           return fmt::format("{}x{}_of_{}x{}_{}", tile.first, tile.second, size.first, size.second,
                                              c10::toString(std::get<2>(info.param)));
                         });

}  // namespace
}  // namespace ingot::kernels::gpu

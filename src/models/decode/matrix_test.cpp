// Products of matrices with few rows, in every format, against sums in fp64; what rounding to fewer bits costs.
#include "models/decode/matrix.h"

#include <gtest/gtest.h>

#include <cmath>

namespace ingot::models::decode {
namespace {

using kernels::WeightFormat;
using kernels::cpu::FewProductsProblem, kernels::cpu::Isa;

at::Tensor random(at::IntArrayRef sizes, double spread = 1) {
  static int64_t seed = 0;
  const auto i = at::arange(1, 1 + c10::multiply_integers(sizes), at::kDouble) + static_cast<double>(1000003 * ++seed);
  return ((i * 12.9898).sin().mul(43758.5453).frac() * spread).view(sizes);
}

layers::Parameter parameter_of(const at::Tensor& value, at::ScalarType dtype) {
  layers::Parameter p;
  p.kind = layers::Parameter::Kind::matrix;
  p.shape = value.sizes().vec();
  p.value = value.to(dtype).contiguous();
  return p;
}

// All outputs by as many workers as there are, one after another.
at::Tensor multiplied(const Matrix& m, const at::Tensor& x, int workers, const at::Tensor& bias, const std::vector<int64_t>& rows) {
  Pass pass;
  pass.words.resize(static_cast<size_t>(workers)), pass.word_scales.resize(static_cast<size_t>(workers));
  const auto count = rows.empty() ? x.size(0) : static_cast<int64_t>(rows.size());
  auto out = at::full({count, m.outputs + 3}, 7, at::kFloat);
  const Product product{&m, out.data_ptr<float>(), m.outputs + 3, bias.defined() ? bias.const_data_ptr<float>() : nullptr};
  for (int i = 0; i < workers; ++i)
    multiply(pass, {x.const_data_ptr<float>(), x.size(1), count, rows.empty() ? nullptr : rows.data()}, {&product, 1},
             {.index = i, .count = workers, .team = nullptr});
  EXPECT_TRUE(out.narrow(1, m.outputs, 3).eq(7).all().item<bool>());
  return out.narrow(1, 0, m.outputs).to(at::kDouble);
}

// What 4-bit weights are multiplied with: 8 bits for each group, half away from zero.
at::Tensor in_8_bits(const at::Tensor& x) {
  std::vector<at::Tensor> groups;
  for (int64_t first = 0; first < x.size(1); first += kernels::kWeightGroup) {
    const auto group = x.narrow(1, first, std::min(kernels::kWeightGroup, x.size(1) - first)).to(at::kFloat);
    const auto scale = group.abs().amax(1, true) / 127;
    groups.push_back(((group.abs() * (1 / scale) + 0.5).floor() * group.sign() * scale).to(at::kDouble));
  }
  return device::cat(groups, 1);
}

struct Case {
  WeightFormat format;
  at::ScalarType dtype;
};

TEST(FewProducts, are_sums_of_products_in_every_format_whatever_the_sizes) {
  for (const auto& [format, dtype] : {Case{WeightFormat::fp32, at::kFloat},
                                      {WeightFormat::fp32, at::kBFloat16},
                                      {WeightFormat::int8, at::kFloat},
                                      {WeightFormat::int8, at::kBFloat16},
                                      {WeightFormat::int4, at::kFloat}})
    for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 1}, {3, 17}, {8, 64}, {21, 128}, {40, 200}, {64, 387}}) {
      auto parameter = parameter_of(random({outputs, inputs}), dtype);
      const auto m = matrices_of(parameter, format)[0];
      const auto weights = parameter.value.to(at::kDouble);  // as rounded
      const auto bias = random({outputs}).to(at::kFloat);
      for (const int64_t rows : {1, 2, 3, 4, 5, 8, 11, 19}) {
        const auto x = random({rows, inputs}, 3).to(at::kFloat);
        const bool is_paired = m.format == WeightFormat::bf16 && kernels::cpu::best_pair_unit() != kernels::cpu::PairUnit::none;
        const auto in = format == WeightFormat::int4 ? in_8_bits(x) : (is_paired ? x.to(at::kBFloat16) : x).to(at::kDouble);
        EXPECT_LT((in - x).abs().max().item<double>(), 3.0 / 127 / 2 * 1.001);
        const auto expected = at::matmul(in, weights.t()) + bias;
        // Sums of packed weights are of what they stand for; a bf16 parameter has that rounded once more.
        const double rounding = format == WeightFormat::fp32 ? 1e-6 : dtype == at::kBFloat16 ? 6e-3 : 1e-4;
        const double most = rounding * 3 * std::sqrt(static_cast<double>(inputs)) + 1e-5;
        const auto out = multiplied(m, x, 3, bias, {});
        EXPECT_LT((out - expected).abs().max().item<double>(), most)
            << static_cast<int>(format) << " " << outputs << "x" << inputs << " " << rows;
        // A row's numbers are its own: bit for bit those of the row alone.
        for (int64_t row = 0; row < rows; ++row)
          EXPECT_TRUE(multiplied(m, x, 1, bias, {row}).equal(out.narrow(0, row, 1)))
              << static_cast<int>(format) << " " << outputs << "x" << inputs << " " << rows;
      }
    }
}

// Those that this machine has, where bf16 is multiplied as fp32.
TEST(FewProducts, are_the_same_sums_in_every_instruction_set) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t inputs : {1, 17, 64, 200, 387})
      for (const int64_t rows : {1, 2, 3, 4, 6, 13}) {
        const auto weights = random({21, inputs}).to(dtype).contiguous(), x = random({rows, inputs}, 3).to(at::kFloat);
        const auto expected = at::matmul(x.to(at::kDouble), weights.to(at::kDouble).t());
        const auto sets = kernels::cpu::supported_isas();
        for (const auto isa : sets) {
          auto out = at::zeros({rows, 21}, at::kFloat);
          FewProductsProblem p{};
          p.rows = rows, p.inputs = p.x_stride = inputs, p.x = x.const_data_ptr<float>(), p.weights = weights.const_data_ptr();
          p.format = dtype == at::kFloat ? WeightFormat::fp32 : WeightFormat::bf16, p.out = out.data_ptr<float>(), p.out_stride = 21;
          using kernels::cpu::few_products;
          (isa == Isa::avx512 ? few_products.avx512 : isa == Isa::avx2 ? few_products.avx2 : few_products.portable)(p, 0, 21);
          EXPECT_LT((out - expected).abs().max().item<double>(), 1e-5 * std::sqrt(static_cast<double>(inputs)))
              << name(isa) << " " << inputs << " " << rows;
        }
      }
}

TEST(FewProducts, of_fewer_bits_are_the_same_sums_in_every_instruction_set) {
  for (const auto format : {WeightFormat::int8, WeightFormat::int4})
    for (const int64_t inputs : {1, 17, 64, 200, 387})
      for (const int64_t rows : {1, 2, 3, 5, 8, 19}) {
        auto parameter = parameter_of(random({21, inputs}) - 0.5, at::kFloat);
        const auto m = matrices_of(parameter, format)[0];
        const auto x = random({rows, inputs}, 3).to(at::kFloat);
        const auto in = format == WeightFormat::int4 ? in_8_bits(x) : x.to(at::kDouble);
        const auto expected = at::matmul(in, parameter.value.to(at::kDouble).t());
        const int64_t padded = kernels::padded_inputs(format, inputs), groups = padded / kernels::kWeightGroup;
        for (const auto isa : kernels::cpu::supported_isas()) {
          auto out = at::zeros({rows, 21}, at::kFloat), scales = at::zeros({rows, 1 + 2 * groups}, at::kFloat);
          auto words = at::zeros({rows, padded}, at::kShort);
          FewProductsProblem p{};
          p.rows = rows, p.inputs = p.x_stride = inputs, p.x = x.const_data_ptr<float>(), p.format = format;
          if (format == WeightFormat::int8) p.x16 = words.data_ptr<int16_t>();
          else p.x8 = static_cast<int8_t*>(words.data_ptr());
          p.x_scale = scales.data_ptr<float>(), p.x_scales = p.x_scale + rows, p.x_sums = p.x_scales + rows * groups;
          p.weights = m.weights.const_data_ptr(), p.scales = m.scales.const_data_ptr<float>();
          p.out = out.data_ptr<float>(), p.out_stride = 21;
          const auto run = [&](const auto& kernel, int64_t end) {
            (isa == Isa::avx512 ? kernel.avx512 : isa == Isa::avx2 ? kernel.avx2 : kernel.portable)(p, 0, end);
          };
          run(kernels::cpu::round_few_rows, rows);
          run(kernels::cpu::few_products, 21);
          EXPECT_LT((out - expected).abs().max().item<double>(), 3e-4 * std::sqrt(static_cast<double>(inputs)))
              << name(isa) << " " << static_cast<int>(format) << " " << inputs << " " << rows;
        }
      }
}

TEST(FewProducts, rows_are_those_that_are_named) {
  auto parameter = parameter_of(random({16, 64}), at::kFloat);
  const auto m = matrices_of(parameter, WeightFormat::int8)[0];
  const auto x = random({9, 64}).to(at::kFloat);
  const auto all = multiplied(m, x, 2, {}, {});
  EXPECT_TRUE(multiplied(m, x, 2, {}, {7, 0, 7, 3}).equal(at::stack({all[7], all[0], all[7], all[3]})));
}

TEST(FewProducts, inputs_that_are_not_numbers_show) {
  for (const auto format : {WeightFormat::fp32, WeightFormat::bf16, WeightFormat::int8, WeightFormat::int4}) {
    auto parameter = parameter_of(random({8, 128}), format == WeightFormat::bf16 ? at::kBFloat16 : at::kFloat);
    const auto m = matrices_of(parameter, format)[0];
    for (const double odd : std::vector<double>{NAN, INFINITY, -INFINITY}) {
      auto x = random({2, 128}).to(at::kFloat);
      x[1][77] = odd;
      const auto out = multiplied(m, x, 1, {}, {});
      EXPECT_TRUE(out[0].isfinite().all().item<bool>());
      EXPECT_FALSE(out[1].isfinite().any().item<bool>());
    }
  }
}

TEST(Matrices, in_fewer_bits_are_near_and_the_parameter_is_what_they_stand_for) {
  for (const auto& [format, most] : {std::pair{WeightFormat::int8, 0.006}, {WeightFormat::int4, 0.11}}) {
    auto parameter = parameter_of(random({3, 24, 192}) - 0.5, at::kFloat);
    const auto before = parameter.value.clone();
    const auto matrices = matrices_of(parameter, format);
    ASSERT_EQ(matrices.size(), 3u);
    const double error = ((parameter.value - before).norm() / before.norm()).item<double>();
    EXPECT_LT(error, most);
    EXPECT_GT(error, most / 10);
    // Rounded once more nothing changes but the last bits of scales.
    const auto once = parameter.value.clone();
    matrices_of(parameter, format);
    EXPECT_LT(((parameter.value - once).norm() / once.norm()).item<double>(), format == WeightFormat::int8 ? 1e-3 : 3e-2);
  }
}

}  // namespace
}  // namespace ingot::models::decode

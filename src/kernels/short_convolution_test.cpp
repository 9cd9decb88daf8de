#include "kernels/short_convolution.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/rows_short_convolution.h"
#include "kernels/differentiable.h"
#include "kernels/feature_map.h"

namespace ingot::kernels {
namespace {

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

// Each document on its own through torch's conv1d.
at::Tensor oracle(const at::Tensor& x, const at::Tensor& weight, const std::vector<int64_t>& cuts) {
  std::vector<at::Tensor> parts;
  const int64_t width = weight.size(2);
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const auto part = at::constant_pad_nd(x.slice(1, cuts[i], cuts[i + 1]).transpose(1, 2), {width - 1, 0});
    parts.push_back(at::silu(at::conv1d(part, weight, {}, 1, at::IntArrayRef{0}, 1, x.size(2))).transpose(1, 2));
  }
  return device::cat(parts, 1);
}

TEST(ShortConvolution, is_that_of_each_document_alone_forward_and_backward) {
  at::manual_seed(1);
  for (const int64_t width : {1, 2, 4})
    for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 17}, {0, 1, 2, 9, 12, 17}}) {
      const auto x = random({2, 17, 6}).requires_grad_(), weight = random({6, 1, width}).requires_grad_(), grad = random({2, 17, 6});
      at::Tensor is_start;
      if (cuts.size() > 2) {
        is_start = at::zeros({2, 17}, at::kBool);
        for (const int64_t cut : cuts)
          if (cut < 17) is_start.select(1, cut).fill_(true);
      }
      const auto out = short_convolution(x, weight, is_start), expected = oracle(x, weight, cuts);
      EXPECT_LT((out - expected).abs().max().item<double>(), 1e-13);
      const auto got = gradients({out}, {x, weight}, {grad}), wanted = gradients({expected}, {x, weight}, {grad});
      for (size_t i = 0; i < 2; ++i) EXPECT_LT((got[i] - wanted[i]).abs().max().item<double>(), 1e-12);
    }
}

TEST(ShortConvolution, goes_on_from_its_tail) {
  const auto x = random({2, 17, 6}), weight = random({6, 1, 4});
  const auto whole = short_convolution(x, weight);
  at::Tensor tail;
  int64_t at = 0;
  for (const int64_t length : {1, 1, 5, 2, 8}) {
    const auto part = x.narrow(1, at, length);
    EXPECT_LT((short_convolution(part, weight, {}, tail) - whole.narrow(1, at, length)).abs().max().item<double>(), 1e-13);
    tail = next_tail(part, tail, 4);
    at += length;
  }
}

// fp32 and bf16 run fused; fp64 does not.
TEST(ShortConvolution, fused_is_the_one_in_fp64) {
  at::manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const int64_t width : {1, 2, 4, 8, 9})
      for (const int64_t channels : {3, 16, 37})
        for (const bool has_starts : {false, true})
          for (const bool has_tail : {false, true}) {
            const auto narrow = [&](const at::Tensor& t) { return t.to(dtype); };
            const auto x = narrow(random({3, 21, channels})).requires_grad_(), grad = narrow(random({3, 21, channels}));
            const auto weight = random({channels, 1, width}).to(at::kFloat).requires_grad_();
            const auto tail = has_tail ? narrow(random({3, width - 1, channels})) : at::Tensor();
            at::Tensor is_start;
            if (has_starts) {  // in one row from the first token on, in one the first late, in one none
              is_start = at::zeros({3, 21}, at::kBool);
              for (const int64_t start : {0, 1, 9, 10, 20}) is_start[0][start] = true;
              is_start[1][2] = true, is_start[1][13] = true;
            }
            const auto wide_x = x.detach().to(at::kDouble).requires_grad_(), wide_weight = weight.detach().to(at::kDouble).requires_grad_();
            const auto out = short_convolution(x, weight, is_start, tail);
            const auto expected = short_convolution(wide_x, wide_weight, is_start, has_tail ? tail.to(at::kDouble) : tail);
            ASSERT_EQ(out.scalar_type(), dtype);
            const double tolerance = dtype == at::kFloat ? 2e-6 : 8e-3;
            const auto expect_near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
              EXPECT_LE((a.to(at::kDouble) - b).abs().max().item<double>(), tolerance * (1 + b.abs().max().item<double>()))
                  << what << " " << c10::toString(dtype) << " width " << width << " channels " << channels << has_starts << has_tail;
            };
            expect_near(out, expected, "out");
            const auto got = gradients({out}, {x, weight}, {grad}),
                       wanted = gradients({expected}, {wide_x, wide_weight}, {grad.to(at::kDouble)});
            expect_near(got[0], wanted[0], "grad x");
            expect_near(got[1], wanted[1], "grad weight");
          }
}

// Rows that see every tap are worked on several at a time: wherever a thread's part begins, to the same bits.
TEST(ShortConvolution, of_a_row_does_not_depend_on_the_rows_that_are_worked_on_with_it) {
  at::manual_seed(4);
  constexpr int64_t kSeq = 21, kRows = 3 * kSeq;
  for (const auto isa : cpu::supported_isas())
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t width : {3, 4})
        for (const int64_t channels : {3, 16, 37}) {
          const auto narrow = [&](at::IntArrayRef sizes) { return random(sizes).to(dtype); };
          const auto x = narrow({kRows, channels}), grad = narrow({kRows, channels}), weight = random({width, channels}).to(at::kFloat);
          auto is_start = at::zeros({kRows}, at::kBool);
          for (const int64_t start : {0, 2, 9, 10, 30}) is_start[start] = true;
          const auto run = [&](const std::vector<int64_t>& cuts) {
            auto out = at::full_like(x, NAN), grad_x = at::full_like(x, NAN), sums = at::zeros({width, channels}, at::kFloat);
            cpu::ShortConvolutionProblem p{};
            p.rows = kRows, p.seq = kSeq, p.channels = channels, p.width = width, p.is_bf16 = dtype == at::kBFloat16;
            p.is_start = is_start.const_data_ptr<bool>(), p.weight = weight.const_data_ptr<float>();
            p.x = x.const_data_ptr(), p.grad = grad.const_data_ptr(), p.out = out.data_ptr(), p.grad_x = grad_x.data_ptr();
            const auto of_isa = [&](const auto& kernel) {
              return isa == cpu::Isa::avx512 ? kernel.avx512 : isa == cpu::Isa::avx2 ? kernel.avx2 : kernel.portable;
            };
            for (size_t i = 0; i + 1 < cuts.size(); ++i) {
              of_isa(cpu::short_convolution_forward)(p, cuts[i], cuts[i + 1]);
              of_isa(cpu::short_convolution_backward)(p, cuts[i], cuts[i + 1], sums.data_ptr<float>());
            }
            return std::vector<at::Tensor>{out, grad_x, sums};
          };
          const auto whole = run({0, kRows});
          for (const std::vector<int64_t>& cuts : {std::vector<int64_t>{0, 1, 6, 8, 29, 33, kRows}, {0, 18, 45, 62, kRows}}) {
            const auto parts = run(cuts);
            for (size_t i = 0; i < 3; ++i)  // one row's sums are added after the other's
              EXPECT_TRUE(at::equal(parts[i], whole[i])) << i << " " << cpu::name(isa) << " width " << width << " channels " << channels;
          }
        }
}

TEST(FeatureMap, products_are_those_that_the_papers_state) {
  const auto q = random({3, 2, 5}), k = random({3, 2, 5});
  const auto product = [&](const char* name, const at::Tensor& scale = {}, const at::Tensor& bias = {}) {
    const auto map = feature_map_from_name(name);
    const auto a = feature_map(q, map, scale, bias), b = feature_map(k, map, scale, bias);
    EXPECT_EQ(a.size(-1), feature_dim(map, 5));
    return (a * b).sum(-1);
  };
  const auto expect_close = [](const at::Tensor& a, const at::Tensor& b) { EXPECT_LT((a - b).abs().max().item<double>(), 1e-9); };
  const auto plain = (q * k).sum(-1), scaled = plain / std::sqrt(5.0);
  expect_close(product("identity"), plain);
  expect_close(product("taylor"), 1 + scaled + scaled.square() / 2);
  expect_close(product("elu"), ((at::elu(q) + 1) * (at::elu(k) + 1)).sum(-1));
  expect_close(product("silu"), (at::silu(q) * at::silu(k)).sum(-1));
  expect_close(product("relu"), (at::relu(q) * at::relu(k)).sum(-1));
  const auto unit = plain / ((q.square().sum(-1) + 1e-6) * (k.square().sum(-1) + 1e-6)).sqrt();
  expect_close(product("l2"), unit);
  const auto scale = random({10}), bias = random({10});
  const auto rebased = [&](const at::Tensor& x) {
    const auto centred = x - x.mean(-1, true);
    return (centred / (centred.square().mean(-1, true) + 1e-5).sqrt() * scale.view({2, 5}) + bias.view({2, 5})).square();
  };
  expect_close(product("rebased", scale, bias), (rebased(q) * rebased(k)).sum(-1));
}

}  // namespace
}  // namespace ingot::kernels

#include "kernels/attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/test_device.h"
#include "device/tracer.h"
#include "kernels/cpu/attention.h"
#include "kernels/differentiable.h"

namespace ingot::kernels {
namespace cpu::wide {
extern const AttentionTiles attention_tiles;  // 16 lanes on any CPU
}
namespace {

struct Case {
  int64_t batch, q_len, heads, kv_heads, head_dim;
  int64_t query_offset = 0;
  int64_t window = 0;      // keys that a query sees, 0: all before it
  bool documents = false;  // packed documents of irregular lengths
  bool strided = false;    // q, k, v are parts of one wider tensor
  int64_t spare_keys = 0;  // keys after the last query, as in a cache with room
  double deviation = 1;    // of the operands
  int64_t value_dim = 0;   // 0: head_dim
  int64_t block = 0;       // queries see up to the end of a block of so many, or, below 0, to its beginning; 0: up to themselves

  double cap = 0;  // of scores

  int64_t channels_of_values() const { return value_dim > 0 ? value_dim : head_dim; }
};

struct Inputs {
  at::Tensor q, k, v, grad_out;
  AttentionMask mask;
  ScoreRule rule;
};

at::Tensor values(int64_t batch, int64_t length, int64_t heads, int64_t channels, const Case& c) {
  const auto fp64 = at::TensorOptions().dtype(at::kDouble);
  return at::randn({batch, length, heads, channels}, fp64) * c.deviation;
}

at::Tensor visible_from(Case c) {
  auto from = at::zeros({c.batch, c.q_len}, at::kInt);
  auto value = from.accessor<int32_t, 2>();
  for (int64_t b = 0; b < c.batch; ++b) {
    int64_t document = 0;
    for (int64_t i = 0; i < c.q_len; ++i) {
      const int64_t position = c.query_offset + i;
      if (c.documents && (position * (b + 3)) % 23 == 7) document = position;
      const int64_t window = c.window > 0 ? std::max<int64_t>(0, position - c.window + 1) : 0;
      value[b][i] = static_cast<int32_t>(std::max(document, window));
    }
  }
  return from;
}

// Behind the last key of the block or of the document, whichever ends first.
at::Tensor visible_until(Case c) {
  c.window = 0;
  const auto starts = visible_from(c);
  const int64_t keys = c.query_offset + c.q_len + c.spare_keys, block = std::abs(c.block);
  auto until = at::zeros({c.batch, c.q_len}, at::kInt);
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.q_len; ++i) {
      int64_t end = i + 1;
      while (end < c.q_len && starts[b][end].item<int64_t>() == starts[b][i].item<int64_t>()) ++end;
      const int64_t block_start = (c.query_offset + i) / block * block;
      const int64_t document_end = end == c.q_len ? keys : c.query_offset + end;
      until[b][i] = c.block < 0 ? std::min(keys, block_start) : std::min({keys, block_start + block, document_end});
    }
  return until;
}

at::Tensor document_starts(Case c) {
  c.window = 0;
  return visible_from(c);
}

Inputs inputs(const Case& c) {
  at::manual_seed(1234 + c.q_len + 7 * c.head_dim);
  const int64_t k_len = c.query_offset + c.q_len + c.spare_keys;
  const int64_t of_values = c.channels_of_values();
  Inputs in{values(c.batch, c.q_len, c.heads, c.head_dim, c),
            values(c.batch, k_len, c.kv_heads, c.head_dim, c),
            values(c.batch, k_len, c.kv_heads, of_values, c),
            values(c.batch, c.q_len, c.heads, of_values, c),
            {},
            {1.0 / std::sqrt(static_cast<double>(c.head_dim)), c.cap}};
  in.mask.query_offset = c.query_offset;
  if (c.window > 0 || c.documents) in.mask.visible_from = visible_from(c);
  if (c.block != 0) in.mask.visible_until = visible_until(c), in.mask.block = std::abs(c.block);
  return in;
}

// The same values in `dtype`; strided ones are narrow slices of a wider tensor, as after a fused qkv projection.
at::Tensor stored(const at::Tensor& x, at::ScalarType dtype, bool strided) {
  if (!strided) return x.to(dtype).contiguous();
  auto wide = at::full({x.size(0), x.size(1) + 3, (x.size(2) + 2) * x.size(3)}, 1e4, x.options().dtype(dtype));
  auto part = wide.narrow(1, 2, x.size(1)).narrow(2, x.size(3), x.size(2) * x.size(3)).view(x.sizes());
  part.copy_(x);
  return part;
}

Inputs stored(const Inputs& in, at::ScalarType dtype, bool strided) {
  return {stored(in.q, dtype, strided),
          stored(in.k, dtype, strided),
          stored(in.v, dtype, strided),
          stored(in.grad_out, dtype, strided),
          in.mask,
          in.rule};
}

// -inf where a query does not see a key, 0 elsewhere: the definition of the mask, entry by entry.
at::Tensor hidden_scores(const Inputs& in) {
  auto hidden = at::full({in.q.size(0), 1, in.q.size(1), in.k.size(1)}, -std::numeric_limits<double>::infinity(), at::kDouble);
  auto entry = hidden.accessor<double, 4>();
  for (int64_t b = 0; b < in.q.size(0); ++b)
    for (int64_t i = 0; i < in.q.size(1); ++i)
      for (int64_t j = in.mask.visible_from.defined() ? in.mask.visible_from[b][i].item<int64_t>() : 0;
           j < (in.mask.visible_until.defined() ? in.mask.visible_until[b][i].item<int64_t>() : in.mask.query_offset + i + 1); ++j)
        entry[b][0][i][j] = 0;
  return hidden;
}

// The oracle: softmax with kv heads repeated and an additive mask, gradients by autograd, all in fp64.
std::vector<at::Tensor> oracle(const Inputs& in) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).detach().clone().requires_grad_(); };
  const auto q = leaf(in.q), k = leaf(in.k), v = leaf(in.v);
  const int64_t group = q.size(2) / k.size(2);
  const auto keys = k.repeat_interleave(group, 2), data = v.repeat_interleave(group, 2);
  auto scores = at::einsum("bihd,bjhd->bhij", {q, keys}) * in.rule.scale;
  if (in.rule.cap > 0) scores = in.rule.cap * (scores / in.rule.cap).tanh();
  scores = scores + hidden_scores(in);
  const auto out = at::einsum("bhij,bjhd->bihd", {scores.softmax(-1), data});
  const auto grads = gradients({out}, {q, k, v}, {in.grad_out.to(at::kDouble)});
  return {out.detach(), scores.exp().sum(-1).log().detach(), grads[0], grads[1], grads[2]};
}

const char* const kNames[] = {"out", "log_sum_exp", "grad_q", "grad_k", "grad_v"};

enum class By { interface, reference };

std::vector<at::Tensor> run(const Inputs& in, By by = By::interface) {
  const bool plain = by == By::reference;
  const auto [out, log_sum_exp] = (plain ? reference::attention_forward : attention_forward)(in.q, in.k, in.v, in.rule, in.mask);
  const auto [grad_q, grad_k, grad_v] =
      (plain ? reference::attention_backward : attention_backward)(in.grad_out, in.q, in.k, in.v, out, log_sum_exp, in.rule, in.mask);
  return {out, log_sum_exp, grad_q, grad_k, grad_v};
}

std::vector<at::Tensor> run(const Inputs& in, const cpu::AttentionTiles& tiles) {
  const auto [out, log_sum_exp] = cpu::attention_forward(in.q, in.k, in.v, in.rule, in.mask, tiles);
  const auto [grad_q, grad_k, grad_v] = cpu::attention_backward(in.grad_out, in.q, in.k, in.v, out, log_sum_exp, in.rule, in.mask, tiles);
  return {out, log_sum_exp, grad_q, grad_k, grad_v};
}

std::vector<std::pair<std::string, const cpu::AttentionTiles*>> every_instruction_set() {
  std::vector<std::pair<std::string, const cpu::AttentionTiles*>> all{{"wide", &cpu::wide::attention_tiles}};
  for (const cpu::Isa isa : cpu::supported_isas()) all.emplace_back(cpu::name(isa), &cpu::attention_tiles(isa));
  return all;
}

std::vector<std::pair<std::string, const cpu::AttentionTiles*>> every_way_of_bf16() {
  auto all = every_instruction_set();
  for (const auto unit : cpu::supported_pair_units()) all.emplace_back(cpu::name(unit), &cpu::attention_tiles(unit));
  return all;
}

// Largest difference, relative to the largest value expected anywhere in the tensor (0.1 at least: some gradients are all 0).
double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes()) return std::numeric_limits<double>::infinity();
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(0.1)).item<double>();
}

void expect_close(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error_of(actual[i], expected[i]), tolerance) << kNames[i];
}

std::string title(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("batch{}_queries{}_heads{}_kv{}_dim{}{}{}{}{}{}{}", c.batch, c.q_len, c.heads, c.kv_heads, c.head_dim,
                     c.query_offset ? fmt::format("_offset{}", c.query_offset) : "", c.window ? fmt::format("_window{}", c.window) : "",
                     c.documents ? "_documents" : "", c.strided ? "_strided" : "", c.spare_keys ? "_spare" : "",
                     c.value_dim ? fmt::format("_values{}", c.value_dim) : "") +
         (c.block > 0   ? fmt::format("_block{}", c.block)
          : c.block < 0 ? fmt::format("_before_block{}", -c.block)
                        : "") +
         (c.cap > 0 ? "_capped" : "");
}

class Attention : public testing::TestWithParam<Case> {};

TEST_P(Attention, reference_in_fp64_equals_the_explicit_softmax) {
  const Inputs in = stored(inputs(GetParam()), at::kDouble, GetParam().strided);
  expect_close(run(in, By::reference), oracle(in), 1e-12);
}

TEST_P(Attention, fp32_equals_the_explicit_softmax_with_every_instruction_set) {
  const Inputs in = stored(inputs(GetParam()), at::kFloat, GetParam().strided);
  const auto expected = oracle(in);
  for (const auto& [isa, tiles] : every_instruction_set()) {
    SCOPED_TRACE(isa);
    expect_close(run(in, *tiles), expected, 1e-5);
  }
  expect_close(run(in), expected, 1e-5);
}

TEST_P(Attention, bf16_equals_the_explicit_softmax_with_every_instruction_set) {
  const Inputs in = stored(inputs(GetParam()), at::kBFloat16, GetParam().strided);
  const auto expected = oracle(in);
  for (const auto& [isa, tiles] : every_way_of_bf16()) {
    SCOPED_TRACE(isa);
    const auto actual = run(in, *tiles);
    EXPECT_EQ(actual[0].scalar_type(), at::kBFloat16);
    EXPECT_EQ(actual[1].scalar_type(), at::kFloat);
    expect_close(actual, expected, 1e-2);
  }
}

// On a GPU by the flash kernels, where they have the mask.
TEST_P(Attention, bf16_on_the_device_equals_the_explicit_softmax_and_itself) {
  const Inputs in = stored(inputs(GetParam()), at::kBFloat16, GetParam().strided);
  const auto device = device::test_device();
  Inputs there{stored(in.q.to(device), at::kBFloat16, GetParam().strided),
               stored(in.k.to(device), at::kBFloat16, GetParam().strided),
               stored(in.v.to(device), at::kBFloat16, GetParam().strided),
               stored(in.grad_out.to(device), at::kBFloat16, GetParam().strided),
               in.mask,
               in.rule};
  there.mask.most_visible = GetParam().window;
  there.mask.has_documents = GetParam().documents;
  if (in.mask.visible_from.defined()) there.mask.visible_from = in.mask.visible_from.to(device);
  if (in.mask.visible_until.defined()) there.mask.visible_until = in.mask.visible_until.to(device);
  if (GetParam().documents && GetParam().query_offset == 0) {
    const auto begins = document_starts(GetParam()).eq(at::arange(GetParam().q_len, at::kInt)).flatten().nonzero().flatten();
    there.mask.document_offsets = device::cat({begins, at::full({1}, in.q.size(0) * in.q.size(1))}).to(at::kInt).to(device);
  }
  const auto first = run(there), again = run(there);
  std::vector<at::Tensor> found;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(at::equal(first[i].cpu(), again[i].cpu())) << kNames[i];
    found.push_back(first[i].cpu());
  }
  expect_close(found, oracle(in), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, Attention,
    testing::Values(Case{1, 1, 1, 1, 8}, Case{2, 29, 4, 2, 12}, Case{1, 37, 4, 1, 16, 0, 5}, Case{3, 37, 4, 4, 8, 0, 0, true},
                    Case{2, 130, 4, 1, 64}, Case{2, 130, 2, 2, 128, 0, 0, false, true}, Case{2, 130, 4, 2, 64, 0, 17, true, true},
                    Case{1, 29, 4, 2, 64, 101, 0, false, false, 9}, Case{2, 37, 2, 1, 12, 64, 40, true, true, 27},
                    Case{1, 200, 8, 2, 20, 3, 97, false, true}, Case{1, 130, 2, 1, 72, 0, 0, true, false, 0, 4},
                    Case{2, 1, 4, 1, 64, 299, 0, false, true, 11}, Case{2, 3, 4, 2, 20, 600, 300, true, true, 2},
                    Case{1, 1, 8, 1, 8, 700, 50}, Case{3, 1, 6, 2, 24, 76, 50}, Case{1, 513, 2, 1, 16, 0, 0, true}, Case{1, 513, 2, 1, 64},
                    Case{2, 130, 4, 2, 24, 0, 0, true, true, 0, 1, 16}, Case{1, 200, 4, 4, 192, 0, 30, false, false, 0, 1, 128},
                    Case{1, 130, 2, 1, 40, 0, 0, false, false, 0, 1, 33}, Case{2, 1, 4, 4, 24, 300, 0, false, true, 5, 1, 16},
                    Case{2, 130, 4, 2, 24, 0, 0, false, false, 0, 1, 0, 1000}, Case{2, 200, 2, 1, 64, 0, 0, true, true, 0, 1, 0, 16},
                    Case{1, 513, 4, 2, 20, 0, 90, false, false, 0, 1, 0, 16}, Case{2, 16, 4, 2, 32, 77, 0, false, true, 0, 1, 0, 1000},
                    Case{1, 3, 8, 2, 24, 300, 0, false, false, 4, 1, 0, 1000}, Case{2, 150, 4, 2, 40, 0, 0, false, false, 0, 1, 24, 7},
                    Case{.batch = 2,
                         .q_len = 130,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 24,
                         .documents = true,
                         .strided = true,
                         .deviation = 2,
                         .cap = 1.5},
                    Case{.batch = 1,
                         .q_len = 200,
                         .heads = 2,
                         .kv_heads = 1,
                         .head_dim = 64,
                         .window = 30,
                         .deviation = 30,
                         .value_dim = 40,
                         .cap = 50},
                    Case{.batch = 2, .q_len = 1, .heads = 4, .kv_heads = 2, .head_dim = 20, .query_offset = 600, .window = 300, .cap = 0.5},
                    Case{.batch = 1, .q_len = 100, .heads = 2, .kv_heads = 2, .head_dim = 16, .block = 16, .cap = 1}),
    title);

// Drafts see the keys before their block in one sequence and those of the block in another; here both are the same one.
TEST(Attention, to_what_lies_before_a_block_and_to_the_block_add_up_to_attention_to_both) {
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const Case& c : {Case{2, 150, 4, 2, 24, 0, 0, true, false, 0, 1, 0, 16}, Case{1, 130, 2, 1, 64, 0, 40, false, false, 0, 1, 0, 16},
                          Case{2, 75, 4, 4, 16, 0, 0, false, false, 0, 1, 0, 7}}) {
      const Inputs in = stored(inputs(c), dtype, false);
      const auto expected = run(in);
      Inputs before = in, own = in;
      auto of_earlier = c;
      of_earlier.block = -c.block;
      before.mask.visible_until = visible_until(of_earlier);
      const auto begin = visible_until(of_earlier);
      own.mask.visible_from = in.mask.visible_from.defined() ? at::maximum(in.mask.visible_from, begin) : begin;
      const auto whole = attention_forward(own.q, own.k, own.v, own.rule, own.mask);
      const auto out = whole.out.to(whole.log_sum_exp.scalar_type()).clone(), log_sum_exp = whole.log_sum_exp.clone();
      merge_attention(out, log_sum_exp, attention_forward(before.q, before.k, before.v, before.rule, before.mask));
      std::vector<at::Tensor> found{out, log_sum_exp};
      const auto of = [&](const Inputs& part) {
        return attention_backward(in.grad_out, in.q, in.k, in.v, out.to(dtype), log_sum_exp, in.rule, part.mask);
      };
      const auto [q_own, k_own, v_own] = of(own);
      const auto [q_before, k_before, v_before] = of(before);
      found.insert(found.end(), {q_own + q_before, k_own + k_before, v_own + v_before});
      expect_close(found, expected, dtype == at::kDouble ? 1e-11 : 2e-5);
    }
}

// What a GPU would run: one kernel for each pass where flash attention has the mask, the composition where it has not.
TEST(Attention, counts_as_one_kernel_where_a_gpu_has_flash_attention) {
  const auto kernels_of = [](const Case& c, at::ScalarType dtype) {
    const device::CountingDevice counting(device::Target::gpu);
    const auto on = [&](const at::Tensor& x) { return at::empty(x.sizes(), x.options().dtype(dtype).device(counting.device())); };
    const Inputs in = inputs(c);
    AttentionMask mask{{}, c.query_offset, c.window, c.documents};
    if (in.mask.visible_from.defined()) mask.visible_from = in.mask.visible_from.to(counting.device());
    if (c.documents) mask.document_offsets = at::zeros({3}, at::TensorOptions().dtype(at::kInt).device(counting.device()));
    const auto q = on(in.q), k = on(in.k), v = on(in.v);
    device::Tracer tracer(counting.device());
    const auto [out, log_sum_exp] = attention_forward(q, k, v, in.rule, mask);
    attention_backward(out, q, k, v, out, log_sum_exp, in.rule, mask);
    const auto trace = tracer.finish();
    return std::count_if(trace.operations.begin(), trace.operations.end(),
                         [&](const auto& op) { return trace.names[static_cast<size_t>(op.name)].starts_with("attention"); });
  };
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 64}, at::kBFloat16), 2);
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 64, 0, 17}, at::kBFloat16), 2) << "a window";
  EXPECT_EQ(kernels_of({2, 1, 4, 2, 64, 100}, at::kBFloat16), 2) << "decoding";
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 64, 0, 0, true}, at::kBFloat16), 2) << "documents";
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 64, 9, 0, true}, at::kBFloat16), 0) << "documents behind a cache";
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 12}, at::kBFloat16), 0) << "heads of 12";
  EXPECT_EQ(kernels_of({2, 128, 4, 2, 64}, at::kFloat), 0) << "fp32";
}

TEST(Attention, results_are_bit_equal_for_every_number_of_threads) {
  for (const auto& [c, dtype] :
       {std::pair{Case{1, 300, 4, 1, 64, 0, 70, true}, at::kFloat}, std::pair{Case{2, 1, 8, 2, 64, 900}, at::kFloat},
        std::pair{Case{1, 300, 4, 1, 64, 0, 70, true}, at::kBFloat16}}) {
    const Inputs in = stored(inputs(c), dtype, false);
    const int threads_before = at::get_num_threads();
    at::set_num_threads(1);
    const auto expected = run(in);
    for (const int threads : {2, 3, 7}) {
      at::set_num_threads(threads);
      const auto actual = run(in);
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(actual[i], expected[i])) << kNames[i] << ", " << threads << " threads";
    }
    at::set_num_threads(threads_before);
  }
}

TEST(Attention, a_value_that_is_not_a_number_reaches_only_those_who_see_it) {
  Inputs in = stored(inputs({1, 130, 2, 1, 16, 0, 40}), at::kFloat, false);
  in.k[0][60].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto finite = run(in)[0].isfinite().all(-1).all(-1)[0];  // [q_len]
  for (int64_t i = 0; i < 130; ++i) EXPECT_EQ(finite[i].item<bool>(), i < 60 || i >= 100) << i;
}

TEST(Attention, a_score_that_is_not_a_number_in_bf16_reaches_only_those_who_see_it) {
  Inputs in = stored(inputs({1, 130, 2, 1, 16, 0, 40}), at::kBFloat16, false);
  in.k[0][60].fill_(std::numeric_limits<float>::quiet_NaN());
  for (const auto& [way, tiles] : every_way_of_bf16()) {
    const auto finite = run(in, *tiles)[0].isfinite().all(-1).all(-1)[0];
    for (int64_t i = 0; i < 130; ++i) EXPECT_EQ(finite[i].item<bool>(), i < 60 || i >= 100) << way << ", " << i;
  }
}

TEST(Attention, large_scores_do_not_overflow) {
  for (const double deviation : {30.0, 300.0}) {
    const Inputs in = stored(inputs({1, 130, 2, 1, 64, 0, 0, false, false, 0, deviation}), at::kFloat, false);
    const auto actual = run(in);
    const auto expected = run(stored(in, at::kDouble, false), By::reference);
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::isfinite(actual[i]).all().item<bool>()) << kNames[i];
    EXPECT_LT(error_of(actual[0], expected[0]), 1e-2);  // scores of 10^4 have errors of 10^-3 in fp32
    EXPECT_LT(error_of(actual[1], expected[1]), 1e-6);
  }
}

// Maxima that grow from block to block, and scores far below them.
TEST(Attention, large_scores_do_not_overflow_in_bf16) {
  for (const double deviation : {4.0, 30.0, 300.0}) {
    auto all = inputs({1, 200, 2, 1, 64, 0, 0, false, false, 0, deviation});
    all.k.mul_(at::linspace(0.1, 1, all.k.size(1), all.k.options()).view({1, -1, 1, 1}));
    const Inputs in = stored(all, at::kBFloat16, false);
    const auto expected = run(stored(in, at::kDouble, false), By::reference);
    for (const auto& [way, tiles] : every_way_of_bf16()) {
      SCOPED_TRACE(way);
      const auto actual = run(in, *tiles);
      for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(at::isfinite(actual[i]).all().item<bool>()) << kNames[i];
      EXPECT_LT(error_of(actual[0], expected[0]), 1e-2);
      EXPECT_LT(error_of(actual[1], expected[1]), 1e-5);
    }
  }
}

TEST(Attention, gradients_equal_finite_differences) {
  const Inputs in = inputs({1, 5, 2, 1, 4, 3, 4});
  const auto grads = run(in);
  const auto loss = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return (attention_forward(q, k, v, in.rule, in.mask).out * in.grad_out).sum().item<double>();
  };
  constexpr double kStep = 1e-6;
  const at::Tensor operands[] = {in.q, in.k, in.v};
  for (int which = 0; which < 3; ++which) {
    auto numeric = at::zeros_like(operands[which]);
    for (int64_t i = 0; i < numeric.numel(); ++i) {
      at::Tensor up[] = {in.q.clone(), in.k.clone(), in.v.clone()}, down[] = {in.q.clone(), in.k.clone(), in.v.clone()};
      up[which].view(-1)[i] += kStep;
      down[which].view(-1)[i] -= kStep;
      numeric.view(-1)[i] = (loss(up[0], up[1], up[2]) - loss(down[0], down[1], down[2])) / (2 * kStep);
    }
    EXPECT_LT(error_of(grads[2 + which], numeric), 1e-7) << kNames[2 + which];
  }
}

// What queries see of each part of the keys, put together, is what they see of all of them: parts before, at and behind the queries,
// with queries that see nothing of a part.
struct PartsCase {
  Case whole;
  std::vector<int64_t> cuts;  // of the keys
};

class AttentionToParts : public testing::TestWithParam<PartsCase> {};

void expect_parts_make_the_whole(const PartsCase& c, at::ScalarType dtype, const cpu::AttentionTiles* tiles, double tolerance) {
  const Inputs in = stored(inputs(c.whole), dtype, c.whole.strided);
  const auto expected = oracle(in);
  const bool is_own = tiles != nullptr;
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  auto cuts = c.cuts;
  cuts.push_back(in.k.size(1));
  const auto mask_of = [&](int64_t first, int64_t keys) {
    AttentionMask mask{{}, in.mask.query_offset - first};
    if (in.mask.visible_from.defined()) mask.visible_from = (in.mask.visible_from - first).clamp(0, keys).to(at::kInt);
    return mask;
  };
  const auto for_each_part = [&](const std::function<void(int64_t, int64_t)>& visit) {
    for (size_t i = cuts.size() - 1; i-- > 0;) visit(cuts[i], cuts[i + 1] - cuts[i]);  // that with the queries' own keys comes first
  };
  AttentionOutput all;
  for_each_part([&](int64_t first, int64_t keys) {
    const auto k = in.k.narrow(1, first, keys), v = in.v.narrow(1, first, keys);
    auto part = is_own ? cpu::attention_forward(in.q, k, v, in.rule, mask_of(first, keys), *tiles)
                       : attention_forward(in.q, k, v, in.rule, mask_of(first, keys));
    EXPECT_FALSE(part.out.isnan().any().item<bool>());
    if (!all.out.defined()) all = {part.out.to(wide), part.log_sum_exp};
    else merge_attention(all.out, all.log_sum_exp, part);
  });
  const auto out = all.out.to(dtype);
  auto grad_q = at::zeros_like(all.out), grad_k = at::zeros_like(in.k, at::TensorOptions().dtype(wide)), grad_v = at::zeros_like(grad_k);
  for_each_part([&](int64_t first, int64_t keys) {
    const auto k = in.k.narrow(1, first, keys), v = in.v.narrow(1, first, keys);
    const auto mask = mask_of(first, keys);
    const auto [to_q, to_k, to_v] = is_own ? cpu::attention_backward(in.grad_out, in.q, k, v, out, all.log_sum_exp, in.rule, mask, *tiles)
                                           : attention_backward(in.grad_out, in.q, k, v, out, all.log_sum_exp, in.rule, mask);
    grad_q += to_q;
    grad_k.narrow(1, first, keys) += to_k;
    grad_v.narrow(1, first, keys) += to_v;
  });
  expect_close({out, all.log_sum_exp, grad_q, grad_k, grad_v}, expected, tolerance);
}

TEST_P(AttentionToParts, makes_the_whole) {
  expect_parts_make_the_whole(GetParam(), at::kDouble, nullptr, 1e-12);
  for (const auto& [isa, tiles] : every_instruction_set()) {
    SCOPED_TRACE(isa);
    expect_parts_make_the_whole(GetParam(), at::kFloat, tiles, 1e-5);
    expect_parts_make_the_whole(GetParam(), at::kBFloat16, tiles, 1e-2);
  }
}

// The last part holds the queries' own keys.
INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionToParts,
    testing::Values(PartsCase{{2, 100, 4, 2, 64, 150}, {0, 50, 150}}, PartsCase{{2, 100, 4, 1, 20, 150, 0, true}, {0, 7, 96, 150}},
                    PartsCase{{1, 130, 2, 2, 16, 200, 140}, {0, 99, 200}}, PartsCase{{2, 60, 4, 2, 128, 130, 30, true, true}, {0, 40, 130}},
                    PartsCase{{1, 2, 4, 2, 8, 6, 0, true}, {0, 2, 4, 6}}, PartsCase{{3, 1, 2, 1, 8, 3}, {0, 1, 2, 3}},
                    PartsCase{{.batch = 2, .q_len = 100, .heads = 4, .kv_heads = 2, .head_dim = 24, .query_offset = 150, .cap = 1},
                              {0, 50, 150}}),
    [](const auto& info) {
      return title({info.param.whole, info.index});
    });

TEST(Attention, queries_that_see_no_key_get_nothing) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t queries : {2, 100}) {
      const auto q = at::randn({1, queries, 2, 16}, dtype), k = at::randn({1, 5, 2, 16}, dtype);
      for (const AttentionMask& mask :
           {AttentionMask{{}, -queries}, AttentionMask{at::full({1, queries}, 5, at::kInt), 300},
            AttentionMask{at::full({1, queries}, 5, at::kInt), 0}, AttentionMask{at::full({1, queries}, 5, at::kInt), 3}}) {
        const auto result = attention_forward(q, k, k, 1, mask);
        EXPECT_EQ(result.out.abs().max().item<double>(), 0);
        EXPECT_EQ(result.log_sum_exp.max().item<double>(), -std::numeric_limits<double>::infinity());
        const auto lse = at::zeros_like(result.log_sum_exp);
        const auto [grad_q, grad_k, grad_v] = attention_backward(q, q, k, k, result.out, lse, 1, mask);
        for (const auto& grad : {grad_q, grad_k, grad_v}) EXPECT_EQ(grad.abs().max().item<double>(), 0);
      }
    }
  }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const base::ModelError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Attention, misfits_are_refused_with_their_shapes) {
  const auto x = at::zeros({1, 4, 2, 8});
  const auto from = [](std::vector<int32_t> values) { return AttentionMask{at::tensor(values, at::kInt).unsqueeze(0)}; };
  const auto call = [&](const at::Tensor& k, AttentionMask mask = {}) { return refusal([&] { attention_forward(x, k, k, 1, mask); }); };
  EXPECT_EQ(call(x, from({0, 0, 1, 3})), "not refused");
  EXPECT_THAT(call(at::zeros({1, 4, 3, 8})), testing::HasSubstr("3 kv heads do not divide 2"));
  EXPECT_THAT(call(at::zeros({1, 4, 2, 9})), testing::HasSubstr("[1, 4, 2, 9]"));
  EXPECT_THAT(call(x.to(at::kBFloat16)), testing::HasSubstr("k is BFloat16"));
  EXPECT_THAT(call(at::zeros({1, 4, 8, 2}).transpose(2, 3)), testing::HasSubstr("contiguous()"));
  EXPECT_THAT(call(x, from({0, 0, 5, 5})), testing::HasSubstr("visible_from[0, 2] is 5"));
  EXPECT_THAT(call(x, from({0, 1, 0, 0})), testing::HasSubstr("visible_from[0, 2] is 0"));
  EXPECT_THAT(call(x, from({-1, 0, 0, 0})), testing::HasSubstr("visible_from[0, 0] is -1"));
  EXPECT_THAT(call(x, from({0, 0, 0})), testing::HasSubstr("[1, 4]"));
}

}  // namespace
}  // namespace ingot::kernels

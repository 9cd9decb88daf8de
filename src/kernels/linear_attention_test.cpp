// Linear attention against the per-token recurrence in fp64 and autograd through it.
#include "kernels/linear_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_night.h"
#include "kernels/cpu/linear_attention.h"
#include "kernels/differentiable.h"

namespace ingot::kernels {
namespace cpu::wide {
extern const LinearAttentionTiles linear_attention_tiles;  // 16 lanes on any CPU
}
namespace {

enum class Variant { basic, retention, scalar_gate, diagonal_gate, delta, gated_delta, kda };
constexpr Variant kVariants[] = {Variant::basic, Variant::retention,   Variant::scalar_gate, Variant::diagonal_gate,
                                 Variant::delta, Variant::gated_delta, Variant::kda};
const char* const kVariantNames[] = {"basic", "retention", "scalar_gate", "diagonal_gate", "delta", "gated_delta", "kda"};

bool has_delta(Variant v) { return v == Variant::delta || v == Variant::gated_delta || v == Variant::kda; }

struct Sizes {
  int64_t batch = 2, seq = 24, heads = 3, key_dim = 8, value_dim = 6;
};

at::Tensor random(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); }

struct Problem {
  LinearAttentionInputs in;
  at::Tensor initial_state, grad_out, grad_final_state;
};

at::Tensor starts(const Sizes& s) {
  auto starts = at::zeros({s.batch, s.seq}, at::kBool);
  for (int64_t b = 0; b < s.batch; ++b)
    for (const int64_t t : {b == 0 ? int64_t{0} : int64_t{2}, int64_t{1}, s.seq / 3, s.seq / 3 + 5, 2 * s.seq / 3 + b, int64_t{64}})
      if (t < s.seq) starts[b][t] = true;
  return starts;
}

// As the recorded references are made.
Problem problem(Variant variant, const Sizes& s, bool is_packed = false, bool has_states = true) {
  at::manual_seed(100 * static_cast<int64_t>(variant) + s.seq);
  const std::vector<int64_t> by_token = {s.batch, s.seq, s.heads};
  Problem p;
  p.in.q = random({s.batch, s.seq, s.heads, s.key_dim});
  p.in.k = random({s.batch, s.seq, s.heads, s.key_dim}) / std::sqrt(static_cast<double>(s.key_dim));
  p.in.v = random({s.batch, s.seq, s.heads, s.value_dim});
  if (has_delta(variant)) {
    p.in.k = p.in.k / p.in.k.norm(2, -1, true);
    p.in.beta = at::sigmoid(random(by_token));
  }
  if (variant == Variant::retention) p.in.log_gate = -at::exp2(-at::arange(1, s.heads + 1, at::kDouble));
  if (variant == Variant::scalar_gate || variant == Variant::gated_delta) p.in.log_gate = at::log_sigmoid(random(by_token) + 1);
  if (variant == Variant::diagonal_gate || variant == Variant::kda) p.in.log_gate = at::log_sigmoid(random(p.in.q.sizes()) + 1);
  if (is_packed) p.in.is_start = starts(s);
  p.grad_out = random({s.batch, s.seq, s.heads, s.value_dim});
  if (has_states) {
    p.initial_state = random({s.batch, s.heads, s.key_dim, s.value_dim});
    p.grad_final_state = random(p.initial_state.sizes());
  }
  return p;
}

// Operands in `dtype`; gates, beta and states are never narrower than fp32.
Problem stored(const Problem& p, at::ScalarType dtype) {
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const auto to = [](const at::Tensor& x, at::ScalarType type) { return x.defined() ? x.to(type) : x; };
  return {{to(p.in.q, dtype), to(p.in.k, dtype), to(p.in.v, dtype), to(p.in.log_gate, wide), to(p.in.beta, wide), p.in.is_start},
          to(p.initial_state, wide),
          to(p.grad_out, dtype),
          to(p.grad_final_state, wide)};
}

const char* const kNames[] = {"out", "final_state", "grad_q", "grad_k", "grad_v", "grad_log_gate", "grad_beta", "grad_initial_state"};
using Results = std::vector<at::Tensor>;  // in the order of kNames; undefined where a variant has none

Results run(const Problem& p) {
  const auto f = linear_attention_forward(p.in, p.initial_state);
  const auto g = linear_attention_backward(p.grad_out, p.grad_final_state, p.in, p.initial_state, f.saved);
  return {f.out, f.final_state, g.q, g.k, g.v, g.log_gate, g.beta, p.initial_state.defined() ? g.initial_state : at::Tensor()};
}

Results run(const Problem& p, const cpu::LinearAttentionTiles& tiles) {
  const auto f = cpu::linear_attention_forward(p.in, p.initial_state, tiles);
  const auto g = cpu::linear_attention_backward(p.grad_out, p.grad_final_state, p.in, f.saved, tiles);
  return {f.out, f.final_state, g.q, g.k, g.v, g.log_gate, g.beta, p.initial_state.defined() ? g.initial_state : at::Tensor()};
}

std::vector<std::pair<std::string, const cpu::LinearAttentionTiles*>> every_instruction_set() {
  std::vector<std::pair<std::string, const cpu::LinearAttentionTiles*>> all{{"wide", &cpu::wide::linear_attention_tiles}};
  for (const cpu::Isa isa : cpu::supported_isas()) all.emplace_back(cpu::name(isa), &cpu::linear_attention_tiles(isa));
  return all;
}

Results oracle(const Problem& p) {
  const auto leaf = [](const at::Tensor& x) { return x.defined() ? x.to(at::kDouble).detach().clone().requires_grad_() : x; };
  LinearAttentionInputs in{leaf(p.in.q), leaf(p.in.k), leaf(p.in.v), leaf(p.in.log_gate), leaf(p.in.beta), p.in.is_start};
  const auto state = leaf(p.initial_state);
  const auto f = reference::linear_attention_recurrence(in, state);
  auto loss = (f.out * p.grad_out.to(at::kDouble)).sum();
  if (p.grad_final_state.defined()) loss = loss + (f.final_state * p.grad_final_state.to(at::kDouble)).sum();
  backward({loss});
  Results all = {f.out.detach(), f.final_state.detach()};
  for (const auto& x : {in.q, in.k, in.v, in.log_gate, in.beta, state})
    all.push_back(!x.defined() || x.dim() == 1 ? at::Tensor() : x.grad().defined() ? x.grad() : at::zeros_like(x));
  return all;
}

double largest_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1e-30)).item<double>();
}
double norm_error(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm().clamp_min(1e-30)).item<double>();
}

void expect_close(const Results& got, const Results& expected, double tolerance, double (*error)(const at::Tensor&, const at::Tensor&)) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << kNames[i];
    if (!got[i].defined()) continue;
    ASSERT_EQ(got[i].sizes(), expected[i].sizes()) << kNames[i];
    EXPECT_LT(error(got[i], expected[i]), tolerance) << kNames[i];
  }
}

using Shape = std::tuple<Variant, bool, int64_t, bool>;  // variant, packed, seq, states
class LinearAttention : public testing::TestWithParam<Shape> {};

TEST_P(LinearAttention, follows_the_recurrence_forward_and_backward) {
  const auto [variant, is_packed, seq, has_states] = GetParam();
  const auto p = problem(variant, {.seq = seq}, is_packed, has_states);
  const auto expected = oracle(p);
  expect_close(run(p), expected, 1e-11, largest_error);
  expect_close(run(stored(p, at::kFloat)), expected, 1e-5, largest_error);
  const auto narrow = stored(p, at::kBFloat16);
  expect_close(run(narrow), oracle(narrow), 5e-3, norm_error);
}

std::string title(const testing::TestParamInfo<Shape>& info) {
  const auto [variant, is_packed, seq, has_states] = info.param;
  return fmt::format("{}{}_{}{}", kVariantNames[static_cast<int>(variant)], is_packed ? "_packed" : "", seq, has_states ? "_states" : "");
}

// Around the chunks of the composition (64) and of the fused kernels (24, 64, 96).
INSTANTIATE_TEST_SUITE_P(Shapes, LinearAttention,
                         testing::Combine(testing::ValuesIn(kVariants), testing::Bool(),
                                          testing::Values(1, 7, 25, 64, 65, 96, 97, 197, 293), testing::Bool()),
                         title);

TEST(LinearAttentionSizes, heads_of_many_sizes_follow_the_recurrence) {
  for (const auto variant : kVariants)
    for (const auto& s :
         {Sizes{1, 70, 2, 1, 1}, Sizes{1, 110, 1, 64, 64}, Sizes{1, 130, 2, 20, 36}, Sizes{2, 100, 1, 128, 33}, Sizes{1, 128, 2, 8, 6}}) {
      SCOPED_TRACE(fmt::format("{} {}x{}", kVariantNames[static_cast<int>(variant)], s.key_dim, s.value_dim));
      const auto p = problem(variant, s, true);
      const auto expected = oracle(p);
      expect_close(run(p), expected, 1e-11, largest_error);
      expect_close(run(stored(p, at::kFloat)), expected, 1e-5, largest_error);
    }
}

TEST(LinearAttentionSizes, long_rows_over_few_heads_follow_the_recurrence) {
  for (const auto variant : kVariants)
    for (const bool is_packed : {false, true}) {
      SCOPED_TRACE(kVariantNames[static_cast<int>(variant)]);
      const auto p = problem(variant, {1, 2600, 1, 16, 16}, is_packed);
      if (!base::tests_run_at_night() && is_packed != (static_cast<int>(variant) % 2 == 0)) continue;  // by day every other
      const auto expected = oracle(p);
      expect_close(run(p), expected, 1e-11, largest_error);
      expect_close(run(stored(p, at::kFloat)), expected, 2e-5, largest_error);
    }
}

// The fused kernels with other vectors than this machine's best.
TEST(LinearAttentionFused, follows_the_recurrence_with_every_instruction_set) {
  for (const auto variant : kVariants)
    for (const auto& s : {Sizes{2, 7, 2, 3, 5}, Sizes{1, 200, 2, 20, 36}, Sizes{1, 97, 1, 64, 128},
                          Sizes{1, base::tests_run_at_night() ? 1700 : 500, 2, 12, 8}}) {
      const auto p = problem(variant, s, s.seq > 100);
      const auto expected = oracle(p);
      const auto narrow = stored(p, at::kBFloat16);
      const auto expected_narrow = oracle(narrow);
      for (const auto& [isa, tiles] : every_instruction_set()) {
        SCOPED_TRACE(fmt::format("{} {} {}x{} of {}", isa, kVariantNames[static_cast<int>(variant)], s.key_dim, s.value_dim, s.seq));
        expect_close(run(stored(p, at::kFloat), *tiles), expected, 1e-5, largest_error);
        expect_close(run(narrow, *tiles), expected_narrow, 5e-3, norm_error);
      }
    }
}

// Wide values, and keys of which a feature map made many more (Based's second-order map of 16 channels has 273).
TEST(LinearAttentionFused, takes_wide_heads) {
  for (const auto variant : kVariants)
    for (const auto& s : {Sizes{1, 70, 1, 64, 512}, Sizes{1, 70, 1, 273, 64}, Sizes{1, 70, 1, 512, 640}}) {
      if (s.value_dim == 640 && static_cast<int>(variant) % 2 == 0 && !base::tests_run_at_night()) continue;
      SCOPED_TRACE(fmt::format("{} {}x{}", kVariantNames[static_cast<int>(variant)], s.key_dim, s.value_dim));
      const auto p = problem(variant, s, true);
      const auto narrow = stored(p, at::kFloat);
      ASSERT_TRUE(cpu::takes_linear_attention(narrow.in));
      expect_close(run(narrow), oracle(p), 1e-5, largest_error);
      const auto coarse = stored(p, at::kBFloat16);
      expect_close(run(coarse), oracle(coarse), 5e-3, norm_error);
    }
}

// What a run makes of states, by itself: one part, several parts of a row, and sizes that fill no vector.
TEST(LinearAttentionFused, sees_to_states_alone_with_every_instruction_set) {
  for (const auto variant : {Variant::basic, Variant::retention, Variant::scalar_gate, Variant::diagonal_gate})
    for (const auto& s : {Sizes{2, 7, 2, 3, 5}, Sizes{1, 97, 1, 64, 128}, Sizes{1, 4000, 2, 12, 20}})
      for (const bool is_packed : {false, true}) {
        const auto p = problem(variant, s, is_packed);
        const auto map = linear_attention_map(p.in);  // in fp64
        const auto gradient = linear_attention_state_gradient(p.grad_out, p.in);
        auto of_state = at::zeros_like(p.in.v);
        add_linear_attention_of_state(of_state, p.in, p.initial_state);
        for (const auto dtype : {at::kFloat, at::kBFloat16}) {
          const auto narrow = stored(p, dtype);
          const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
          for (const auto& [isa, tiles] : every_instruction_set()) {
            SCOPED_TRACE(fmt::format("{} {} {} of {}", isa, kVariantNames[static_cast<int>(variant)], c10::toString(dtype), s.seq));
            EXPECT_LT(norm_error(cpu::linear_attention_state(narrow.in, *tiles), map.added), tolerance);
            EXPECT_LT(norm_error(cpu::linear_attention_state_gradient(narrow.grad_out, narrow.in, *tiles), gradient), tolerance);
            auto out = narrow.in.v.clone();
            cpu::add_linear_attention_of_state(out, narrow.in, narrow.initial_state, *tiles);
            EXPECT_LT(norm_error(out, of_state + narrow.in.v), tolerance);
          }
        }
      }
}

// Parts of a packed projection, as a layer hands them in.
TEST(LinearAttentionFused, reads_strided_operands) {
  const auto p = stored(problem(Variant::scalar_gate, {2, 100, 3, 8, 8}), at::kFloat);
  const auto packed = device::cat({p.in.q.flatten(2), p.in.k.flatten(2), p.in.v.flatten(2)}, 2);
  auto strided = p;
  strided.in.q = packed.narrow(2, 0, 24).unflatten(2, {3, 8});
  strided.in.k = packed.narrow(2, 24, 24).unflatten(2, {3, 8});
  strided.in.v = packed.narrow(2, 48, 24).unflatten(2, {3, 8});
  strided.grad_out = p.grad_out.transpose(1, 2).contiguous().transpose(1, 2);
  const auto expected = run(p), got = run(strided);
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(at::equal(got[i], expected[i])) << kNames[i];
  strided.in.q = p.in.q.transpose(2, 3).contiguous().transpose(2, 3);  // not even a head's channels lie together
  EXPECT_TRUE(at::equal(run(strided)[0], expected[0]));
}

TEST(LinearAttentionGradients, equal_finite_differences) {
  for (const auto variant : kVariants) {
    auto p = problem(variant, {1, 24, 2, 3, 5}, true);
    const auto grads = run(p);
    const auto loss = [&] {
      const auto f = linear_attention_forward(p.in, p.initial_state);
      return ((f.out * p.grad_out).sum() + (f.final_state * p.grad_final_state).sum()).item<double>();
    };
    const at::Tensor operands[] = {p.in.q, p.in.k, p.in.v, p.in.log_gate, p.in.beta, p.initial_state};
    constexpr double kStep = 1e-6;
    for (size_t which = 0; which < 6; ++which) {
      if (!grads[2 + which].defined()) continue;
      auto flat = operands[which].view(-1);
      auto numeric = at::zeros_like(flat);
      for (int64_t i = 0; i < flat.numel(); ++i) {
        const double before = flat[i].item<double>();
        flat[i] = before + kStep;
        const double above = loss();
        flat[i] = before - kStep;
        numeric[i] = (above - loss()) / (2 * kStep);
        flat[i] = before;
      }
      EXPECT_LT(largest_error(grads[2 + which].flatten(), numeric), 1e-7) << kVariantNames[static_cast<int>(variant)] << kNames[2 + which];
    }
  }
}

TEST(LinearAttentionCausality, what_comes_later_changes_no_bit) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto variant : kVariants)
      for (const int64_t s : {1, 31, 64, 95, 96, 100}) {
        SCOPED_TRACE(fmt::format("{} {} token {}", kVariantNames[static_cast<int>(variant)], c10::toString(dtype), s));
        const Sizes sizes{1, 130, 2, 8, 6};
        auto p = stored(problem(variant, sizes), dtype);
        const auto before = run(p)[0].narrow(1, 0, s).clone();
        auto changed = p;
        for (auto* x : {&changed.in.q, &changed.in.k, &changed.in.v, &changed.in.log_gate, &changed.in.beta}) {
          if (!x->defined() || x->dim() == 1) continue;
          *x = x->clone();
          x->select(1, s).mul_(0.5).sub_(0.125);
        }
        EXPECT_TRUE(at::equal(before, run(changed)[0].narrow(1, 0, s)));
        // A loss on the tokens up to s.
        p.grad_out.narrow(1, s + 1, sizes.seq - s - 1).zero_();
        p.grad_final_state = at::Tensor();
        const auto grads = run(p);
        for (size_t i = 2; i < 7; ++i) {
          if (!grads[i].defined()) continue;
          EXPECT_EQ(grads[i].narrow(1, s + 1, sizes.seq - s - 1).abs().max().item<double>(), 0) << kNames[i];
        }
      }
}

// A document's results have no trace of its neighbours, and its gradients none of their losses.
TEST(LinearAttentionDocuments, are_what_they_are_alone) {
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const auto variant : kVariants) {
      SCOPED_TRACE(fmt::format("{} {}", kVariantNames[static_cast<int>(variant)], c10::toString(dtype)));
      const Sizes sizes{1, 210, 2, 8, 6};
      auto p = stored(problem(variant, sizes), dtype);
      p.initial_state = p.grad_final_state = at::Tensor();
      p.in.is_start = at::zeros({1, 210}, at::kBool);
      const std::vector<int64_t> cuts = {0, 5, 40, 64, 96, 97, 205, 210};
      for (const int64_t cut : cuts)
        if (cut < 210) p.in.is_start[0][cut] = true;
      const auto whole = run(p);
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const auto part = [&](const at::Tensor& x) { return !x.defined() || x.dim() == 1 ? x : x.slice(1, cuts[i], cuts[i + 1]); };
        const Problem alone{{part(p.in.q), part(p.in.k), part(p.in.v), part(p.in.log_gate), part(p.in.beta), {}}, {}, part(p.grad_out), {}};
        const auto expected = run(alone);
        for (const size_t r : {0, 2, 3, 4, 5, 6})
          if (whole[r].defined()) {
            const double size = std::max(1.0, expected[r].abs().max().item<double>());
            EXPECT_LT((part(whole[r]) - expected[r]).abs().max().item<double>(), size * (dtype == at::kDouble ? 1e-12 : 1e-5)) << kNames[r];
          }
      }
      // Only the last document has a loss.
      p.grad_out.narrow(1, 0, 205).zero_();
      const auto grads = run(p);
      for (size_t r = 2; r < 7; ++r)
        if (grads[r].defined()) {
          EXPECT_EQ(grads[r].narrow(1, 0, 205).abs().max().item<double>(), 0) << kNames[r];
        }
    }
}

TEST(LinearAttentionChunks, of_any_length_give_the_same) {
  for (const auto variant : kVariants) {
    const auto p = problem(variant, {.seq = 150}, true);
    const auto whole = reference::linear_attention_forward(p.in, p.initial_state, 64);
    const auto grads = reference::linear_attention_backward(p.grad_out, p.grad_final_state, p.in, p.initial_state, 64);
    for (const int64_t chunk : {1, 2, 16, 256}) {
      const auto again = reference::linear_attention_forward(p.in, p.initial_state, chunk);
      EXPECT_LT(largest_error(again.out, whole.out), 1e-12);
      const auto g = reference::linear_attention_backward(p.grad_out, p.grad_final_state, p.in, p.initial_state, chunk);
      EXPECT_LT(largest_error(g.k, grads.k), 1e-11);
      if (g.log_gate.defined()) {
        EXPECT_LT(largest_error(g.log_gate, grads.log_gate), 1e-11);
      }
    }
  }
}

LinearAttentionInputs tokens(const LinearAttentionInputs& in, int64_t from, int64_t count) {
  const auto part = [&](const at::Tensor& x) { return !x.defined() || x.dim() == 1 ? x : x.narrow(1, from, count); };
  return {part(in.q), part(in.k), part(in.v), part(in.log_gate), part(in.beta), part(in.is_start)};
}

TEST(LinearAttentionMap, of_runs_compose_in_any_grouping) {
  for (const auto variant : kVariants)
    for (const bool is_packed : {false, true}) {
      const auto p = problem(variant, {.seq = 150}, is_packed);
      const auto whole = linear_attention_map(p.in);
      const auto a = linear_attention_map(tokens(p.in, 0, 37)), b = linear_attention_map(tokens(p.in, 37, 70)),
                 c = linear_attention_map(tokens(p.in, 107, 43));
      const auto state = linear_attention_forward(p.in, p.initial_state).final_state;
      for (const auto& map : {whole, compose(compose(a, b), c), compose(a, compose(b, c))}) {
        EXPECT_LT(largest_error(apply(map, p.initial_state), state), 1e-12);
        EXPECT_LT(largest_error(map.added, whole.added), 1e-12);
      }
    }
}

// The passes over a run whose states come late: what can be done before, and what they add.
TEST(LinearAttentionParts, make_the_whole) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto variant : kVariants)
      for (const bool is_packed : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}", kVariantNames[static_cast<int>(variant)], c10::toString(dtype)));
        auto p = stored(problem(variant, {.seq = 150}, is_packed), dtype);
        if (is_packed) p.in.is_start.narrow(1, 0, 30).zero_();
        const auto expected = run(stored(p, at::kDouble));
        const double tolerance = dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 1e-5 : 1e-2;
        const auto early = linear_attention_forward(p.in);
        const auto out = early.out.clone();
        add_linear_attention_of_state(out, p.in, p.initial_state);
        EXPECT_LT(norm_error(out, expected[0]), tolerance);
        const auto map = linear_attention_map(p.in);
        const auto own = linear_attention_state_gradient(p.grad_out, p.in);
        EXPECT_LT(norm_error(own + apply_transposed(map, p.grad_final_state), expected[7]), tolerance);
        if (has_delta(variant)) continue;
        auto grads = linear_attention_backward(p.grad_out, {}, p.in, {}, early.saved);
        add_gradients_of_states(grads, p.grad_out, p.in, p.initial_state, p.grad_final_state);
        const Results got = {expected[0], expected[1], grads.q, grads.k, grads.v, grads.log_gate, grads.beta, grads.initial_state};
        expect_close(got, expected, tolerance, norm_error);
      }
}

// One rank's prefix and suffix, as a sequence-parallel schedule makes them.
TEST(LinearAttentionParts, over_ranks_make_one_sequence) {
  for (const auto variant : kVariants) {
    const auto p = problem(variant, {.seq = 120}, true, false);
    const auto whole = run(p);
    constexpr int64_t kRanks = 4, kOwn = 30;
    std::vector<LinearAttentionInputs> in;
    std::vector<LinearAttentionMap> maps;
    std::vector<at::Tensor> own;
    for (int64_t r = 0; r < kRanks; ++r) {
      in.push_back(tokens(p.in, r * kOwn, kOwn));
      maps.push_back(linear_attention_map(in.back()));
      own.push_back(linear_attention_state_gradient(p.grad_out.narrow(1, r * kOwn, kOwn), in.back()));
    }
    for (size_t r = 0; r < kRanks; ++r) {
      auto state = at::zeros_like(own[0]), grad = at::zeros_like(own[0]);
      for (size_t j = 0; j < r; ++j) state = apply(maps[j], state);
      for (size_t j = kRanks - 1; j > r; --j) grad = apply_transposed(maps[j], grad) + own[j];
      const auto at = static_cast<int64_t>(r) * kOwn;
      const auto part = run({in[r], state, p.grad_out.narrow(1, at, kOwn), grad});
      for (const size_t i : {0, 2, 3, 4, 5, 6})
        if (whole[i].defined()) {
          EXPECT_LT(largest_error(part[i], whole[i].narrow(1, at, kOwn)), 1e-11) << kNames[i];
        }
    }
  }
}

TEST(LinearAttentionVariants, meet_where_their_gates_agree) {
  const auto p = problem(Variant::scalar_gate, {.seq = 150}, true);
  const auto with = [&](const at::Tensor& log_gate, const at::Tensor& beta = {}) {
    auto other = p;
    other.in.log_gate = log_gate;
    other.in.beta = beta;
    return run(other);
  };
  const auto same = [&](const Results& a, const Results& b) {
    for (size_t i = 0; i < 5; ++i) EXPECT_LT(largest_error(a[i], b[i]), 1e-12) << kNames[i];
  };
  same(with(at::zeros_like(p.in.log_gate)), with({}));
  same(with(at::zeros_like(p.in.q)), with({}));
  same(with(p.in.log_gate.unsqueeze(-1).expand_as(p.in.q).contiguous()), with(p.in.log_gate));
  same(with(at::full({3}, -0.25, at::kDouble)), with(at::full_like(p.in.log_gate, -0.25)));
  const auto beta = at::sigmoid(random({2, 150, 3})), by_channel = p.in.log_gate.unsqueeze(-1).expand_as(p.in.q).contiguous();
  same(with(by_channel, beta), with(p.in.log_gate, beta));
  same(with(at::zeros_like(p.in.q), beta), with({}, beta));
  // The sum over channels is the gate of their head.
  const auto of_channels = with(by_channel, beta), of_head = with(p.in.log_gate, beta);
  EXPECT_LT(largest_error(of_channels[5].sum(-1), of_head[5]), 1e-12);
  EXPECT_LT(largest_error(of_channels[6], of_head[6]), 1e-12);
  // Nothing is written: the state only decays.
  const auto none = at::zeros_like(p.in.log_gate);
  auto silent = p;
  silent.in.v = at::zeros_like(p.in.v);
  EXPECT_LT(largest_error(with(p.in.log_gate, none)[0], run(silent)[0]), 1e-12);
  EXPECT_LT(largest_error(with(p.in.log_gate, none)[1], run(silent)[1].clamp_min(-1e30)), 1e-12);
}

// A gate of 0 (-inf as a logarithm) at a chunk's first token isolates it from all before it.
TEST(LinearAttentionVariants, a_closed_gate_is_a_document_border) {
  for (const auto variant : {Variant::scalar_gate, Variant::diagonal_gate, Variant::gated_delta, Variant::kda})
    for (const auto dtype : {at::kDouble, at::kFloat}) {
      auto closed = stored(problem(variant, {.seq = 150}), dtype);
      auto cut = closed;
      closed.in.log_gate = closed.in.log_gate.clone();
      closed.in.log_gate.select(1, 64).fill_(-std::numeric_limits<double>::infinity());
      cut.in.is_start = at::zeros({2, 150}, at::kBool);
      cut.in.is_start.select(1, 64).fill_(true);
      const auto a = run(closed), b = run(cut);
      for (size_t i = 0; i < 8; ++i)
        if (a[i].defined()) {
          EXPECT_LT(largest_error(a[i], b[i].to(at::kDouble)), 1e-12) << kNames[i];
        }
    }
}

TEST(LinearAttentionVariants, no_decay_is_too_strong) {
  for (const auto variant : {Variant::retention, Variant::scalar_gate, Variant::diagonal_gate, Variant::gated_delta, Variant::kda})
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      auto p = problem(variant, {1, 16384, 1, 4, 4}, false, true);
      p.in.log_gate = at::full_like(p.in.log_gate, -20);
      for (const auto& x : run(stored(p, dtype)))
        if (x.defined()) {
          EXPECT_TRUE(at::isfinite(x).all().item<bool>()) << kVariantNames[static_cast<int>(variant)];
        }
      const auto map = linear_attention_map(stored(p, dtype).in);
      EXPECT_TRUE(at::isfinite(map.added).all().item<bool>());
    }
}

// Weak gates beside strong ones: differences of running sums would lose the weak ones' digits.
TEST(LinearAttentionVariants, weak_gates_beside_strong_ones_keep_their_digits) {
  for (const auto variant : {Variant::scalar_gate, Variant::diagonal_gate, Variant::gated_delta, Variant::kda}) {
    auto p = problem(variant, {.seq = 150});
    p.in.log_gate = p.in.log_gate * 1e-3;
    for (const int64_t t : {10, 30, 66, 70, 130}) p.in.log_gate.select(1, t).sub_(3000);
    expect_close(run(stored(p, at::kFloat)), oracle(p), 1e-5, largest_error);
  }
}

TEST(BidirectionalLinearAttention, reads_the_sum_over_the_whole_document) {
  const auto p = problem(Variant::basic, {.seq = 50}, true);
  const auto leaf = [](const at::Tensor& x) { return x.detach().clone().requires_grad_(); };
  for (const bool is_packed : {false, true}) {
    const auto q = leaf(p.in.q), k = leaf(p.in.k), v = leaf(p.in.v), q2 = leaf(q), k2 = leaf(k), v2 = leaf(v);
    const auto out = bidirectional_linear_attention(q, k, v, is_packed ? p.in.is_start : at::Tensor());
    auto document = at::zeros({2, 50}, at::kLong);
    if (is_packed) document = p.in.is_start.to(at::kLong).cumsum(1);
    const auto seen = document.unsqueeze(2).eq(document.unsqueeze(1)).unsqueeze(1);  // [batch, 1, seq, seq]
    const auto expected = at::einsum("bhij,bjhv->bihv", {at::einsum("bihd,bjhd->bhij", {q2, k2}) * seen, v2});
    EXPECT_LT(largest_error(out.detach(), expected.detach()), 1e-12);
    const auto got = gradients({out}, {q, k, v}, {p.grad_out}), wanted = gradients({expected}, {q2, k2, v2}, {p.grad_out});
    for (size_t i = 0; i < 3; ++i) EXPECT_LT(largest_error(got[i], wanted[i]), 1e-12);
  }
}

// The sums of all runs, exchanged: what a rank of several does.
TEST(BidirectionalLinearAttention, over_ranks_takes_full_sums_both_ways) {
  const auto p = problem(Variant::basic, {.seq = 40});
  const auto q = p.in.q.clone().requires_grad_(), k = p.in.k.clone().requires_grad_(), v = p.in.v.clone().requires_grad_();
  const auto whole = bidirectional_linear_attention(q, k, v);
  const auto wanted = gradients({whole}, {q, k, v}, {p.grad_out});
  const auto first = tokens(p.in, 0, 15), second = tokens(p.in, 15, 25);
  const auto sum = linear_attention_map(first).added + linear_attention_map(second).added;
  const auto of_sum = [&](const LinearAttentionInputs& in) {
    const auto out = at::zeros_like(in.v);
    add_linear_attention_of_state(out, in, sum);
    return out;
  };
  EXPECT_LT(largest_error(of_sum(first), whole.detach().narrow(1, 0, 15)), 1e-12);
  EXPECT_LT(largest_error(of_sum(second), whole.detach().narrow(1, 15, 25)), 1e-12);
  const auto grad = linear_attention_state_gradient(p.grad_out.narrow(1, 0, 15), first) +
                    linear_attention_state_gradient(p.grad_out.narrow(1, 15, 25), second);
  LinearAttentionGradients g{at::zeros_like(first.q), at::zeros_like(first.k), at::zeros_like(first.v), {}, {}, at::zeros_like(grad)};
  add_gradients_of_states(g, p.grad_out.narrow(1, 0, 15), first, sum, grad);
  EXPECT_LT(largest_error(g.q, wanted[0].narrow(1, 0, 15)), 1e-12);
  EXPECT_LT(largest_error(g.k, wanted[1].narrow(1, 0, 15)), 1e-12);
  EXPECT_LT(largest_error(g.v, wanted[2].narrow(1, 0, 15)), 1e-12);
}

TEST(LinearAttentionStep, token_by_token_is_the_whole) {
  for (const auto variant : kVariants) {
    const auto p = problem(variant, {.seq = 20}, true, false);
    const auto whole = run(p);
    at::Tensor state;
    for (int64_t t = 0; t < 20; ++t)
      EXPECT_LT(largest_error(linear_attention_step(tokens(p.in, t, 1), state), whole[0].narrow(1, t, 1)), 1e-11);
    EXPECT_LT(largest_error(state, whole[1]), 1e-12);
  }
}

TEST(LinearAttentionThreads, change_no_bit) {
  for (const auto variant : kVariants)
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto p = stored(problem(variant, {1, 2500, 3, 16, 16}, true), dtype);
      const int threads_before = at::get_num_threads();
      at::set_num_threads(1);
      const auto expected = run(p);
      for (const int threads : {2, 3, 7}) {
        at::set_num_threads(threads);
        const auto actual = run(p);
        for (size_t i = 0; i < 8; ++i)
          if (expected[i].defined()) {
            EXPECT_TRUE(at::equal(actual[i], expected[i])) << kNames[i] << ", " << threads << " threads";
          }
      }
      at::set_num_threads(threads_before);
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

TEST(LinearAttentionInputs, misfits_are_refused_with_their_shapes) {
  const auto call = [](const std::function<void(LinearAttentionInputs&)>& spoil, const at::Tensor& state = {}) {
    auto in = problem(Variant::gated_delta, {.seq = 5}, true).in;
    spoil(in);
    return refusal([&] { linear_attention_forward(in, state); });
  };
  using testing::HasSubstr;
  EXPECT_EQ(call([](auto&) {}), "not refused");
  EXPECT_THAT(call([](auto& in) { in.k = in.k.narrow(1, 0, 4); }), HasSubstr("[2, 4, 3, 8]"));
  EXPECT_THAT(call([](auto& in) { in.k = in.k.narrow(3, 0, 4); }), HasSubstr("[2, 5, 3, 4]"));
  EXPECT_THAT(call([](auto& in) { in.v = in.v.to(at::kFloat); }), HasSubstr("v is Float"));
  EXPECT_THAT(call([](auto& in) { in.v = at::Tensor(); }), HasSubstr("v must be [batch, seq, heads, dim]"));
  EXPECT_THAT(call([](auto& in) { in.log_gate = at::zeros({4}); }), HasSubstr("log_gate Float [4]"));
  EXPECT_EQ(call([](auto& in) { in.log_gate = at::zeros_like(in.q); }), "not refused");
  EXPECT_THAT(call([](auto& in) { in.beta = at::zeros({2, 5}); }), HasSubstr("beta [2, 5]"));
  EXPECT_THAT(call([](auto& in) { in.is_start = in.is_start.to(at::kInt); }), HasSubstr("is_start must be bool [2, 5]"));
  EXPECT_THAT(call([](auto&) {}, at::zeros({2, 3, 6, 8})), HasSubstr("[2, 3, 8, 6]"));
}

}  // namespace
}  // namespace ingot::kernels

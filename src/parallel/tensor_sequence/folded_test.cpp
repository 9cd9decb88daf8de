// Layers folded over a tensor_sequence axis against the same layers whole on one rank: outputs, and gradients of inputs and of every
// weight; traffic and number of operations to the last one. Ranks are threads.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "kernels/activation.h"
#include "kernels/differentiable.h"
#include "layers/embedding.h"
#include "layers/head.h"
#include "layers/linear.h"
#include "layers/softmax_attention.h"
#include "layers/test_tensors.h"
#include "parallel/tensor_sequence/folded_layer.h"
#include "parallel/tensor_sequence/folded_vocabulary.h"
#include "parallel/tensor_sequence/schedule.h"

namespace ingot::parallel {
namespace {

using namespace layers;

constexpr int64_t kBatch = 2;

struct Case {
  int ranks;
  int64_t seq = 24, hidden = 24, heads = 12, kv_heads = 12, dim = 8, ffn = 36, vocab = 60, window = 0, buckets = 1;
  bool zigzag = true, documents = true, biases = false;
  at::ScalarType dtype = at::kDouble;
};

std::string title(const testing::TestParamInfo<Case>& info) {
  const auto& c = info.param;
  return fmt::format("ranks{}_seq{}_heads{}_kv{}{}{}{}{}{}_{}", c.ranks, c.seq, c.heads, c.kv_heads,
                     c.window ? fmt::format("_window{}", c.window) : "", c.buckets > 1 ? fmt::format("_buckets{}", c.buckets) : "",
                     c.documents ? "_documents" : "", c.biases ? "_biases" : "", c.zigzag ? "" : "_contiguous", at::toString(c.dtype));
}

// One rank's view of a layer's parameters: rows or columns of random matrices that are the same on all ranks; all of them without axis.
class Weights {
 public:
  Weights(const Case& c, const TensorSequenceAxis& axis) : case_(c), axis_(axis) {}
  Parameter* rows(const std::string& name, int64_t rows, int64_t cols) {
    return add(name, {rows, cols}, axis_.is_on() ? tensor::Part{{axis_.share(rows)}, {{0, cols}}} : tensor::Part{});
  }
  Parameter* columns(const std::string& name, int64_t rows, int64_t cols) {
    return add(name, {rows, cols}, axis_.is_on() ? tensor::Part{{{0, rows}}, {axis_.share(cols)}} : tensor::Part{});
  }
  Parameter* vector(const std::string& name, int64_t size) {
    auto* p = add(name, {size}, axis_.is_on() ? tensor::Part{{axis_.share(size)}} : tensor::Part{});
    p->keeps_fp32 = true;
    return p;
  }
  void fill() {
    list.allocate(case_.dtype, device());
    const at::NoGradGuard no_grad;
    for (const auto& p : list.all())
      p->value.copy_(part_of(random(p->shape, 100 + std::hash<std::string>{}(p->name) % 1000) * 0.3, p->part));
  }
  at::Device device() const { return device::test_device(axis_.rank); }
  ParameterList list;

 private:
  Parameter* add(const std::string& name, tensor::Shape shape, tensor::Part part) {
    return &list.add({.name = name, .shape = std::move(shape), .part = std::move(part), .kind = Parameter::Kind::matrix});
  }
  const Case& case_;
  TensorSequenceAxis axis_;
};

struct Outcome {
  std::vector<at::Tensor> spread;                             // of tokens: output, gradients of inputs
  std::vector<std::pair<std::string, at::Tensor>> gradients;  // of weights
};

// A layer on one rank: from this rank's parts and tokens to what is compared.
using RankBody = std::function<Outcome(const Case&, const TensorSequenceAxis&, const ContextAxis&, Weights&)>;

class Folded : public ::testing::TestWithParam<Case> {
 protected:
  static double tolerance(const Case& c) { return c.dtype == at::kDouble ? 1e-12 : c.dtype == at::kFloat ? 1e-5 : 3e-2; }

  void compare(const RankBody& run) const {
    auto wide = GetParam();
    wide.dtype = at::kDouble;
    Weights whole(wide, {});
    const auto expected = run(wide, {}, {}, whole);
    const auto first = over_ranks(run);
    const auto& c = GetParam();
    const TokenOrder any{.size = c.ranks, .zigzag = c.zigzag};
    for (size_t i = 0; i < expected.spread.size(); ++i) {
      std::vector<at::Tensor> parts;
      for (const auto& rank : first) parts.push_back(rank.spread[i]);
      if (parts[0].dim() == 0) EXPECT_LT(error_of(at::stack(parts).sum(), expected.spread[i]), tolerance(c)) << "sum " << i;
      else EXPECT_LT(error_of(any.in_order(at::stack(parts), 1), expected.spread[i]), tolerance(c)) << "tensor " << i;
    }
    for (size_t i = 0; i < expected.gradients.size(); ++i) {
      const auto& name = expected.gradients[i].first;
      for (int rank = 0; rank < c.ranks; ++rank) {
        const auto& got = first[static_cast<size_t>(rank)].gradients[i].second;
        const TensorSequenceAxis axis{.rank = rank, .size = c.ranks};
        Weights part(c, axis);
        run_declarations_(part);
        EXPECT_LT(error_of(got, part_of(expected.gradients[i].second, part.list.get(name).part)), tolerance(c))
            << name << ", rank " << rank;
      }
    }
    const auto second = over_ranks(run);
    for (size_t rank = 0; rank < first.size(); ++rank)
      for (size_t i = 0; i < first[rank].gradients.size(); ++i)
        EXPECT_TRUE(at::equal(first[rank].gradients[i].second, second[rank].gradients[i].second)) << first[rank].gradients[i].first;
  }

  std::vector<Outcome> over_ranks(const RankBody& run) const {
    const auto& c = GetParam();
    std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks));
    comm::run_ranks(c.ranks, [&](comm::World& world) {
      auto& group = world.everyone();
      const TensorSequenceAxis axis{.rank = world.rank(), .size = c.ranks, .head_buckets = c.buckets, .group = &group};
      const ContextAxis tokens{{.rank = world.rank(), .size = c.ranks, .zigzag = c.zigzag}, &group};
      Weights weights(c, axis);
      outcomes[static_cast<size_t>(world.rank())] = run(c, axis, tokens, weights);
    });
    return outcomes;
  }

  static Outcome finished(std::vector<at::Tensor> spread, Weights& weights) {
    weights.list.collect_gradients();
    for (auto& tensor : spread) tensor = tensor.cpu();
    Outcome outcome{std::move(spread), {}};
    for (const auto& p : weights.list.all()) {
      EXPECT_TRUE(p->has_gradient) << p->name;
      outcome.gradients.emplace_back(p->name, p->grad.cpu());
    }
    return outcome;
  }

  std::function<void(Weights&)> run_declarations_;
};

SoftmaxAttention attention_of(const Case& c, Weights& w) {
  const int64_t q = c.heads * c.dim, kv = c.kv_heads * c.dim;
  SoftmaxAttention layer({.heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_dim = c.dim,
                          .window = c.window,
                          .rotary = {.rotated = c.dim},
                          .q = w.rows("q", q, c.hidden),
                          .k = w.rows("k", kv, c.hidden),
                          .v = w.rows("v", kv, c.hidden),
                          .o = w.columns("o", c.hidden, q)});
  if (c.biases) {
    layer.q_bias = w.vector("q_bias", q);
    layer.k_bias = w.vector("k_bias", kv);
    layer.v_bias = w.vector("v_bias", kv);
  }
  return layer;
}

Outcome run_attention(const Case& c, const TensorSequenceAxis& axis, const ContextAxis& tokens, Weights& weights,
                      const std::function<Outcome(std::vector<at::Tensor>, Weights&)>& finish) {
  const auto layer = attention_of(c, weights);
  weights.fill();
  const auto device = weights.device();
  const auto x = tokens.own_tokens(random({kBatch, c.seq, c.hidden}, 1).to(c.dtype)).to(device).clone().set_requires_grad(true);
  const auto grad = tokens.own_tokens(random({kBatch, c.seq, c.hidden}, 2).to(c.dtype)).to(device);
  Sequences sequences(kBatch, x.size(1), c.documents ? documents_of(kBatch, c.seq).to(device) : at::Tensor(), 0, device, tokens.schedule());
  const auto out = axis.is_on() ? TensorSequenceSchedule(axis, tokens).run(layer, x, sequences, {}) : layer(x, sequences, {});
  kernels::backward({out}, {grad});
  return finish({out.detach(), x.grad()}, weights);
}

TEST_P(Folded, attention_equals_that_of_one_rank) {
  run_declarations_ = [](Weights& w) { attention_of(GetParam(), w); };
  compare([](const Case& c, const auto& axis, const auto& tokens, Weights& weights) {
    return run_attention(c, axis, tokens, weights, [](auto spread, Weights& w) { return finished(std::move(spread), w); });
  });
}

struct Mlp {
  std::vector<Parameter*> weights;
  Parameter* down;
};

Mlp mlp_of(const Case& c, Weights& w) {
  Mlp mlp{{w.rows("gate", c.ffn, c.hidden), w.rows("up", c.ffn, c.hidden)}, w.columns("down", c.hidden, c.ffn)};
  if (c.biases) mlp.weights.insert(mlp.weights.end(), {w.vector("gate_bias", c.ffn), w.vector("up_bias", c.ffn)});
  return mlp;
}

at::Tensor activated(const at::Tensor& x, const ShardOfWeights& weights) {
  return kernels::glu(linear(x, {weights[0], weights[1]}, {weights.begin() + 2, weights.end()}));
}

TEST_P(Folded, gated_mlp_equals_that_of_one_rank) {
  run_declarations_ = [](Weights& w) { mlp_of(GetParam(), w); };
  compare([](const Case& c, const auto& axis, const auto& tokens, Weights& weights) {
    const auto mlp = mlp_of(c, weights);
    weights.fill();
    const auto x = tokens.own_tokens(random({kBatch, c.seq, c.hidden}, 3).to(c.dtype)).to(weights.device()).clone().set_requires_grad(true);
    const auto grad = tokens.own_tokens(random({kBatch, c.seq, c.hidden}, 4).to(c.dtype)).to(weights.device());
    const auto out =
        axis.is_on() ? folded_layer(x, {mlp.weights, mlp.down, activated}, axis) : linear(activated(x, mlp.weights), {mlp.down});
    kernels::backward({out}, {grad});
    return finished({out.detach(), x.grad()}, weights);
  });
}

TEST_P(Folded, embedding_and_loss_equal_those_of_one_rank) {
  run_declarations_ = [](Weights& w) { w.rows("table", GetParam().vocab, GetParam().hidden); };
  compare([](const Case& c, const auto& axis, const auto& tokens, Weights& weights) {
    auto* table = weights.rows("table", c.vocab, c.hidden);
    weights.fill();
    const auto numbers = random({kBatch, c.seq}, 5).mul(1000).abs().to(at::kLong);
    const auto ids = tokens.own_tokens(numbers.remainder(c.vocab)).to(weights.device());
    const auto targets =
        tokens.own_tokens(at::where(numbers.remainder(5).eq(0), -100, (numbers * 7).remainder(c.vocab))).to(weights.device());
    // A tied table: its gradient comes from both ends.
    const auto wide = c.dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto embedded = axis.is_on() ? folded_embedding(ids, *table, wide, axis) : embedding(ids, *table, wide);
    const auto hidden = at::tanh(embedded).to(c.dtype);
    const HeadRule rule = c.documents ? HeadRule{} : HeadRule{.logit_cap = 2, .z_loss = 0.1};
    const auto loss =
        axis.is_on() ? folded_head_loss(hidden, *table, targets, 0.01, axis, rule) : head_loss(hidden, *table, targets, 0.01, rule);
    kernels::backward({loss});
    return finished({embedded.detach(), loss.detach()}, weights);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int ranks : {2, 3, 4}) {
    all.push_back({.ranks = ranks});
    all.push_back({.ranks = ranks, .documents = false, .biases = true});
    all.push_back({.ranks = ranks, .zigzag = false});
    all.push_back({.ranks = ranks, .kv_heads = ranks, .window = 5, .biases = true});
  }
  all.push_back({.ranks = 2, .kv_heads = 4, .buckets = 2});
  all.push_back({.ranks = 3, .kv_heads = 6, .buckets = 5, .zigzag = false});
  all.push_back({.ranks = 4, .kv_heads = 2});  // two ranks share a kv head
  all.push_back({.ranks = 4, .kv_heads = 1, .biases = true});
  all.push_back({.ranks = 4, .seq = 8, .kv_heads = 4});  // a token a chunk
  all.push_back({.ranks = 8, .seq = 32, .heads = 8, .kv_heads = 8, .ffn = 40, .vocab = 80});
  all.push_back({.ranks = 2, .seq = 600, .kv_heads = 4, .dtype = at::kFloat});
  all.push_back({.ranks = 4, .seq = 304, .kv_heads = 4, .biases = true, .dtype = at::kFloat});
  all.push_back({.ranks = 2, .seq = 400, .kv_heads = 4, .dtype = at::kBFloat16});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, Folded, ::testing::ValuesIn(cases()), title);

TEST(FoldedAttention, refuses_kv_heads_that_ranks_cannot_share) {
  Case c{.ranks = 3, .kv_heads = 4};
  comm::run_ranks(3, [&](comm::World& world) {
    const TensorSequenceAxis axis{.rank = world.rank(), .size = 3, .group = &world.everyone()};
    const ContextAxis tokens{{.rank = world.rank(), .size = 3}, &world.everyone()};
    Weights list(c, axis);
    Sequences sequences(kBatch, 8, {}, 0, at::kCPU, tokens.schedule());
    const TensorSequenceSchedule schedule(axis, tokens);
    EXPECT_THROW(schedule.require_heads(c.heads, c.kv_heads, c.dim), base::ConfigError);
    EXPECT_THROW(schedule.run(attention_of(c, list), at::zeros({kBatch, 8, 24}), sequences, {}), base::ConfigError);
  });
}

// TSP (arXiv 2604.26294) with our backward: elements received and numbers of operations, forward and with backward, to the integer.
TEST(FoldedTraffic, is_what_the_schedule_says) {
  using comm::Kind;
  for (const int64_t buckets : {1, 2}) {
    for (const int64_t group : {1, 2}) {
      Case c{.ranks = 4, .seq = 16, .hidden = 16, .heads = 16, .kv_heads = 16 / group, .dim = 1, .buckets = buckets, .documents = false};
      c.dim = 2;
      const int64_t d = c.ranks, b = kBatch, q = c.heads * c.dim, w = c.kv_heads * c.dim, e = 8;
      const int64_t weights = c.hidden * (2 * q + 2 * w) / d, keys = 2 * b * c.seq * w / d;  // of one part; gathered
      comm::run_ranks(c.ranks, [&](comm::World& world) {
        auto& everyone = world.everyone();
        const TensorSequenceAxis axis{.rank = world.rank(), .size = c.ranks, .head_buckets = buckets, .group = &everyone};
        const ContextAxis tokens{{.rank = world.rank(), .size = c.ranks}, &everyone};
        Weights list(c, axis);
        const auto layer = attention_of(c, list);
        list.fill();
        const auto x = tokens.own_tokens(random({b, c.seq, c.hidden}, 1)).to(list.device()).clone().set_requires_grad(true);
        Sequences sequences(b, x.size(1), {}, 0, list.device(), tokens.schedule());
        const auto out = TensorSequenceSchedule(axis, tokens).run(layer, x, sequences, {});
        auto seen = world.counters().by_kind();
        EXPECT_EQ(seen.size(), 2u);
        EXPECT_EQ(seen[Kind::broadcast].calls, d);
        EXPECT_EQ(seen[Kind::broadcast].received_bytes, (d - 1) * weights * e);
        EXPECT_EQ(seen[Kind::all_gather].calls, d * buckets);
        EXPECT_EQ(seen[Kind::all_gather].received_bytes, (d - 1) * keys * e);
        kernels::backward({out}, {at::ones_like(out)});
        seen = world.counters().by_kind();
        EXPECT_EQ(seen.size(), 4u);
        EXPECT_EQ(seen[Kind::broadcast].received_bytes, 2 * (d - 1) * weights * e);
        EXPECT_EQ(seen[Kind::all_gather].received_bytes, 2 * (d - 1) * keys * e);
        EXPECT_EQ(seen[Kind::reduce_scatter].calls, d * buckets);
        EXPECT_EQ(seen[Kind::reduce_scatter].received_bytes, (d - 1) * keys * e);
        EXPECT_EQ(seen[Kind::reduce].calls, d);
        EXPECT_EQ(seen[Kind::reduce].received_bytes, (d - 1) * weights * e);
      });
      comm::run_ranks(c.ranks, [&](comm::World& world) {
        const TensorSequenceAxis axis{.rank = world.rank(), .size = c.ranks, .group = &world.everyone()};
        Weights list(c, axis);
        const auto mlp = mlp_of(c, list);
        list.fill();
        const auto x = random({b, c.seq / d, c.hidden}, 1).to(list.device()).set_requires_grad(true);
        const int64_t part = 3 * c.ffn * c.hidden / d;
        const auto out = folded_layer(x, {mlp.weights, mlp.down, activated}, axis);
        auto seen = world.counters().by_kind();
        EXPECT_EQ(seen.size(), 2u) << "no activation travels";
        EXPECT_EQ(seen[Kind::send].calls, d - 1);
        EXPECT_EQ(seen[Kind::receive].received_bytes, (d - 1) * part * e);
        kernels::backward({out}, {at::ones_like(out)});
        seen = world.counters().by_kind();
        EXPECT_EQ(seen.size(), 2u);
        EXPECT_EQ(seen[Kind::receive].calls, 3 * (d - 1));
        EXPECT_EQ(seen[Kind::receive].received_bytes, 3 * (d - 1) * part * e);
      });
    }
  }
}

}  // namespace
}  // namespace ingot::parallel

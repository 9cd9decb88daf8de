#include "models/decode/attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/rows_qk_norm.h"
#include "kernels/cpu/rows_rope.h"

namespace ingot::models::decode {
namespace {

using kernels::cpu::AttentionProblem;

// Slot::normed -> Slot::packed, and Slot::wide where attention is gated.
class ProjectStep final : public Step {
 public:
  ProjectStep(Program& program, const layers::SoftmaxAttention& a) {
    const std::pair<layers::Parameter*, layers::Parameter*> parts[] = {{a.q, a.q_bias}, {a.k, a.k_bias}, {a.v, a.v_bias}};
    for (const auto& [weight, bias] : parts) {
      parts_.push_back({&program.matrix(*weight), numbers(bias), width_});
      width_ += parts_.back().matrix->outputs;
    }
    if (a.gate) gate_ = &program.matrix(*a.gate);
  }
  void prepare(Pass& pass) override {
    pass.work.floats(Slot::packed, pass.rows() * width_);
    if (gate_) pass.work.floats(Slot::wide, pass.rows() * gate_->outputs);
  }
  void run(Pass& pass, const Worker& worker) override {
    std::array<Product, 4> products;
    size_t count = 0;
    for (const auto& part : parts_) products[count++] = {part.matrix, pass.work.floats(Slot::packed) + part.column, width_, part.bias};
    if (gate_) products[count++] = {gate_, pass.work.floats(Slot::wide), gate_->outputs, nullptr};
    multiply(pass, {pass.normed(), pass.hidden, pass.rows()}, std::span(products.data(), count), worker);
  }

 private:
  struct Part {
    const Matrix* matrix;
    const float* bias;
    int64_t column;
  };
  std::vector<Part> parts_;
  const Matrix* gate_ = nullptr;
  int64_t width_ = 0;
};

// Slot::packed -> Slot::queries, keys, values: heads that are normed and turned.
class TurnStep final : public Step {
 public:
  TurnStep(Program& program, const layers::SoftmaxAttention& a)
      : heads_(a.heads), kv_heads_(a.kv_heads), head_dim_(a.head_dim), eps_(a.norm_eps), rotations_(program.rotations(a.rotary)) {
    const auto weight = [&](const layers::Parameter* norm) {
      return norm == nullptr ? at::Tensor() : a.norm_adds_one ? norm->value + 1 : norm->value;
    };
    q_norm_ = weight(a.q_norm), k_norm_ = weight(a.k_norm);
  }
  void prepare(Pass& pass) override {
    rotations_->prepare(pass);
    pass.work.floats(Slot::queries, pass.rows() * heads_ * head_dim_);
    pass.work.floats(Slot::keys, pass.rows() * kv_heads_ * head_dim_);
    pass.work.floats(Slot::values, pass.rows() * kv_heads_ * head_dim_);
    pass.work.floats(Slot::log_sum_exp, pass.rows() * (heads_ + kv_heads_));
  }
  void run(Pass& pass, const Worker& worker) override {
    const auto own = share_of_rows(pass.rows(), worker);
    float *packed = pass.work.floats(Slot::packed), *q = pass.work.floats(Slot::queries), *k = pass.work.floats(Slot::keys),
          *v = pass.work.floats(Slot::values);
    if (!q_norm_.defined()) {
      const kernels::cpu::SplitRotateProblem p{.rows = pass.rows(),
                                               .heads = heads_,
                                               .kv_heads = kv_heads_,
                                               .head_dim = head_dim_,
                                               .half = rotations_->half(),
                                               .table_rows = pass.rows(),
                                               .is_bf16 = false,
                                               .cosine = rotations_->cosine(),
                                               .sine = rotations_->sine(),
                                               .packed = packed,
                                               .q = q,
                                               .k = k,
                                               .v = v};
      kernels::cpu::split_rotate_forward(p, own.begin, own.end);
      return;
    }
    kernels::cpu::QkNormProblem p{};
    p.rows = p.table_rows = pass.rows(), p.head_dim = head_dim_, p.half = rotations_->half(), p.kv_heads = kv_heads_, p.eps = eps_;
    p.cosine = rotations_->cosine(), p.sine = rotations_->sine(), p.packed = packed;
    p.q = {.heads = heads_, .run = q_norm_.size(0), .weight = q_norm_.const_data_ptr<float>(), .split = q};
    p.k = {.heads = kv_heads_, .run = k_norm_.size(0), .weight = k_norm_.const_data_ptr<float>(), .split = k};
    p.inverse = pass.work.floats(Slot::log_sum_exp);
    kernels::cpu::qk_norm_forward(p, own.begin, own.end);
    const int64_t width = kv_heads_ * head_dim_, all = heads_ * head_dim_ + 2 * width;
    for (int64_t row = own.begin; row < own.end; ++row) std::copy_n(packed + (row + 1) * all - width, width, v + row * width);
  }

 private:
  const int64_t heads_, kv_heads_, head_dim_;
  const double eps_;
  at::Tensor q_norm_, k_norm_;
  const std::shared_ptr<Rotations> rotations_;
};

// What both steps of attention know of a pass.
struct Attended {
  Heads heads;
  std::vector<AttentionProblem> problems;   // by token
  std::vector<int32_t> visible_from;        // by token
  std::vector<int64_t> first_task;          // by token, and behind them all: one for each kv head and chunk of keys
  at::Tensor like;                          // [1, 0, kv_heads, head_dim], as the cache has keys and values
  at::Tensor half_queries, half_out;        // of a cache in bf16
  std::vector<std::vector<float>> scratch;  // by worker

  bool is_bf16() const { return heads.dtype == at::kBFloat16; }
};

uint16_t rounded(float x) {
  const at::BFloat16 half(x);
  return half.x;
}

// Keys and values of the pass to the cache; then each chunk of keys of each token.
class ScoreStep final : public Step {
 public:
  explicit ScoreStep(std::shared_ptr<Attended> shared) : shared_(std::move(shared)) {}

  void prepare(Pass& pass) override {
    auto& s = *shared_;
    const auto& h = s.heads;
    const int64_t rows = pass.rows(), d = h.head_dim;
    for (size_t i = 0; i < pass.tokens.size(); ++i) {
      const auto& token = pass.tokens[i];
      if (token.first != static_cast<int64_t>(i)) continue;
      auto& cache = cache_of(pass, token);
      cache.grow(token.length, s.like, s.like);
    }
    if (s.is_bf16() && (!s.half_queries.defined() || s.half_queries.size(0) < rows))
      s.half_queries = at::empty({rows, h.heads, d}, at::kBFloat16), s.half_out = at::empty_like(s.half_queries);
    pass.work.floats(Slot::attended, rows * h.heads * d);
    pass.work.floats(Slot::log_sum_exp, rows * h.heads);
    s.problems.assign(static_cast<size_t>(rows), {});
    s.visible_from.resize(static_cast<size_t>(rows));
    s.first_task.assign(1, 0);
    int64_t partials = 0;
    for (int64_t i = 0; i < rows; ++i) partials += describe(pass, i);
    float* place = pass.work.floats(Slot::partials, partials);
    for (auto& p : s.problems) {
      p.decode_partials = place;
      place += p.heads * p.decode_chunks() * (16 + p.value_width());
    }
    const auto size = static_cast<size_t>(kernels::cpu::attention_tiles(kernels::cpu::best_isa()).decode_scratch(s.problems[0]));
    s.scratch.resize(pass.words.size());
    for (auto& area : s.scratch)
      if (area.size() < size) area.resize(size);
  }

  void run(Pass& pass, const Worker& worker) override {
    auto& s = *shared_;
    const auto own = share_of_rows(pass.rows(), worker);
    for (int64_t row = own.begin; row < own.end; ++row) remember(pass, row);
    worker.wait_for_all();
    const auto& tiles = kernels::cpu::attention_tiles(kernels::cpu::best_isa());
    size_t token = 0;
    for (int64_t task = worker.index; task < s.first_task.back(); task += worker.count) {
      while (task >= s.first_task[token + 1]) ++token;
      tiles.decode(s.problems[token], task - s.first_task[token], s.scratch[static_cast<size_t>(worker.index)].data());
    }
  }

 private:
  layers::KeyValueCache& cache_of(const Pass& pass, const Token& token) const {
    return (*pass.caches[static_cast<size_t>(token.sequence)])[static_cast<size_t>(shared_->heads.layer)].key_values;
  }

  // Returns how many floats the token's partial results take.
  int64_t describe(Pass& pass, int64_t i) {
    auto& s = *shared_;
    const auto& h = s.heads;
    const auto& token = pass.tokens[static_cast<size_t>(i)];
    auto& cache = cache_of(pass, token);
    auto& p = s.problems[static_cast<size_t>(i)];
    p.batch = p.q_len = 1, p.k_len = token.position + 1, p.heads = h.heads, p.kv_heads = h.kv_heads, p.head_dim = p.value_dim = h.head_dim;
    p.query_offset = token.position;
    p.scale = static_cast<float>(h.rule.scale), p.cap = static_cast<float>(h.rule.cap), p.is_bf16 = s.is_bf16();
    if (h.window > 0 && p.k_len > h.window) {
      auto& from = s.visible_from[static_cast<size_t>(i)] = static_cast<int32_t>(p.k_len - h.window);
      p.visible_from = &from;
    }
    const auto rows_of = [&](void* data, int64_t heads) {
      return kernels::cpu::AttentionRows{data, 0, heads * h.head_dim, h.head_dim, h.head_dim};
    };
    p.k = p.v = {nullptr, 0, h.head_dim, kernels::kPageTokens * h.head_dim, h.head_dim};
    p.k.pages = cache.key_pages(), p.v.pages = cache.value_pages();
    const int64_t first = i * h.heads * h.head_dim;
    p.q = rows_of(s.is_bf16() ? static_cast<void*>(s.half_queries.data_ptr<at::BFloat16>() + first)
                              : static_cast<void*>(pass.work.floats(Slot::queries) + first),
                  h.heads);
    p.out = rows_of(s.is_bf16() ? static_cast<void*>(s.half_out.data_ptr<at::BFloat16>() + first)
                                : static_cast<void*>(pass.work.floats(Slot::attended) + first),
                    h.heads);
    p.log_sum_exp = pass.work.floats(Slot::log_sum_exp) + i * h.heads;
    s.first_task.push_back(s.first_task.back() + h.kv_heads * p.decode_chunks());
    return p.heads * p.decode_chunks() * (16 + p.value_width());
  }

  void remember(Pass& pass, int64_t row) {
    auto& s = *shared_;
    const auto& h = s.heads;
    const auto& token = pass.tokens[static_cast<size_t>(row)];
    auto& cache = cache_of(pass, token);
    const int64_t width = h.kv_heads * h.head_dim;
    const auto page = static_cast<size_t>(token.position / kernels::kPageTokens);
    void *const keys = cache.key_pages()[page], *const values = cache.value_pages()[page];
    const float *k = pass.work.floats(Slot::keys) + row * width, *v = pass.work.floats(Slot::values) + row * width;
    const auto round = [](const float* from, int64_t count, at::BFloat16* to) {
      for (int64_t i = 0; i < count; ++i) to[i].x = rounded(from[i]);
    };
    for (int64_t head = 0; head < h.kv_heads; ++head) {
      const int64_t from = head * h.head_dim, to = (head * kernels::kPageTokens + token.position % kernels::kPageTokens) * h.head_dim;
      if (s.is_bf16()) {
        round(k + from, h.head_dim, static_cast<at::BFloat16*>(keys) + to);
        round(v + from, h.head_dim, static_cast<at::BFloat16*>(values) + to);
      } else {
        std::copy_n(k + from, h.head_dim, static_cast<float*>(keys) + to);
        std::copy_n(v + from, h.head_dim, static_cast<float*>(values) + to);
      }
    }
    const int64_t all = h.heads * h.head_dim;
    if (s.is_bf16()) round(pass.work.floats(Slot::queries) + row * all, all, s.half_queries.data_ptr<at::BFloat16>() + row * all);
  }

  const std::shared_ptr<Attended> shared_;
};

// The chunks of each head put together, into Slot::attended.
class GatherStep final : public Step {
 public:
  GatherStep(std::shared_ptr<Attended> shared, bool gates, const float* sinks) : shared_(std::move(shared)), gates_(gates), sinks_(sinks) {}
  void run(Pass& pass, const Worker& worker) override {
    auto& s = *shared_;
    const int64_t heads = s.heads.heads, d = s.heads.head_dim;
    const auto& tiles = kernels::cpu::attention_tiles(kernels::cpu::best_isa());
    for (int64_t item = worker.index; item < pass.rows() * heads; item += worker.count) {
      const int64_t row = item / heads, head = item % heads;
      tiles.decode_join(s.problems[static_cast<size_t>(row)], head);
      float* out = pass.work.floats(Slot::attended) + item * d;
      if (s.is_bf16())
        for (int64_t i = 0; i < d; ++i) out[i] = s.half_out.data_ptr<at::BFloat16>()[item * d + i];
      if (sinks_) {
        // What has no value takes its share of the softmax.
        const float lse = pass.work.floats(Slot::log_sum_exp)[item], share = 1 / (1 + std::exp(sinks_[head] - lse));
        for (int64_t i = 0; i < d; ++i) out[i] *= share;
      }
      if (gates_) {
        const float* gate = pass.work.floats(Slot::wide) + item * d;
        for (int64_t i = 0; i < d; ++i) out[i] /= 1 + std::exp(-gate[i]);
      }
    }
  }

 private:
  const std::shared_ptr<Attended> shared_;
  const bool gates_;
  const float* const sinks_;
};

class OutputStep final : public Step {
 public:
  OutputStep(const Matrix& matrix, const float* bias) : matrix_(matrix), bias_(bias) {}
  void run(Pass& pass, const Worker& worker) override {
    const Product product{&matrix_, pass.branch(), pass.hidden, bias_};
    multiply(pass, {pass.work.floats(Slot::attended), matrix_.inputs, pass.rows()}, {&product, 1}, worker);
  }

 private:
  const Matrix& matrix_;
  const float* const bias_;
};

}  // namespace

bool add_softmax_attention(Program& program, const layers::SoftmaxAttention& a, const layers::Parameter* out_bias, int64_t layer) {
  if (!program.takes({a.q, a.k, a.v, a.o, a.gate}) || a.repeated) return false;
  program.add<ProjectStep>(program, a);
  program.add<TurnStep>(program, a);
  const auto heads = a.of_all_ranks();
  add_attention(program,
                {.layer = layer,
                 .heads = a.heads,
                 .kv_heads = a.kv_heads,
                 .head_dim = a.head_dim,
                 .window = a.window,
                 .rule = heads.rule,
                 .dtype = a.q->value.scalar_type()},
                a.gate != nullptr, numbers(a.sinks));
  add_output(program, *a.o, out_bias);
  return true;
}

void add_attention(Program& program, const Heads& heads, bool gates, const float* sinks) {
  const auto shared = std::make_shared<Attended>();
  shared->heads = heads;
  shared->like = at::empty({1, 0, heads.kv_heads, heads.head_dim}, heads.dtype);
  program.add<ScoreStep>(shared);
  program.add<GatherStep>(shared, gates, sinks);
}

void add_output(Program& program, layers::Parameter& weight, const layers::Parameter* bias) {
  program.add<OutputStep>(program.matrix(weight), numbers(bias));
}

}  // namespace ingot::models::decode

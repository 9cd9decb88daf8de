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

uint16_t rounded(float x) {
  const at::BFloat16 half(x);
  return half.x;
}

// Keys and values of the pass to the cache; then the tokens of each sequence, a few together, against chunks of its keys, and the chunks
// put together, into Slot::attended. A token's numbers do not depend on which tokens go with it.
class AttendStep final : public Step {
 public:
  AttendStep(const Heads& heads, bool gates, const float* sinks)
      : heads_(heads), gates_(gates), sinks_(sinks), like_(at::empty({1, 0, heads.kv_heads, heads.head_dim}, heads.dtype)) {}

  void prepare(Pass& pass) override {
    const int64_t rows = pass.rows(), d = heads_.head_dim;
    for (size_t i = 0; i < pass.tokens.size(); ++i) {
      const auto& token = pass.tokens[i];
      if (token.first == static_cast<int64_t>(i)) cache_of(pass, token).grow(token.length, like_, like_);
    }
    if (is_bf16() && (!half_queries_.defined() || half_queries_.size(0) < rows))
      half_queries_ = at::empty({rows, heads_.heads, d}, at::kBFloat16), half_out_ = at::empty_like(half_queries_);
    pass.work.floats(Slot::attended, rows * heads_.heads * d);
    pass.work.floats(Slot::log_sum_exp, rows * heads_.heads);
    visible_from_.assign(static_cast<size_t>(rows), 0);
    cut(pass);
    size_t scratch = 0;
    for (size_t i = 0; i < rounds_.back(); ++i) scratch = std::max(scratch, static_cast<size_t>(runs_[i].problem.scratch_floats));
    scratch_.resize(pass.words.size());
    for (auto& area : scratch_)
      if (area.size() < scratch) area.resize(scratch);
  }

  void run(Pass& pass, const Worker& worker) override {
    const auto own = share_of_rows(pass.rows(), worker);
    for (int64_t row = own.begin; row < own.end; ++row) remember(pass, row);
    worker.wait_for_all();
    const auto& tiles = kernels::cpu::best_attention_tiles(heads_.dtype);
    float* const scratch = scratch_[static_cast<size_t>(worker.index)].data();
    for (size_t round = 0; round + 1 < rounds_.size(); ++round) {
      if (round > 0) worker.wait_for_all();  // until the partial results of the round before are no longer needed
      const size_t begin = rounds_[round], end = rounds_[round + 1];
      size_t at = begin;
      for (int64_t task = runs_[begin].first_task + worker.index; task < runs_[end].first_task; task += worker.count) {
        while (task >= runs_[at + 1].first_task) ++at;
        tiles.decode(runs_[at].problem, task - runs_[at].first_task, scratch);
      }
      worker.wait_for_all();
      at = begin;
      for (int64_t item = runs_[begin].first * heads_.heads + worker.index; item < runs_[end].first * heads_.heads; item += worker.count) {
        const int64_t row = item / heads_.heads, head = item % heads_.heads;
        while (row >= runs_[at + 1].first) ++at;
        gather(pass, tiles, runs_[at], row - runs_[at].first, head);
      }
    }
  }

 private:
  static constexpr int64_t kRows = 32;              // queries of one kv head that go together
  static constexpr int64_t kRoundFloats = 4 << 20;  // of partial results
  struct Run {                                      // tokens of one sequence, one behind another; the last one of all is empty
    AttentionProblem problem;
    int64_t first = 0;       // row
    int64_t first_task = 0;  // one for each kv head and chunk of keys
  };

  bool is_bf16() const { return heads_.dtype == at::kBFloat16; }
  layers::KeyValueCache& cache_of(const Pass& pass, const Token& token) const {
    return (*pass.caches[static_cast<size_t>(token.sequence)])[static_cast<size_t>(heads_.layer)].key_values;
  }

  // The pass in runs, and those in rounds, whose partial results share a place.
  void cut(Pass& pass) {
    runs_.clear();
    rounds_.assign(1, 0);
    const int64_t rows = pass.rows(), most = std::max<int64_t>(1, kRows / (heads_.heads / heads_.kv_heads));
    std::vector<int64_t> places;
    int64_t tasks = 0, floats = 0, largest = 0;
    for (int64_t row = 0, count; row < rows; row += count) {
      const auto& token = pass.tokens[static_cast<size_t>(row)];
      count = std::min(most, token.first + token.length - pass.tokens[static_cast<size_t>(token.first)].position - row);
      const auto& p = runs_.emplace_back(Run{describe(pass, row, count), row, tasks}).problem;
      const int64_t needs = p.heads * p.q_len * p.decode_chunks() * (16 + p.value_width());
      if (floats > 0 && floats + needs > kRoundFloats) rounds_.push_back(runs_.size() - 1), floats = 0;
      places.push_back(floats);
      floats += needs;
      largest = std::max(largest, floats);
      tasks += p.kv_heads * p.decode_chunks();
    }
    rounds_.push_back(runs_.size());
    float* const partials = pass.work.floats(Slot::partials, largest);
    for (size_t i = 0; i < runs_.size(); ++i) runs_[i].problem.decode_partials = partials + places[i];
    runs_.push_back({{}, rows, tasks});
  }

  AttentionProblem describe(Pass& pass, int64_t first, int64_t count) {
    const auto& h = heads_;
    const auto& token = pass.tokens[static_cast<size_t>(first)];
    auto& cache = cache_of(pass, token);
    AttentionProblem p{};
    p.batch = 1, p.q_len = count, p.k_len = token.position + count, p.heads = h.heads, p.kv_heads = h.kv_heads;
    p.head_dim = p.value_dim = h.head_dim;
    p.query_offset = token.position;
    p.scale = static_cast<float>(h.rule.scale), p.cap = static_cast<float>(h.rule.cap), p.is_bf16 = is_bf16();
    if (h.window > 0 && p.k_len > h.window) {
      for (int64_t i = 0; i < count; ++i)
        visible_from_[static_cast<size_t>(first + i)] = static_cast<int32_t>(std::max<int64_t>(0, token.position + i + 1 - h.window));
      p.visible_from = visible_from_.data() + first;
    }
    const auto rows_of = [&](void* data, int64_t heads) {
      return kernels::cpu::AttentionRows{data, 0, heads * h.head_dim, h.head_dim, h.head_dim};
    };
    p.k = p.v = {nullptr, 0, h.head_dim, kernels::kPageTokens * h.head_dim, h.head_dim};
    p.k.pages = cache.key_pages(), p.v.pages = cache.value_pages();
    const int64_t at = first * h.heads * h.head_dim;
    p.q = rows_of(is_bf16() ? static_cast<void*>(half_queries_.data_ptr<at::BFloat16>() + at)
                            : static_cast<void*>(pass.work.floats(Slot::queries) + at),
                  h.heads);
    p.out = rows_of(
        is_bf16() ? static_cast<void*>(half_out_.data_ptr<at::BFloat16>() + at) : static_cast<void*>(pass.work.floats(Slot::attended) + at),
        h.heads);
    p.log_sum_exp = pass.work.floats(Slot::log_sum_exp) + first * h.heads;
    p.pass = kernels::cpu::AttentionPass::decode;
    kernels::cpu::best_attention_tiles(heads_.dtype).lay_out(p);
    return p;
  }

  void remember(Pass& pass, int64_t row) {
    const auto& h = heads_;
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
      if (is_bf16()) {
        round(k + from, h.head_dim, static_cast<at::BFloat16*>(keys) + to);
        round(v + from, h.head_dim, static_cast<at::BFloat16*>(values) + to);
      } else {
        std::copy_n(k + from, h.head_dim, static_cast<float*>(keys) + to);
        std::copy_n(v + from, h.head_dim, static_cast<float*>(values) + to);
      }
    }
    const int64_t all = h.heads * h.head_dim;
    if (is_bf16()) round(pass.work.floats(Slot::queries) + row * all, all, half_queries_.data_ptr<at::BFloat16>() + row * all);
  }

  // One head of one token of a run.
  void gather(Pass& pass, const kernels::cpu::AttentionTiles& tiles, const Run& run, int64_t i, int64_t head) const {
    const int64_t d = heads_.head_dim, task = head * run.problem.q_len + i, item = (run.first + i) * heads_.heads + head;
    tiles.decode_join(run.problem, task);
    float* out = pass.work.floats(Slot::attended) + item * d;
    if (is_bf16()) {
      const at::BFloat16* const from = half_out_.const_data_ptr<at::BFloat16>() + item * d;
      for (int64_t c = 0; c < d; ++c) out[c] = from[c];
    }
    if (sinks_) {
      // What has no value takes its share of the softmax.
      const float share = 1 / (1 + std::exp(sinks_[head] - run.problem.log_sum_exp[task]));
      for (int64_t c = 0; c < d; ++c) out[c] *= share;
    }
    if (gates_) {
      const float* gate = pass.work.floats(Slot::wide) + item * d;
      for (int64_t c = 0; c < d; ++c) out[c] /= 1 + std::exp(-gate[c]);
    }
  }

  const Heads heads_;
  const bool gates_;
  const float* const sinks_;
  const at::Tensor like_;               // [1, 0, kv_heads, head_dim], as the cache has keys and values
  at::Tensor half_queries_, half_out_;  // of a cache in bf16
  std::vector<Run> runs_;
  std::vector<size_t> rounds_;               // begins, and the end of the last one
  std::vector<int32_t> visible_from_;        // by token
  std::vector<std::vector<float>> scratch_;  // by worker
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

void add_attention(Program& program, const Heads& heads, bool gates, const float* sinks) { program.add<AttendStep>(heads, gates, sinks); }

void add_output(Program& program, layers::Parameter& weight, const layers::Parameter* bias) {
  program.add<OutputStep>(program.matrix(weight), numbers(bias));
}

}  // namespace ingot::models::decode

#include "models/decode/feed_forward.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/rows_activation.h"

namespace ingot::models::decode {
namespace {

// A worker's columns of gate and up, side by side: `at` is where its own area of [rows, 2 * columns] begins.
struct GateArea {
  tensor::Range own;
  float* at = nullptr;
};
GateArea gate_area(Pass& pass, int64_t rows, int64_t ffn, const Worker& worker) {
  const auto own = own_share(ffn, worker);
  return {own, pass.work.floats(Slot::gate_up) + 2 * rows * own.begin};
}

// act(gate) * up * row_weight of the area, in place, then to the worker's columns of Slot::activated [rows, ffn].
void activate(Pass& pass, const GateArea& area, int64_t rows, int64_t first_row, int64_t ffn, kernels::Gate kind, const float* row_weight) {
  const int64_t width = area.own.size();
  const kernels::cpu::GluProblem p{.rows = rows,
                                   .width = width,
                                   .is_bf16 = false,
                                   .gate = kind,
                                   .gate_up = area.at,
                                   .row_weight = row_weight,
                                   .out = area.at,
                                   .grad = nullptr,
                                   .grad_gate_up = nullptr,
                                   .grad_row_weight = nullptr};
  kernels::cpu::glu_forward(p, 0, rows);
  float* to = pass.work.floats(Slot::activated) + first_row * ffn + area.own.begin;
  for (int64_t row = 0; row < rows; ++row) std::copy_n(area.at + row * width, width, to + row * ffn);
}

class GateStep final : public Step {
 public:
  GateStep(Program& program, const GatedMlp& m)
      : gate_(program.matrix(*m.gate)),
        up_(program.matrix(*m.up)),
        gate_bias_(numbers(m.gate_bias)),
        up_bias_(numbers(m.up_bias)),
        kind_(m.kind) {}
  void prepare(Pass& pass) override {
    pass.work.floats(Slot::gate_up, 2 * pass.rows() * gate_.outputs);
    pass.work.floats(Slot::activated, pass.rows() * gate_.outputs);
  }
  void run(Pass& pass, const Worker& worker) override {
    const int64_t rows = pass.rows(), ffn = gate_.outputs;
    const auto area = gate_area(pass, rows, ffn, worker);
    const int64_t width = area.own.size();
    if (width == 0) return;
    // Outputs [own.begin, own.end) come to columns 0 to width, and behind them those of up.
    const Product products[] = {{&gate_, area.at - area.own.begin, 2 * width, gate_bias_},
                                {&up_, area.at + width - area.own.begin, 2 * width, up_bias_}};
    multiply(pass, {pass.normed(), pass.hidden, rows}, products, worker);
    activate(pass, area, rows, 0, ffn, kind_, nullptr);
  }

 private:
  const Matrix &gate_, &up_;
  const float *const gate_bias_, *const up_bias_;
  const kernels::Gate kind_;
};

class DownStep final : public Step {
 public:
  DownStep(Program& program, const GatedMlp& m) : down_(program.matrix(*m.down)), bias_(numbers(m.down_bias)), is_beside_(m.is_beside) {
    if (m.weight_of_branch) weight_ = m.weight_of_branch->value.to(at::kFloat).flatten().contiguous();
  }
  void prepare(Pass& pass) override {
    if (is_beside_) pass.work.floats(Slot::wide, pass.rows() * pass.hidden);
  }
  void run(Pass& pass, const Worker& worker) override {
    const int64_t rows = pass.rows(), hidden = pass.hidden;
    float* out = is_beside_ ? pass.work.floats(Slot::wide) : pass.branch();
    const Product product{&down_, out, hidden, bias_};
    multiply(pass, {pass.work.floats(Slot::activated), down_.inputs, rows}, {&product, 1}, worker);
    if (!is_beside_) return;
    const auto own = own_share(hidden, worker);
    for (int64_t row = 0; row < rows; ++row) {
      float share = 1;
      if (weight_.defined()) {
        const float *x = pass.normed() + row * hidden, *w = weight_.const_data_ptr<float>();
        double sum = 0;
        for (int64_t i = 0; i < hidden; ++i) sum += static_cast<double>(x[i]) * w[i];
        share = static_cast<float>(1 / (1 + std::exp(-sum)));
      }
      for (int64_t i = own.begin; i < own.end; ++i) pass.branch()[row * hidden + i] += share * out[row * hidden + i];
    }
  }

 private:
  const Matrix& down_;
  const float* const bias_;
  const bool is_beside_;
  at::Tensor weight_;  // [hidden]
};

// x of `from` times a router's matrix, with what follows on the worker's own outputs.
class RouterProductStep final : public Step {
 public:
  enum class Then { nothing, gelu };
  RouterProductStep(Program& program, layers::Parameter& weight, const layers::Parameter* bias, Slot from, Slot to, Then then)
      : matrix_(program.matrix(weight)), bias_(numbers(bias)), from_(from), to_(to), then_(then) {}
  void prepare(Pass& pass) override { pass.work.floats(to_, pass.rows() * matrix_.outputs); }
  void run(Pass& pass, const Worker& worker) override {
    float* out = pass.work.floats(to_);
    const Product product{&matrix_, out, matrix_.outputs, bias_};
    multiply(pass, {pass.work.floats(from_), matrix_.inputs, pass.rows()}, {&product, 1}, worker);
    if (then_ == Then::nothing) return;
    const auto own = own_share(matrix_.outputs, worker);
    for (int64_t row = 0; row < pass.rows(); ++row)
      for (int64_t i = own.begin; i < own.end; ++i) {
        float& x = out[row * matrix_.outputs + i];
        x = 0.5f * x * (1 + std::erf(x * 0.70710678f));
      }
  }

 private:
  const Matrix& matrix_;
  const float* const bias_;
  const Slot from_, to_;
  const Then then_;
};

// The state that runs along the depth, and its norm.
class RouterStateStep final : public Step {
 public:
  RouterStateStep(const layers::RouterParameters& router, double eps)
      : width_(router.norm_weight->shape[0]), scale_(numbers(router.state_scale)), norm_(numbers(router.norm_weight)), eps_(eps) {}
  void prepare(Pass& pass) override {
    pass.work.floats(Slot::router_state, pass.rows() * width_);
    pass.work.floats(Slot::router_b, pass.rows() * width_);
  }
  void run(Pass& pass, const Worker& worker) override {
    const auto own = share_of_rows(pass.rows(), worker);
    for (int64_t row = own.begin; row < own.end; ++row) {
      float *state = pass.work.floats(Slot::router_state) + row * width_, *normed = pass.work.floats(Slot::router_b) + row * width_;
      const float* added = pass.work.floats(Slot::router_a) + row * width_;
      double squares = 0;
      for (int64_t i = 0; i < width_; ++i) {
        state[i] = scale_ ? added[i] + scale_[i] * state[i] : added[i];
        squares += static_cast<double>(state[i]) * state[i];
      }
      const auto inverse = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width_) + eps_));
      for (int64_t i = 0; i < width_; ++i) normed[i] = state[i] * inverse * norm_[i];
    }
  }

 private:
  const int64_t width_;
  const float *const scale_, *const norm_;
  const double eps_;
};

// Slot::logits -> the choices, by one worker: a few numbers for each token.
class ChooseStep final : public Step {
 public:
  ChooseStep(std::shared_ptr<Choices> choices, kernels::ExpertRule rule, const layers::Parameter& bias)
      : choices_(std::move(choices)), rule_(rule), classes_(bias.shape[0]), bias_(numbers(&bias)) {}
  void run(Pass& pass, const Worker& worker) override {
    if (worker.index != 0) return;
    auto& c = *choices_;
    const auto slots = static_cast<size_t>(pass.rows() * c.top_k);
    c.weight.resize(slots), c.choice.resize(slots);
    for (int64_t row = 0; row < pass.rows(); ++row)
      choose(pass.work.floats(Slot::logits) + row * classes_, c.weight.data() + row * c.top_k, c.choice.data() + row * c.top_k);
    c.sort();
  }

 private:
  void choose(const float* logits, float* weight, int64_t* choice) {
    score_.resize(static_cast<size_t>(classes_)), biased_.resize(score_.size());
    const float largest = *std::max_element(logits, logits + classes_);
    float sum = 0;
    for (size_t i = 0; i < score_.size(); ++i) {
      score_[i] = rule_.score == kernels::RouterScore::sigmoid ? 1 / (1 + std::exp(-logits[i])) : std::exp(logits[i] - largest);
      sum += score_[i];
    }
    for (size_t i = 0; i < score_.size(); ++i) {
      if (rule_.score == kernels::RouterScore::softmax) score_[i] /= sum;
      biased_[i] = score_[i] + bias_[i];
    }
    if (rule_.groups != rule_.top_groups) hide_groups();
    float total = 0;
    for (int64_t k = 0; k < rule_.top_k; ++k) {
      const auto best = std::max_element(biased_.begin(), biased_.end());
      const auto at = static_cast<size_t>(best - biased_.begin());
      *best = -INFINITY;
      choice[k] = static_cast<int64_t>(at);
      weight[k] = score_[at];
      total += score_[at];
    }
    if (rule_.score == kernels::RouterScore::sigmoid || rule_.groups != rule_.top_groups) total += 1e-20f;
    for (int64_t k = 0; k < rule_.top_k; ++k) weight[k] *= static_cast<float>(rule_.scale) / (rule_.renormalises ? total : 1);
  }

  // All but those with the largest sums of their two best.
  void hide_groups() {
    const int64_t each = classes_ / rule_.groups;
    std::vector<std::pair<float, int64_t>> sums;
    for (int64_t g = 0; g < rule_.groups; ++g) {
      float first = -INFINITY, second = -INFINITY;
      for (int64_t i = g * each; i < (g + 1) * each; ++i) {
        const float x = biased_[static_cast<size_t>(i)];
        if (x > first) second = first, first = x;
        else second = std::max(second, x);
      }
      sums.emplace_back(-(each > 1 ? first + second : first), g);
    }
    std::stable_sort(sums.begin(), sums.end());
    for (auto hidden = static_cast<size_t>(rule_.top_groups); hidden < sums.size(); ++hidden)
      std::fill_n(biased_.begin() + sums[hidden].second * each, each, -INFINITY);
  }

  const std::shared_ptr<Choices> choices_;
  const kernels::ExpertRule rule_;
  const int64_t classes_;
  const float* const bias_;
  std::vector<float> score_, biased_;
};

// Both halves of the experts that have tokens.
class ExpertGateStep final : public Step {
 public:
  ExpertGateStep(Program& program, const Experts& e, std::shared_ptr<Choices> choices)
      : gate_up_(program.stack(*e.gate_up, 2)), bias_(numbers(e.gate_up_bias)), kind_(e.kind), choices_(std::move(choices)) {}
  void prepare(Pass& pass) override {
    const int64_t slots = pass.rows() * choices_->top_k, ffn = gate_up_[0].outputs;
    pass.work.floats(Slot::gate_up, 2 * slots * ffn);
    pass.work.floats(Slot::activated, slots * ffn);
  }
  void run(Pass& pass, const Worker& worker) override {
    const auto& c = *choices_;
    const int64_t ffn = gate_up_[0].outputs;
    for (size_t e = 0; e < gate_up_.size() / 2; ++e) {
      const int64_t first = c.begin[e], rows = c.begin[e + 1] - first;
      if (rows == 0) continue;
      auto area = gate_area(pass, pass.rows() * c.top_k, ffn, worker);
      const int64_t width = area.own.size();
      if (width == 0) return;
      area.at += first * 2 * width;
      const float* bias = bias_ ? bias_ + static_cast<int64_t>(e) * 2 * ffn : nullptr;
      const Product products[] = {{&gate_up_[2 * e], area.at - area.own.begin, 2 * width, bias},
                                  {&gate_up_[2 * e + 1], area.at + width - area.own.begin, 2 * width, bias ? bias + ffn : nullptr}};
      multiply(pass, {pass.normed(), pass.hidden, rows, c.tokens.data() + first}, products, worker);
      activate(pass, area, rows, first, ffn, kind_, c.slot_weight.data() + first);
    }
  }

 private:
  const std::vector<Matrix>& gate_up_;  // of each expert its gate, then its up projection
  const float* const bias_;
  const kernels::Gate kind_;
  const std::shared_ptr<const Choices> choices_;
};

class ExpertDownStep final : public Step {
 public:
  ExpertDownStep(Program& program, const Experts& e, std::shared_ptr<Choices> choices)
      : down_(program.stack(*e.down)), bias_(numbers(e.down_bias)), skipped_stay_(e.skipped_stay), choices_(std::move(choices)) {}
  void prepare(Pass& pass) override { pass.work.floats(Slot::wide, pass.rows() * choices_->top_k * pass.hidden); }
  void run(Pass& pass, const Worker& worker) override {
    const auto& c = *choices_;
    const int64_t hidden = pass.hidden, ffn = down_[0].inputs;
    const auto own = own_share(hidden, worker);
    float *out = pass.work.floats(Slot::wide), *branch = pass.branch();
    for (int64_t row = 0; row < pass.rows(); ++row) std::fill(branch + row * hidden + own.begin, branch + row * hidden + own.end, 0.0f);
    for (size_t e = 0; e < down_.size(); ++e) {
      const int64_t first = c.begin[e], rows = c.begin[e + 1] - first;
      if (rows == 0) continue;
      const Product product{&down_[e], out + first * hidden, hidden, nullptr};
      multiply(pass, {pass.work.floats(Slot::activated) + first * ffn, ffn, rows}, {&product, 1}, worker);
    }
    // In the order of a token's slots, whatever others chose.
    for (size_t slot = 0; slot < c.choice.size(); ++slot) {
      float* const to = branch + static_cast<int64_t>(slot) / c.top_k * hidden;
      if (c.choice[slot] >= c.experts) {
        const float* x = pass.normed() + static_cast<int64_t>(slot) / c.top_k * hidden;
        if (skipped_stay_)
          for (int64_t i = own.begin; i < own.end; ++i) to[i] += c.weight[slot] * x[i];
        continue;
      }
      const float* from = out + c.slots[slot] * hidden;
      const float* bias = bias_ ? bias_ + c.choice[slot] * hidden : nullptr;
      for (int64_t i = own.begin; i < own.end; ++i) to[i] += from[i] + (bias ? c.weight[slot] * bias[i] : 0);
    }
  }

 private:
  const std::vector<Matrix>& down_;
  const float* const bias_;
  const bool skipped_stay_;
  const std::shared_ptr<const Choices> choices_;
};

}  // namespace

bool add_mlp(Program& program, const GatedMlp& mlp) {
  if (!program.takes({mlp.gate, mlp.up, mlp.down, mlp.weight_of_branch})) return false;
  program.add<GateStep>(program, mlp);
  program.add<DownStep>(program, mlp);
  return true;
}

void Choices::sort() {
  begin.assign(static_cast<size_t>(experts) + 1, 0);
  for (const int64_t e : choice)
    if (e < experts) ++begin[static_cast<size_t>(e) + 1];
  for (size_t e = 1; e < begin.size(); ++e) begin[e] += begin[e - 1];
  slots.assign(choice.size(), -1);
  tokens.resize(choice.size()), slot_weight.resize(choice.size());
  auto next = begin;
  for (size_t slot = 0; slot < choice.size(); ++slot) {
    if (choice[slot] >= experts) continue;
    const auto at = static_cast<size_t>(next[static_cast<size_t>(choice[slot])]++);
    slots[slot] = static_cast<int64_t>(at);
    tokens[at] = static_cast<int64_t>(slot) / top_k;
    slot_weight[at] = weight[slot];
  }
}

bool add_router(Program& program, const layers::LinearRouterParameters& router, const std::shared_ptr<Choices>& choices) {
  if (!program.takes({router.weight})) return false;
  program.add<RouterProductStep>(program, *router.weight, router.bias, Slot::normed, Slot::logits, RouterProductStep::Then::nothing);
  program.add<ChooseStep>(choices, router.rule, *router.balancing_bias);
  return true;
}

bool add_router(Program& program, const layers::RouterParameters& r, double norm_eps, const std::shared_ptr<Choices>& choices) {
  using Then = RouterProductStep::Then;
  if (!program.takes({r.down_weight, r.fc1_weight, r.fc2_weight, r.out_weight})) return false;
  program.add<RouterProductStep>(program, *r.down_weight, r.down_bias, Slot::normed, Slot::router_a, Then::nothing);
  program.add<RouterStateStep>(r, norm_eps);
  program.add<RouterProductStep>(program, *r.fc1_weight, r.fc1_bias, Slot::router_b, Slot::router_a, Then::gelu);
  program.add<RouterProductStep>(program, *r.fc2_weight, r.fc2_bias, Slot::router_a, Slot::router_b, Then::gelu);
  program.add<RouterProductStep>(program, *r.out_weight, nullptr, Slot::router_b, Slot::logits, Then::nothing);
  program.add<ChooseStep>(choices, kernels::ExpertRule{.top_k = r.top_k}, *r.balancing_bias);
  return true;
}

bool add_experts(Program& program, const Experts& e, const std::shared_ptr<Choices>& choices) {
  if (!program.takes({e.gate_up, e.down})) return false;
  program.add<ExpertGateStep>(program, e, choices);
  program.add<ExpertDownStep>(program, e, choices);
  return true;
}

}  // namespace ingot::models::decode

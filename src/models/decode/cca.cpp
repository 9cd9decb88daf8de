// Each token is worked on with the two before it, from the pass or from the tail in the cache: as rows 0 and 1 of three.
#include "models/decode/cca.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/rows_cca.h"
#include "models/decode/attention.h"

namespace ingot::models::decode {
namespace {

using kernels::cpu::CcaProblem;

constexpr int64_t kRows = layers::kCcaHalo + 1;
constexpr int64_t kMostHeadDim = 512;  // of the kernels' buffers

struct Mixing {
  kernels::CcaShape shape;
  int64_t layer = 0;
  std::shared_ptr<Rotations> rotations;
  at::Tensor tap0, tap1, bias0, bias1, temperature;
  Matrix products;                          // [heads * head_dim, 2 * head_dim (tap, in)], of all heads one below another
  std::vector<uint8_t> is_start;            // [rows, kRows]
  at::Tensor packed, taps, mixed, q, k, v;  // [rows, kRows, …]
  std::vector<float> cosine, sine;          // [rows, kRows, half]
  int64_t pass = 0;                         // whose they are

  int64_t heads() const { return shape.heads + shape.kv_heads; }
  int64_t width() const { return shape.latent() + shape.values(); }
  layers::AttentionCache& cache_of(const Pass& pass, const Token& token) const {
    return (*pass.caches[static_cast<size_t>(token.sequence)])[static_cast<size_t>(layer)];
  }
  CcaProblem problem(const Pass& pass) {
    CcaProblem p{};
    p.rows = pass.rows() * kRows, p.seq = kRows, p.heads = shape.heads, p.kv_heads = shape.kv_heads, p.head_dim = shape.head_dim;
    p.current = shape.current_values(), p.half = rotations->half(), p.table_rows = p.rows;
    p.is_start = reinterpret_cast<const bool*>(is_start.data());
    p.packed = packed.const_data_ptr<float>();
    p.tap0 = tap0.const_data_ptr<float>(), p.tap1 = tap1.const_data_ptr<float>(), p.bias0 = bias0.const_data_ptr<float>();
    p.bias1 = bias1.const_data_ptr<float>(), p.temperature = temperature.const_data_ptr<float>();
    p.cosine = cosine.data(), p.sine = sine.data();
    p.taps = taps.mutable_data_ptr<float>(), p.mixed = mixed.mutable_data_ptr<float>();
    p.q = q.mutable_data_ptr<float>(), p.k = k.mutable_data_ptr<float>(), p.v = v.mutable_data_ptr<float>();
    return p;
  }
  kernels::CcaTail empty_tail() const {
    return {at::zeros({1, 2, shape.latent()}, at::kFloat), at::zeros({1, shape.delayed_values()}, at::kFloat)};
  }
  // What a text that ends with this row remembers.
  void write_tail(int64_t row, const kernels::CcaTail& tail) const {
    const float* from = packed.const_data_ptr<float>() + (row * kRows + kRows - 1) * width();
    float* latent = tail.latent.mutable_data_ptr<float>();
    std::copy_n(from - width(), shape.latent(), latent);
    std::copy_n(from, shape.latent(), latent + shape.latent());
    std::copy_n(from + shape.latent() + shape.current_values(), shape.delayed_values(), tail.delayed_value.mutable_data_ptr<float>());
  }
};

// The tail behind a row of the pass before the next one.
kernels::CcaTail tail_behind(const Mixing& m, int64_t pass, int64_t row, int64_t first) {
  if (m.pass != pass || row < first) throw base::ModelError("only tokens of the last pass can be taken back, and not all of them");
  const auto tail = m.empty_tail();
  m.write_tail(row, tail);
  return tail;
}

// Slot::normed -> Slot::packed.
class ProjectStep final : public Step {
 public:
  ProjectStep(Program& program, const layers::CcaAttention& a) {
    for (auto* weight : {a.q, a.k, a.current_value, a.delayed_value}) matrices_.push_back(&program.matrix(*weight));
    for (const auto* matrix : matrices_) width_ += matrix->outputs;
  }
  void prepare(Pass& pass) override { pass.work.floats(Slot::packed, pass.rows() * width_); }
  void run(Pass& pass, const Worker& worker) override {
    std::array<Product, 4> products;
    float* out = pass.work.floats(Slot::packed);
    for (size_t i = 0; i < products.size(); out += matrices_[i++]->outputs) products[i] = {matrices_[i], out, width_, nullptr};
    multiply(pass, {pass.normed(), pass.hidden, pass.rows()}, products, worker);
  }

 private:
  std::vector<const Matrix*> matrices_;
  int64_t width_ = 0;
};

// Slot::packed and the tails -> the first convolution.
class TapsStep final : public Step {
 public:
  explicit TapsStep(std::shared_ptr<Mixing> shared) : shared_(std::move(shared)) {}

  void prepare(Pass& pass) override {
    auto& m = *shared_;
    const int64_t rows = pass.rows(), d = m.shape.head_dim;
    m.pass = pass.number;
    m.rotations->prepare(pass);
    if (!m.packed.defined() || m.packed.size(0) < rows) {
      m.packed = at::zeros({rows, kRows, m.width()}, at::kFloat);
      m.taps = at::zeros({rows, kRows, m.heads(), 2, d}, at::kFloat);
      m.mixed = at::zeros({rows, kRows, m.heads(), d}, at::kFloat);
      m.q = at::zeros({rows, kRows, m.shape.heads, d}, at::kFloat);
      m.k = at::zeros({rows, kRows, m.shape.kv_heads, d}, at::kFloat);
      m.v = at::zeros_like(m.k);
    }
    const auto half = static_cast<size_t>(m.rotations->half());
    m.is_start.assign(static_cast<size_t>(rows * kRows), 0);
    m.cosine.resize(static_cast<size_t>(rows * kRows) * half);
    m.sine.resize(m.cosine.size());
    for (size_t i = 0; i < pass.tokens.size(); ++i) {
      const auto& token = pass.tokens[i];
      for (int64_t row = 0; row < kRows; ++row) m.is_start[i * kRows + static_cast<size_t>(row)] = token.position - (kRows - 1 - row) <= 0;
      const size_t at = (i * kRows + kRows - 1) * half;
      std::copy_n(m.rotations->cosine() + i * half, half, m.cosine.data() + at);
      std::copy_n(m.rotations->sine() + i * half, half, m.sine.data() + at);
      auto& cache = m.cache_of(pass, token);
      // Of several tokens of a text some may be taken back.
      const auto at_row = static_cast<int64_t>(i);
      if (at_row == token.first) cache.tail_without = nullptr;
      else if (i + 1 == pass.tokens.size() || pass.tokens[i + 1].first != token.first)
        cache.tail_without = [shared = shared_, number = pass.number, at_row, first = token.first](int64_t tokens) {
          return tail_behind(*shared, number, at_row - tokens, first);
        };
      if (!cache.tail.latent.defined()) cache.tail = m.empty_tail();
    }
  }

  void run(Pass& pass, const Worker& worker) override {
    auto& m = *shared_;
    const auto own = share_of_rows(pass.rows(), worker);
    const auto problem = m.problem(pass);
    const int64_t width = m.width(), latent = m.shape.latent();
    for (int64_t row = own.begin; row < own.end; ++row) {
      const auto& token = pass.tokens[static_cast<size_t>(row)];
      const auto& tail = m.cache_of(pass, token).tail;
      for (int64_t i = 0; i < kRows; ++i) {
        float* to = m.packed.mutable_data_ptr<float>() + (row * kRows + i) * width;
        const int64_t from = row - (kRows - 1 - i);
        if (from >= token.first) {
          std::copy_n(pass.work.floats(Slot::packed) + from * width, width, to);
          continue;
        }
        const int64_t back = token.first - from;  // 1: the last token before the pass
        std::copy_n(tail.latent.const_data_ptr<float>() + (2 - back) * latent, latent, to);
        if (back == 1)
          std::copy_n(tail.delayed_value.const_data_ptr<float>(), m.shape.delayed_values(), to + latent + m.shape.current_values());
      }
      kernels::cpu::cca_taps(problem, row * kRows + 1, (row + 1) * kRows);
    }
  }

 private:
  const std::shared_ptr<Mixing> shared_;
};

// The grouped convolution, a worker's heads.
class GroupedStep final : public Step {
 public:
  explicit GroupedStep(std::shared_ptr<Mixing> shared) : shared_(std::move(shared)) {}
  void run(Pass& pass, const Worker& worker) override {
    auto& m = *shared_;
    const int64_t d = m.shape.head_dim, last = kRows - 1;
    kernels::cpu::FewProductsProblem p{};
    p.rows = pass.rows(), p.inputs = 2 * d, p.x_stride = kRows * m.heads() * 2 * d, p.format = kernels::WeightFormat::fp32;
    p.out_stride = kRows * m.heads() * d;
    const auto own = share_of_rows(m.heads(), worker);
    for (int64_t head = own.begin; head < own.end; ++head) {
      p.x = m.taps.const_data_ptr<float>() + (last * m.heads() + head) * 2 * d;
      p.weights = m.products.weights.const_data_ptr<float>() + head * d * 2 * d;
      p.out = m.mixed.mutable_data_ptr<float>() + (last * m.heads() + head) * d;
      kernels::cpu::few_products(p, 0, d);
    }
  }

 private:
  const std::shared_ptr<Mixing> shared_;
};

// -> Slot::queries, keys, values; and the next tails.
class HeadsStep final : public Step {
 public:
  explicit HeadsStep(std::shared_ptr<Mixing> shared) : shared_(std::move(shared)) {}
  void prepare(Pass& pass) override {
    const auto& shape = shared_->shape;
    pass.work.floats(Slot::queries, pass.rows() * shape.heads * shape.head_dim);
    pass.work.floats(Slot::keys, pass.rows() * shape.values());
    pass.work.floats(Slot::values, pass.rows() * shape.values());
  }
  void run(Pass& pass, const Worker& worker) override {
    auto& m = *shared_;
    const auto problem = m.problem(pass);
    const auto own = share_of_rows(pass.rows(), worker);
    for (int64_t row = own.begin; row < own.end; ++row) {
      const int64_t last = (row + 1) * kRows - 1;
      kernels::cpu::cca_heads(problem, last, last + 1);
      const auto copy = [&](const at::Tensor& from, Slot to, int64_t count) {
        std::copy_n(from.const_data_ptr<float>() + last * count, count, pass.work.floats(to) + row * count);
      };
      copy(m.q, Slot::queries, m.shape.heads * m.shape.head_dim);
      copy(m.k, Slot::keys, m.shape.values());
      copy(m.v, Slot::values, m.shape.values());
      const auto& token = pass.tokens[static_cast<size_t>(row)];
      if (token.position + 1 < token.length) continue;  // of the last token of each sequence
      m.write_tail(row, m.cache_of(pass, token).tail);
    }
  }

 private:
  const std::shared_ptr<Mixing> shared_;
};

}  // namespace

bool add_cca_attention(Program& program, const layers::CcaAttention& a, int64_t layer) {
  const auto is_fp32 = [](const layers::Parameter* p) { return p->value.scalar_type() == at::kFloat; };
  if (!program.takes({a.q, a.k, a.current_value, a.delayed_value, a.o, a.depthwise_weight, a.grouped_weight}) ||
      a.shape.head_dim > kMostHeadDim || !is_fp32(a.depthwise_weight) || !is_fp32(a.grouped_weight))
    return false;
  const auto mixing = std::make_shared<Mixing>();
  mixing->shape = a.shape, mixing->layer = layer, mixing->rotations = program.rotations(a.rotary);
  mixing->tap0 = a.depthwise_weight->value.select(2, 0).flatten().contiguous();
  mixing->tap1 = a.depthwise_weight->value.select(2, 1).flatten().contiguous();
  mixing->bias0 = a.depthwise_bias->value, mixing->bias1 = a.grouped_bias->value, mixing->temperature = a.temperature->value;
  mixing->products.weights = a.grouped_weight->value.transpose(1, 2).flatten(1).contiguous();
  program.add<ProjectStep>(program, a);
  program.add<TapsStep>(mixing);
  program.add<GroupedStep>(mixing);
  program.add<HeadsStep>(mixing);
  add_attention(program,
                {.layer = layer,
                 .heads = a.shape.heads,
                 .kv_heads = a.shape.kv_heads,
                 .head_dim = a.shape.head_dim,
                 .window = a.window,
                 .rule = a.of_all_ranks().rule,
                 .dtype = a.q->value.scalar_type()},
                /*gates=*/false, nullptr);
  add_output(program, *a.o, nullptr);
  return true;
}

}  // namespace ingot::models::decode

#include "bench/parallel.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "bench/stopwatch.h"
#include "kernels/activation.h"
#include "kernels/cpu_memory.h"
#include "kernels/differentiable.h"
#include "kernels/norm.h"
#include "layers/dtype.h"
#include "layers/linear.h"
#include "layers/linear_attention.h"
#include "layers/softmax_attention.h"
#include "layers/tensor_sequence/folded_layer.h"
#include "mesh/groups.h"
#include "parallel/buckets.h"
#include "train/parallel_model.h"

namespace ingot::bench {
namespace {

using base::ConfigError;
using layers::Parameter;
using mesh::Axis;
using schedule::Layer;
using schedule::Layout;
using schedule::Method;
using schedule::Pass;

mesh::ParallelConfig axes_of(const Layout& layout) {
  mesh::ParallelConfig c;
  c.zero = layout.method == Method::fsdp_cp ? 3 : 0;
  c.sequence_parallel = layout.method == Method::megatron_sp;
  if (layout.method == Method::tsp) {
    c.tensor_sequence = layout.ranks;
  } else {
    c.tensor = layout.tensor_size();
    c.context = layout.sequence_size();
  }
  c.head_buckets = layout.head_buckets;
  c.context_method = layout.method == Method::ring ? "ring" : layout.method == Method::ulysses ? "ulysses" : "allgather";
  c.context_order = layout.zigzag && !layout.is_linear() ? "zigzag" : "contiguous";
  c.state_method = layout.method == Method::lasp1 ? "lasp1" : layout.method == Method::zeco ? "zeco" : "lasp2";
  return c;
}

// One rank's part of the layer, its gradients' sums included.
class RankLayer {
 public:
  RankLayer(const Layout& what, comm::World& world)
      : what_(what), sizes_(what.sizes), config_(axes_of(what)), groups_(world, config_), dtype_(layers::compute_dtype(what.sizes.dtype)) {
    const models::ModelConfig model{.layers = 1, .hidden = sizes_.hidden, .heads = sizes_.heads, .kv_heads = sizes_.kv_heads};
    layout_ = train::layout_of(groups_.mesh(), config_, model, &groups_);
    list_.begin_layer(0);
    const bool is_block = what.layer == Layer::block;
    if (is_block) {
      attention_norm_ = add("attention_norm", {sizes_.hidden}, {});
      mlp_norm_ = add("mlp_norm", {sizes_.hidden}, {});
    }
    if (what.layer != Layer::mlp) declare_attention();
    if (what.layer == Layer::mlp || is_block) declare_mlp();
    list_.allocate(dtype_, at::kCPU);
    fill();
    if (world.size() > 1)
      buckets_ = std::make_unique<parallel::Buckets>(
          list_, [this](const Parameter& p) -> comm::Group& { return sum_group(p); },
          parallel::Buckets::Options{int64_t{1} << 40, static_cast<int>(config_.zero)});
    seq_ = sizes_.seq / layout_.sequence.size;
    sequences_ = std::make_unique<layers::Sequences>(sizes_.batch, seq_, at::Tensor(), 0, at::kCPU, layout_.sequence);
    const auto wide = dtype_ == at::kDouble ? at::kDouble : at::kFloat;
    const bool is_cut = layout_.tensor.is_on() && layout_.tensor.shards_tokens;  // between layers
    const std::vector<int64_t> shape = is_cut ? std::vector{int64_t{1}, sizes_.batch * seq_ / layout_.tensor.size, sizes_.hidden}
                                              : std::vector{sizes_.batch, seq_, sizes_.hidden};
    x_ = at::randn(shape, at::TensorOptions().dtype(is_block ? wide : dtype_));
    x_.set_requires_grad(true);
    grad_ = at::randn_like(x_).detach();
  }

  at::Tensor forward() {
    if (buckets_) buckets_->before_forward(0);
    auto out = run();
    if (buckets_) buckets_->after_forward(0);
    if (buckets_ && config_.zero == 3) buckets_->release(0);  // which it does for layers that have others behind them
    return out;
  }

  void backward(const at::Tensor& out) {
    if (buckets_) {
      buckets_->begin_step();
      buckets_->begin_backward(true);
      buckets_->before_backward(0);
    }
    kernels::backward({out}, {grad_});
    list_.collect_gradients();
    if (buckets_) {
      buckets_->after_backward(0);
      buckets_->finish_backward();
      buckets_->finish_step();
    } else {
      list_.drop_gradients();
    }
    x_.mutable_grad().reset();
  }

 private:
  Parameter* add(const std::string& name, tensor::Shape shape, tensor::Part part) {
    const bool is_matrix = shape.size() == 2;
    return &list_.add({.name = name,
                       .shape = std::move(shape),
                       .part = std::move(part),
                       .kind = is_matrix ? Parameter::Kind::matrix : Parameter::Kind::vector,
                       .keeps_fp32 = !is_matrix});
  }
  Parameter* rows(const char* name, int64_t rows, int64_t cols) {
    return add(name, {rows, cols}, layout_.cuts_weights() ? tensor::Part{{layout_.weight_share(rows)}, {{0, cols}}} : tensor::Part{});
  }
  Parameter* columns(const char* name, int64_t rows, int64_t cols) {
    return add(name, {rows, cols}, layout_.cuts_weights() ? tensor::Part{{{0, rows}}, {layout_.weight_share(cols)}} : tensor::Part{});
  }

  void declare_attention() {
    const int64_t d = sizes_.head_dim, q = sizes_.heads * d, tensor = layout_.tensor.size;
    const int64_t keys = what_.is_linear() ? q : sizes_.kv_heads * d, values = what_.is_linear() ? sizes_.heads * value_dim() : keys;
    attention_ = {.heads = sizes_.heads / tensor,
                  .kv_heads = sizes_.kv_heads / tensor,
                  .head_dim = d,
                  .window = 0,
                  .rotary = {.rotated = d / 2 * 2},
                  .q = rows("q", q, sizes_.hidden),
                  .k = rows("k", keys, sizes_.hidden),
                  .v = rows("v", values, sizes_.hidden),
                  .o = columns("o", sizes_.hidden, what_.is_linear() ? values : q)};
  }

  void declare_mlp() {
    gate_ = rows("gate", sizes_.ffn, sizes_.hidden);
    up_ = rows("up", sizes_.ffn, sizes_.hidden);
    down_ = columns("down", sizes_.hidden, sizes_.ffn);
  }

  void fill() {
    const at::NoGradGuard no_grad;
    for (const auto& p : list_.all()) {
      if (p->kind == Parameter::Kind::vector) p->value.fill_(1);
      else p->value.normal_(0, 1 / std::sqrt(static_cast<double>(p->shape[1])));
    }
  }

  comm::Group& sum_group(const Parameter& p) {
    auto axes = p.part.empty() ? groups_.mesh().token_axes() : std::vector{Axis::data, Axis::context};
    if (p.part.empty() && layout_.tensor.is_on() && layout_.tensor.shards_tokens) axes.push_back(Axis::tensor);
    return groups_.along(axes);
  }

  int64_t value_dim() const { return sizes_.value_dim > 0 ? sizes_.value_dim : sizes_.head_dim; }

  at::Tensor attend(const at::Tensor& x) {
    if (layout_.tensor_sequence.is_on()) return attention_.folded(x, *sequences_, layout_.tensor_sequence);
    const auto entered = layout_.tensor.enter(x, sizes_.batch, seq_);
    if (!what_.is_linear()) return layout_.tensor.leave(attention_(entered, *sequences_, nullptr));
    const int64_t keys = sizes_.heads * sizes_.head_dim, values = sizes_.heads * value_dim();
    const auto parts = layers::linear(entered, {attention_.q, attention_.k, attention_.v}).split_with_sizes({keys, keys, values}, -1);
    const auto by_head = [&](const at::Tensor& part, int64_t width) { return part.unflatten(2, {sizes_.heads, width}).contiguous(); };
    const auto mixed = layers::linear_attention({by_head(parts[0], sizes_.head_dim), by_head(parts[1], sizes_.head_dim),
                                                 by_head(parts[2], value_dim()), {}, {}, {}},
                                                *sequences_, nullptr);
    return layers::linear(mixed.flatten(2), {attention_.o});
  }

  at::Tensor mlp(const at::Tensor& x) const {
    const auto activated = [](const at::Tensor& in, const layers::PartOfWeights& weights) {
      return kernels::swiglu(layers::linear(in, weights));
    };
    if (layout_.tensor_sequence.is_on()) return layers::folded_layer(x, {gate_, up_}, *down_, activated, layout_.tensor_sequence);
    return layout_.tensor.leave(layers::linear(activated(layout_.tensor.enter(x, sizes_.batch, seq_), {gate_, up_}), {down_}));
  }

  at::Tensor run() {
    if (!attention_norm_) return gate_ ? mlp(x_) : attend(x_);
    const auto branch = attend(kernels::rms_norm(x_, attention_norm_->value, 1e-5, dtype_));
    const auto [joined, normed] = kernels::join_residual_and_norm(x_, branch, {}, mlp_norm_->value, 1e-5, dtype_);
    return kernels::join_residual(joined, mlp(normed), {});
  }

  Layout what_;
  schedule::Sizes sizes_;
  mesh::ParallelConfig config_;
  mesh::Groups groups_;
  at::ScalarType dtype_;
  int64_t seq_ = 0;  // of each row, on this rank
  models::Layout layout_;
  layers::ParameterList list_;
  Parameter *attention_norm_ = nullptr, *mlp_norm_ = nullptr, *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr;
  layers::SoftmaxAttention attention_{};
  std::unique_ptr<parallel::Buckets> buckets_;
  std::unique_ptr<layers::Sequences> sequences_;
  at::Tensor x_, grad_;
};

// The largest of all ranks.
double largest(comm::World& world, double value) {
  const auto all = at::full({1}, value, at::kDouble);
  world.everyone().all_reduce(all, comm::Reduction::max);
  return all.item<double>();
}

bool are_threads(comm::World& world) { return world.description().find("thread") != std::string::npos; }

// What the ranks of a process have in tensors together, as one rank's share.
int64_t peak_bytes(comm::World& world) {
  return static_cast<int64_t>(kernels::page_pool_use().peak_in_use_bytes) / (are_threads(world) ? world.size() : 1);
}

schedule::Traffic difference(const std::map<comm::Kind, comm::AxisTraffic>& after, const std::map<comm::Kind, comm::AxisTraffic>& before) {
  schedule::Traffic out;
  for (const auto& [kind, traffic] : after) {
    if (kind == comm::Kind::barrier) continue;
    const auto known = before.find(kind);
    const auto earlier = known == before.end() ? comm::AxisTraffic{} : known->second;
    if (traffic.calls == earlier.calls) continue;
    const bool is_message = kind == comm::Kind::send || kind == comm::Kind::receive;
    auto& sum = out[is_message ? "send_receive" : std::string(comm::name_of(kind))];
    sum.calls = std::max(sum.calls, traffic.calls - earlier.calls);
    sum.sent_bytes += traffic.sent_bytes - earlier.sent_bytes;
    sum.received_bytes += traffic.received_bytes - earlier.received_bytes;
  }
  return out;
}

schedule::Traffic largest(comm::World& world, const schedule::Traffic& own) {
  schedule::Traffic most;
  for (const auto& kind : schedule::traffic_kinds()) {
    const auto known = own.find(kind);
    const auto t = known == own.end() ? schedule::KindTraffic{} : known->second;
    const auto all = at::tensor({t.calls, t.sent_bytes, t.received_bytes}, at::kLong);
    world.everyone().all_reduce(all, comm::Reduction::max);
    const auto* numbers = all.const_data_ptr<int64_t>();
    if (numbers[0] > 0) most[kind] = {numbers[0], numbers[1], numbers[2]};
  }
  return most;
}

}  // namespace

schedule::Result measure_parallel(const Layout& layout, int repeats, comm::World& world) {
  schedule::check(layout);
  schedule::Result result{.method = layout.label(),
                          .layer = schedule::name_of(layout.layer),
                          .ranks = layout.ranks,
                          .seq = layout.sizes.seq,
                          .batch = layout.sizes.batch,
                          .pass = schedule::name_of(layout.pass)};
  auto& everyone = world.everyone();
  everyone.barrier();
  if (world.rank() == 0 || !are_threads(world)) kernels::release_freed_memory();  // the peak begins anew
  everyone.barrier();
  const at::AutoGradMode with_grad(layout.pass != Pass::forward);
  RankLayer layer(layout, world);
  std::vector<double> times, waits;
  for (int i = -1; i < repeats; ++i) {
    at::Tensor out;
    if (layout.pass == Pass::backward) out = layer.forward();
    everyone.barrier();
    const auto operations = world.counters().by_kind();
    const double waited_before = world.counters().waited_s();
    const double seconds = seconds_of(
        [&] {
          if (layout.pass != Pass::backward) out = layer.forward();
          if (layout.pass != Pass::forward) layer.backward(out);
        },
        at::kCPU);
    const double waited = world.counters().waited_s() - waited_before;
    const auto made = difference(world.counters().by_kind(), operations);
    if (i < 0) {
      result.ops = largest(world, made);
    } else {
      times.push_back(largest(world, seconds));
      waits.push_back(largest(world, waited));
    }
  }
  result.time_ms = median(times) * 1e3;
  result.exposed_ms = median(waits) * 1e3;
  everyone.barrier();
  result.peak_bytes = static_cast<int64_t>(largest(world, static_cast<double>(peak_bytes(world))));
  return result;
}

schedule::SweepResult measure_sweep(const schedule::Sweep& sweep, const std::vector<Layer>& layers, int repeats, comm::World& world,
                                    const OnCase& on_case) {
  std::vector<Layout> cases;
  for (const auto layer : layers)
    for (const auto pass : sweep.passes)
      for (const int64_t seq : sweep.seqs)
        for (const auto method : sweep.methods)
          for (auto& layout : schedule::layouts_of(sweep, method, world.size(), seq)) {
            layout.layer = layer;
            layout.pass = pass;
            cases.push_back(layout);
          }
  schedule::SweepResult out;
  for (size_t i = 0; i < cases.size(); ++i) {
    // All ranks stop at the same case.
    const auto stop = at::full({1}, on_case(i, cases.size(), cases[i]) ? 0 : 1, at::kInt);
    world.everyone().all_reduce(stop, comm::Reduction::max);
    if (stop.item<int>() != 0) break;
    try {
      out.results.push_back(measure_parallel(cases[i], repeats, world));
    } catch (const ConfigError& refusal) {
      out.refusals.push_back({cases[i].label() + " " + schedule::name_of(cases[i].layer), world.size(), cases[i].sizes.seq, refusal.what()});
    }
  }
  return out;
}

void add_crossovers(schedule::SweepResult& sweep) {
  using schedule::Quantity;
  std::map<std::tuple<std::string, int, std::string>, std::map<std::string, std::map<int64_t, const schedule::Result*>>> lines;
  for (const auto& r : sweep.results) lines[{r.layer, r.ranks, r.pass}][r.method][r.seq] = &r;
  const auto value_of = [](const schedule::Result& r, Quantity quantity) {
    if (quantity == Quantity::time) return r.time_ms;
    return static_cast<double>(quantity == Quantity::peak_bytes ? r.peak_bytes : schedule::received_bytes(r.ops));
  };
  for (const auto& [key, methods] : lines)
    for (const auto quantity : {Quantity::time, Quantity::received_bytes, Quantity::peak_bytes})
      for (const auto& [a, of_a] : methods)
        for (const auto& [b, of_b] : methods) {
          if (a == b) continue;
          // From the largest length down, as long as a needs less.
          int64_t from = 0;
          bool is_always = true;
          for (auto at = of_a.rbegin(); at != of_a.rend(); ++at) {
            if (!of_b.contains(at->first)) continue;
            if (value_of(*at->second, quantity) >= value_of(*of_b.at(at->first), quantity)) {
              is_always = false;
              break;
            }
            from = at->first;
          }
          if (from > 0 && !is_always) sweep.crossovers.push_back({a, b, std::get<0>(key), std::get<1>(key), std::get<2>(key), quantity, from});
        }
}

schedule::SweepResult sweep_from_json(const nlohmann::json& json) {
  schedule::SweepResult sweep;
  for (const auto& entry : json.at("results")) {
    auto& r = sweep.results.emplace_back();
    r.method = entry.at("method");
    r.layer = entry.at("layer");
    r.ranks = entry.at("ranks");
    r.seq = entry.at("seq");
    r.batch = entry.at("batch");
    r.pass = entry.at("pass");
    r.time_ms = entry.at("time_ms");
    r.exposed_ms = entry.at("exposed_ms");
    r.peak_bytes = entry.at("peak_bytes");
    for (const auto& [kind, t] : entry.at("ops").items())
      if (t.at("calls") > 0) r.ops[kind] = {t.at("calls"), t.at("sent_bytes"), t.at("received_bytes")};
  }
  for (const auto& entry : json.at("refused"))
    sweep.refusals.push_back({entry.at("method"), entry.at("ranks"), entry.at("seq"), entry.at("reason")});
  return sweep;
}

}  // namespace ingot::bench

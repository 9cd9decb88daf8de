#include "bench/parallel.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "bench/stopwatch.h"
#include "kernels/activation.h"
#include "kernels/cpu_memory.h"
#include "kernels/differentiable.h"
#include "kernels/norm.h"
#include "layers/dtype.h"
#include "layers/linear.h"
#include "layers/sharded_attention.h"
#include "layers/softmax_attention.h"
#include "layers/tensor_sequence/folded_attention.h"
#include "layers/tensor_sequence/folded_layer.h"
#include "mesh/groups.h"
#include "parallel/buckets.h"
#include "train/parallel_model.h"

namespace ingot::bench {
namespace {

using base::ConfigError;
using layers::Parameter;
using mesh::Axis;

mesh::ParallelConfig axes_of(const std::string& method, int ranks) {
  mesh::ParallelConfig c;
  c.zero = method == "fsdp+cp" ? 3 : 0;
  c.sharded_norms = false;
  if (method == "tp") {
    c.tensor = ranks;
  } else if (method == "tsp") {
    c.tensor_sequence = ranks;
  } else if (method == "tp+sp") {
    int tensor = 1;
    while (4 * tensor * tensor <= ranks) tensor *= 2;
    if (tensor == 1 || ranks % tensor != 0) throw ConfigError("{} ranks do not make two axes, of which one is a power of two", ranks);
    c.tensor = tensor;
    c.sequence = ranks / tensor;
  } else {
    c.sequence = ranks;
  }
  c.sequence_method = method == "ring" || method == "ulysses" ? method : "allgather";
  return c;
}

// One rank's part of the layer, its gradients' sums included.
class RankLayer {
 public:
  RankLayer(const ParallelCase& what, const BlockSizes& sizes, comm::World& world)
      : sizes_(sizes), config_(axes_of(what.method, what.ranks)), groups_(world, config_) {
    models::ModelConfig model{.layers = 1, .hidden = sizes.hidden, .heads = sizes.heads, .kv_heads = sizes.kv_heads};
    layout_ = train::layout_of(groups_.mesh(), config_, model, &groups_);
    check(what.seq);
    const bool has_attention = what.layer != "mlp", has_mlp = what.layer != "attention", is_block = what.layer == "block";
    list_.begin_layer(0);
    if (is_block) {
      attention_norm_ = add("attention_norm", {sizes.hidden}, {});
      mlp_norm_ = add("mlp_norm", {sizes.hidden}, {});
    }
    if (has_attention) declare_attention();
    if (has_mlp) declare_mlp();
    list_.allocate(layers::compute_dtype(sizes.dtype), at::kCPU);
    fill();
    if (world.size() > 1)
      buckets_ = std::make_unique<parallel::Buckets>(
          list_, [this](const Parameter& p) -> comm::Group& { return sum_group(p); },
          parallel::Buckets::Options{int64_t{1} << 40, static_cast<int>(config_.zero)});
    const int64_t own = what.seq / layout_.sequence.size;
    sequences_ = std::make_unique<layers::Sequences>(sizes.batch, own, at::Tensor(), 0, at::kCPU, layout_.sequence);
    const auto wide = sizes.dtype == "fp64" ? at::kDouble : at::kFloat;
    x_ = at::randn({sizes.batch, own, sizes.hidden}, at::TensorOptions().dtype(is_block ? wide : layers::compute_dtype(sizes.dtype)));
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

  // Throws ConfigError with what would not divide.
  void check(int64_t seq) const {
    const int tensor = layout_.tensor.size, folded = layout_.tensor_sequence.size, chunks = layout_.sequence.all_chunks();
    if (seq % chunks != 0) throw ConfigError("{} tokens are not {} equal pieces", seq, chunks);
    if (sizes_.kv_heads % tensor != 0 || sizes_.heads % tensor != 0)
      throw ConfigError("{} ranks cannot share {} heads with {} kv heads", tensor, sizes_.heads, sizes_.kv_heads);
    if (folded > 1) layers::check_folded_heads(sizes_.heads, sizes_.kv_heads, sizes_.resolved_head_dim(), folded);
    if (sizes_.ffn % (tensor * folded) != 0) throw ConfigError("{} ranks cannot share ffn = {}", tensor * folded, sizes_.ffn);
    layers::check_heads(layout_.sequence, sizes_.heads / tensor, sizes_.kv_heads / tensor);
  }

  void declare_attention() {
    const int64_t d = sizes_.resolved_head_dim(), q = sizes_.heads * d, kv = sizes_.kv_heads * d, tensor = layout_.tensor.size;
    attention_ = {.heads = sizes_.heads / tensor,
                  .kv_heads = sizes_.kv_heads / tensor,
                  .head_dim = d,
                  .window = 0,
                  .rotary = {.rotated = d / 2 * 2},
                  .q = rows("q", q, sizes_.hidden),
                  .k = rows("k", kv, sizes_.hidden),
                  .v = rows("v", kv, sizes_.hidden),
                  .o = columns("o", sizes_.hidden, q)};
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
    if (!p.part.empty()) return groups_.along({Axis::data, Axis::sequence});
    return groups_.along(groups_.mesh().token_axes());
  }

  at::Tensor attend(const at::Tensor& x) {
    if (layout_.tensor_sequence.is_on()) return attention_.folded(x, *sequences_, layout_.tensor_sequence);
    return layout_.tensor.leave(attention_(layout_.tensor.enter(x, x.size(0), x.size(1)), *sequences_, nullptr));
  }

  at::Tensor mlp(const at::Tensor& x) const {
    const auto activated = [](const at::Tensor& in, const layers::PartOfWeights& weights) {
      return kernels::swiglu(layers::linear(in, weights));
    };
    if (layout_.tensor_sequence.is_on()) return layers::folded_layer(x, {gate_, up_}, *down_, activated, layout_.tensor_sequence);
    return layout_.tensor.leave(layers::linear(activated(layout_.tensor.enter(x, x.size(0), x.size(1)), {gate_, up_}), {down_}));
  }

  at::Tensor run() {
    if (!attention_norm_) return gate_ ? mlp(x_) : attend(x_);
    const auto dtype = layers::compute_dtype(sizes_.dtype);
    const auto branch = attend(kernels::rms_norm(x_, attention_norm_->value, 1e-5, dtype));
    const auto [joined, normed] = kernels::join_residual_and_norm(x_, branch, {}, mlp_norm_->value, 1e-5, dtype);
    return kernels::join_residual(joined, mlp(normed), {});
  }

  BlockSizes sizes_;
  mesh::ParallelConfig config_;
  mesh::Groups groups_;
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

// What the ranks of a process have in tensors together, as one rank's share.
int64_t peak_bytes(comm::World& world) {
  const bool are_threads = world.description().find("thread") != std::string::npos;
  return static_cast<int64_t>(kernels::page_pool_use().peak_in_use_bytes) / (are_threads ? world.size() : 1);
}

std::map<std::string, comm::AxisTraffic> difference(const std::map<comm::Kind, comm::AxisTraffic>& after,
                                                    const std::map<comm::Kind, comm::AxisTraffic>& before) {
  std::map<std::string, comm::AxisTraffic> out;
  for (const auto& [kind, traffic] : after) {
    if (kind == comm::Kind::barrier) continue;
    const auto known = before.find(kind);
    const auto earlier = known == before.end() ? comm::AxisTraffic{} : known->second;
    const bool is_message = kind == comm::Kind::send || kind == comm::Kind::receive;
    auto& sum = out[is_message ? "send_receive" : std::string(comm::name_of(kind))];
    sum.calls += traffic.calls - earlier.calls;
    sum.sent_bytes += traffic.sent_bytes - earlier.sent_bytes;
    sum.received_bytes += traffic.received_bytes - earlier.received_bytes;
  }
  std::erase_if(out, [](const auto& entry) { return entry.second.calls == 0; });
  return out;
}

constexpr const char* kKinds[] = {"broadcast", "all_gather", "reduce_scatter", "all_reduce", "reduce", "all_to_all", "send_receive"};

}  // namespace

std::vector<std::string> parallel_methods() { return {"tp", "sp", "tp+sp", "tsp", "fsdp+cp", "ring", "ulysses"}; }
std::vector<std::string> parallel_layers() { return {"attention", "mlp", "block"}; }

ParallelResult measure_parallel(const ParallelCase& what, const BlockSizes& sizes, int repeats, comm::World& world) {
  ParallelResult result{.what = what, .sizes = sizes};
  auto& everyone = world.everyone();
  everyone.barrier();
  if (world.rank() == 0) kernels::release_freed_memory();
  everyone.barrier();
  const at::AutoGradMode with_grad(what.pass != "forward");
  std::optional<RankLayer> layer;
  try {
    layer.emplace(what, sizes, world);
  } catch (const ConfigError& refusal) {  // on all ranks
    result.refused = refusal.what();
    return result;
  }
  std::vector<double> times, waits;
  for (int i = -1; i < repeats; ++i) {
    at::Tensor out;
    if (what.pass == "backward") out = layer->forward();
    everyone.barrier();
    const auto operations = world.counters().by_kind();
    double waited = world.counters().waited_s();
    const double seconds = seconds_of(
        [&] {
          if (what.pass != "backward") out = layer->forward();
          if (what.pass != "forward") layer->backward(out);
        },
        at::kCPU);
    waited = world.counters().waited_s() - waited;
    const auto made = difference(world.counters().by_kind(), operations);
    if (i < 0) {
      for (const char* kind : kKinds) {
        const auto own = made.contains(kind) ? made.at(kind) : comm::AxisTraffic{};
        const comm::AxisTraffic most{static_cast<int64_t>(largest(world, static_cast<double>(own.calls))),
                                     static_cast<int64_t>(largest(world, static_cast<double>(own.sent_bytes))),
                                     static_cast<int64_t>(largest(world, static_cast<double>(own.received_bytes)))};
        if (most.calls > 0) result.operations[kind] = most;
      }
    } else {
      times.push_back(largest(world, seconds));
      waits.push_back(largest(world, waited));
    }
  }
  result.time_s = median(times);
  result.exposed_s = median(waits);
  everyone.barrier();
  result.peak_bytes = static_cast<int64_t>(largest(world, static_cast<double>(peak_bytes(world))));
  return result;
}

nlohmann::json to_json(const std::vector<ParallelResult>& results) {
  auto list = nlohmann::json::array();
  for (const auto& r : results) {
    nlohmann::json entry = {{"method", r.what.method}, {"layer", r.what.layer}, {"ranks", r.what.ranks}, {"seq", r.what.seq},
                            {"batch", r.sizes.batch},  {"pass", r.what.pass}};
    if (!r.refused.empty()) {
      entry["refused"] = r.refused;
    } else {
      auto operations = nlohmann::json::object();
      for (const char* kind : kKinds) {
        const auto known = r.operations.find(kind);
        const auto t = known == r.operations.end() ? comm::AxisTraffic{} : known->second;
        operations[kind] = {{"calls", t.calls}, {"sent_bytes", t.sent_bytes}, {"received_bytes", t.received_bytes}};
      }
      entry["time_ms"] = r.time_s * 1e3;
      entry["exposed_ms"] = r.exposed_s * 1e3;
      entry["peak_bytes"] = r.peak_bytes;
      entry["ops"] = std::move(operations);
    }
    list.push_back(std::move(entry));
  }
  return {{"results", std::move(list)}};
}

std::vector<ParallelResult> parallel_results(const nlohmann::json& json, const BlockSizes& sizes) {
  std::vector<ParallelResult> results;
  for (const auto& entry : json.at("results")) {
    auto& r = results.emplace_back();
    r.what = {entry.at("method"), entry.at("layer"), entry.at("ranks"), entry.at("seq"), entry.at("pass")};
    r.sizes = sizes;
    if (entry.contains("refused")) {
      r.refused = entry["refused"];
      continue;
    }
    r.time_s = entry.at("time_ms").get<double>() / 1e3;
    r.exposed_s = entry.at("exposed_ms").get<double>() / 1e3;
    r.peak_bytes = entry.at("peak_bytes");
    for (const auto& [kind, t] : entry.at("ops").items())
      if (t.at("calls") > 0) r.operations[kind] = {t.at("calls"), t.at("sent_bytes"), t.at("received_bytes")};
  }
  return results;
}

namespace {

std::string length_of(int64_t seq) { return seq % 1024 == 0 ? fmt::format("{}K", seq / 1024) : std::to_string(seq); }

// "tsp is faster than tp from between 8K and 16K on"; nothing when one of them always is.
std::vector<std::string> crossovers(const std::vector<const ParallelResult*>& rows) {
  std::map<std::string, std::map<int64_t, double>> times;
  for (const auto* r : rows)
    if (r->refused.empty()) times[r->what.method][r->what.seq] = r->time_s;
  std::vector<std::string> out;
  for (const auto& [a, of_a] : times)
    for (const auto& [b, of_b] : times) {
      if (a >= b) continue;
      std::optional<std::pair<int64_t, bool>> before;  // length, is a faster
      for (const auto& [seq, time] : of_a) {
        if (!of_b.contains(seq)) continue;
        const bool is_faster = time < of_b.at(seq);
        if (before && before->second != is_faster)
          out.push_back(fmt::format("{} overtakes {} between {} and {}", is_faster ? a : b, is_faster ? b : a, length_of(before->first),
                                    length_of(seq)));
        before = {seq, is_faster};
      }
    }
  return out;
}

}  // namespace

std::string parallel_tables(const std::vector<ParallelResult>& results) {
  std::map<std::tuple<std::string, std::string, int>, std::vector<const ParallelResult*>> tables;
  for (const auto& r : results) tables[{r.what.layer, r.what.pass, r.what.ranks}].push_back(&r);
  std::string text;
  for (const auto& [key, rows] : tables) {
    const auto& [layer, pass, ranks] = key;
    text += fmt::format("{}, {}, {} rank{}\n  {:<9}{:>8}{:>12}{:>14}{:>12}{:>12}{:>12}{:>8}\n", layer,
                        pass == "both" ? "forward and backward" : pass, ranks, ranks == 1 ? "" : "s", "method", "seq", "time, ms",
                        "exposed, ms", "peak", "sent", "received", "calls");
    for (const auto* r : rows) {
      text += fmt::format("  {:<9}{:>8}", r->what.method, length_of(r->what.seq));
      if (!r->refused.empty()) {
        text += "  " + r->refused + "\n";
        continue;
      }
      comm::AxisTraffic all;
      for (const auto& [kind, t] : r->operations) {
        all.calls += t.calls;
        all.sent_bytes += t.sent_bytes;
        all.received_bytes += t.received_bytes;
      }
      text += fmt::format("{:>12.2f}{:>14.2f}{:>12}{:>12}{:>12}{:>8}\n", r->time_s * 1e3, r->exposed_s * 1e3, base::format_bytes(r->peak_bytes),
                          base::format_bytes(all.sent_bytes), base::format_bytes(all.received_bytes), all.calls);
    }
    for (const auto& line : crossovers(rows)) text += "  " + line + "\n";
    text += "\n";
  }
  return text;
}

}  // namespace ingot::bench

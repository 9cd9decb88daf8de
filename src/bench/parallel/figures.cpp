#include "bench/parallel/figures.h"

#include <functional>

#include "base/error.h"
#include "bench/parallel/model.h"
#include "bench/parallel/published.h"
#include "schedule/timeline.h"

namespace ingot::bench {
namespace {

using schedule::Cluster, schedule::Layer, schedule::Layout, schedule::Links, schedule::Method, schedule::Pass, schedule::Sweep;

// Slow enough that messages and work are of one size.
Cluster small_machine() {
  Cluster c;
  c.name = "a small machine";
  c.devices_per_node = 4;
  c.memory_bytes = 1e11;
  c.memory_bytes_per_s = 2e12;
  c.kernel_launch_s = 1e-6;
  c.message_launch_s = 2e-6;
  c.node = {Links::Shape::any, 5e10, 2e-6};
  c.compute = {{.dtype = "bf16",
                .gemm_flops_per_s = 3e14,
                .half_m = 64,
                .half_n = 64,
                .half_k = 128,
                .attention_flops_per_s = 2e14,
                .attention_backward_flops_per_s = 1.5e14,
                .half_queries = 128,
                .half_keys = 256,
                .state_flops_per_s = 3e13}};
  return c;
}

Layout four_ranks(Method method) {
  const bool is_state_method = method == Method::lasp1 || method == Method::lasp2 || method == Method::zeco;
  Layout layout{.method = method,
                .layer = is_state_method ? Layer::linear_attention : Layer::block,
                .pass = Pass::forward,
                .sizes = {.hidden = 2048, .heads = 16, .kv_heads = 16, .head_dim = 128, .ffn = 8192, .batch = 1, .seq = 16384},
                .ranks = 4,
                .tensor_ranks = 2};
  if (is_state_method) layout.sizes = {.hidden = 1024, .heads = 8, .kv_heads = 8, .head_dim = 256, .ffn = 1024, .batch = 1, .seq = 16384};
  return layout;
}

std::string title_of(const Layout& layout) {
  const auto& s = layout.sizes;
  return fmt::format("{}: {} forward, 4 ranks, {} tokens, hidden {}", layout.label(),
                     layout.layer == Layer::block ? "block" : "linear attention", s.seq, s.hidden);
}

std::string replaced(const std::string& document, const std::string& name, const std::function<std::string()>& make_text) {
  const auto begin = fmt::format("<!-- {} -->\n", name), end = fmt::format("<!-- end of {} -->\n", name);
  const auto first = document.find(begin), last = document.find(end);
  if (first == std::string::npos || last == std::string::npos || last < first)
    throw base::DataError("the document lacks '{}' before '{}'", begin, end);
  return document.substr(0, first + begin.size()) + make_text() + document.substr(last);
}

std::string crossover_table(const Cluster& cluster) {
  std::string text = "| forward and backward of a block, 8 ranks | 8K | 16K | 32K | 64K | 128K |\n|---|---|---|---|---|---|\n";
  const Sweep sweep{
      .methods = {Method::tp, Method::megatron_sp, Method::sp, Method::tp_sp, Method::tsp, Method::fsdp_cp, Method::ring, Method::ulysses},
      .ranks = {8},
      .seqs = {8192, 16384, 32768, 65536, 131072},
      .passes = {Pass::both},
      .base = {}};
  const auto out = model(sweep, cluster);
  for (size_t i = 0; i < out.results.size(); i += sweep.seqs.size()) {
    text += "| " + out.results[i].method;
    for (size_t j = i; j < i + sweep.seqs.size(); ++j)
      text += fmt::format(" | {:.1f} ms ({:.1f}), {:.1f} GB", out.results[j].time_ms, out.results[j].exposed_ms,
                          static_cast<double>(out.results[j].peak_bytes) / 1e9);
    text += " |\n";
  }
  return text;
}

}  // namespace

std::vector<Figure> figures() {
  std::vector<Figure> all;
  const auto machine = small_machine();
  for (const auto method : schedule::all_methods()) {
    const auto layout = four_ranks(method);
    const auto modelled = model_layer(layout, machine);
    all.push_back({name_of(method) + ".svg", schedule::timeline_svg(modelled.layer.program, modelled.replay, title_of(layout))});
  }
  return all;
}

std::string with_current_tables(const std::string& document, const std::filesystem::path& folder) {
  const auto clusters = read_published_clusters(folder);
  auto text = replaced(document, "published ratios", [&] { return published_table(published_rows(clusters)); });
  text = replaced(text, "mi300x", [&] { return crossover_table(clusters.mi300x); });
  return replaced(text, "h100", [&] { return crossover_table(clusters.h100); });
}

}  // namespace ingot::bench

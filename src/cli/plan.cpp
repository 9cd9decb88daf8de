// `ingot plan`: what a run needs on a cluster that is not at hand, and how to lay it out there.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/config.h"
#include "cli/planner.h"
#include "cli/verbs.h"
#include "layers/cost.h"
#include "plan/search.h"

namespace ingot::cli {
namespace {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

// Of a process on a GPU: context, libraries' work areas, messages' buffers. Judgement: about what CUDA, cuBLAS and NCCL take.
constexpr int64_t kProgramBytes = int64_t{2} << 30;

schedule::Cluster cluster_of(const PlanOptions& o) {
  auto cluster = schedule::read_cluster(o.cluster);
  if (o.memory_gb > 0) cluster.memory_bytes = o.memory_gb * 1e9;
  if (o.devices > cluster.devices_per_node) {
    if (o.devices % cluster.devices_per_node != 0)
      throw base::UsageError("--devices {}: {} has nodes of {}; say a multiple", o.devices, cluster.name, cluster.devices_per_node);
    if (cluster.network.bytes_per_s == 0) throw base::UsageError("--devices {}: {} has one node and no network", o.devices, cluster.name);
    cluster.nodes = o.devices / cluster.devices_per_node;
  }
  return cluster;
}

Json to_json(const plan::StepMemory& m) {
  return {{"weights", m.weights_bytes},     {"gradients", m.gradients_bytes},
          {"optimizer", m.optimizer_bytes}, {"forward_backward", m.forward_backward_bytes},
          {"update", m.update_bytes},       {"validation", m.validation_bytes},
          {"program", m.program_bytes},     {"checkpoint", m.checkpoint_bytes},
          {"peak", m.total_bytes()},        {"peak_phase", m.peak_phase()}};
}

Json to_json(const plan::Judged& j, const Planner& planner) {
  const auto& p = j.choice.parallel;
  const auto& t = j.time;
  const auto& w = j.messages;
  return {{"layout", plan::label(j.choice)},
          {"parallel",
           {{"pipeline", p.pipeline},
            {"data", p.data},
            {"sequence", p.sequence},
            {"sequence_method", p.sequence_method},
            {"tensor", p.tensor},
            {"tensor_sequence", p.tensor_sequence},
            {"expert", p.expert},
            {"zero", p.zero}}},
          {"microbatch_size", j.choice.microbatch},
          {"recompute", j.choice.recompute == models::Recompute::none        ? "none"
                        : j.choice.recompute == models::Recompute::selective ? "selective"
                                                                             : "full"},
          {"memory_bytes", to_json(j.memory)},
          {"step_ms",
           {{"products", t.products_s * 1e3},
            {"attention", t.attention_s * 1e3},
            {"head", t.head_s * 1e3},
            {"kernels", t.kernels_s * 1e3},
            {"recompute", t.recompute_s * 1e3},
            {"waiting", t.waiting_s * 1e3},
            {"optimizer", t.optimizer_s * 1e3},
            {"messages_blocks", w.blocks_s * 1e3},
            {"messages_gradients", w.gradients_s * 1e3},
            {"messages_experts", w.experts_s * 1e3},
            {"messages_stages", w.stages_s * 1e3},
            {"total", j.step_s() * 1e3}}},
          {"tokens_per_s", static_cast<double>(planner.tokens_per_step()) / j.step_s()},
          {"mfu", planner.mfu(j)}};
}

Json header(const Planner& planner, int64_t devices) {
  return {{"cluster", planner.cluster().name},
          {"devices", devices},
          {"parameters", planner.model().parameters().trained_elements()},
          {"flops_per_token", planner.flops_per_token()},
          {"tokens_per_step", planner.tokens_per_step()},
          {"mfu_convention", layers::kMfuConvention}};
}

std::string header_text(const Planner& planner, int64_t devices) {
  const auto& c = planner.model().config();
  return fmt::format("{}: {} layers, hidden {}, {} parameters, {} FLOPs per token; {} tokens a step, {}\n{} devices of {}, {} each\n",
                     c.family, c.layers, c.hidden, format_count(static_cast<double>(planner.model().parameters().trained_elements())),
                     format_count(planner.flops_per_token()), planner.tokens_per_step(), planner.config().train.precision, devices,
                     planner.cluster().name, format_bytes(static_cast<int64_t>(planner.cluster().memory_bytes)));
}

int finish(const Options& all, const Json& json, const std::string& text, int status) {
  const auto written = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? written : text).c_str(), stdout);
  if (!all.plan.output.empty()) {
    base::write_file_atomically(all.plan.output, written);
    base::log_info("wrote {}", all.plan.output);
  }
  return status;
}

int memory(const Options& all, Planner& planner, int64_t devices) {
  const auto choice = planner.configured(devices);
  planner.check(choice);
  auto json = header(planner, devices);
  json["layout"] = plan::label(choice);
  auto text = header_text(planner, devices) + plan::label(choice) + "\n\n";
  text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", "stage", "weights", "gradients", "optimizer", "activations",
                      "update", "program", "peak");
  bool fits = true;
  for (int stage = 0; stage < choice.parallel.pipeline; ++stage) {
    const auto m = planner.memory(choice, stage);
    auto entry = to_json(m);
    entry["stage"] = stage;
    json["stages"].push_back(entry);
    text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", stage, format_bytes(m.weights_bytes),
                        format_bytes(m.gradients_bytes), format_bytes(m.optimizer_bytes), format_bytes(m.forward_backward_bytes),
                        format_bytes(m.update_bytes), format_bytes(m.program_bytes), format_bytes(m.total_bytes()));
    fits = fits && static_cast<double>(m.total_bytes()) <= planner.cluster().memory_bytes;
  }
  json["fits"] = fits;
  if (!fits) text += "does not fit; ingot plan search finds what does\n";
  return finish(all, json, text, fits ? 0 : 3);
}

int time(const Options& all, Planner& planner, int64_t devices) {
  const auto choice = planner.configured(devices);
  planner.check(choice);
  const auto j = planner.judge(choice, planner.memory(choice));
  auto json = header(planner, devices);
  json.update(to_json(j, planner));
  auto text = header_text(planner, devices) + plan::label(choice) + "\n\n";
  const auto line = [&](const char* what, double seconds) {
    if (seconds > 0) text += fmt::format("  {:<28}{:>12.2f} ms {:>5.1f} %\n", what, seconds * 1e3, 100 * seconds / j.step_s());
  };
  line("products", j.time.products_s);
  line("attention", j.time.attention_s);
  line("head and loss", j.time.head_s);
  line("other kernels", j.time.kernels_s);
  line("recomputation", j.time.recompute_s);
  line("waiting for other stages", j.time.waiting_s);
  line("optimizer", j.time.optimizer_s);
  line("messages in blocks", j.messages.blocks_s);
  line("messages of gradients", j.messages.gradients_s);
  line("messages of experts", j.messages.experts_s);
  line("messages of stages", j.messages.stages_s);
  line("step", j.step_s());
  text += fmt::format("  {} tokens/s, {} a device, {:.1f} % MFU\n{}\n",
                      format_count(static_cast<double>(planner.tokens_per_step()) / j.step_s()),
                      format_count(static_cast<double>(planner.tokens_per_step()) / j.step_s() / static_cast<double>(devices)),
                      100 * planner.mfu(j), layers::kMfuConvention);
  return finish(all, json, text, 0);
}

int search(const Options& all, Planner& planner, int64_t devices) {
  const auto memory_bytes = static_cast<int64_t>(planner.cluster().memory_bytes);
  std::optional<base::ProgressBar> bar;
  const auto found = planner.search(devices, memory_bytes, [&](int64_t done, int64_t count) {
    if (!bar) bar.emplace("search", count, base::ProgressUnit::count);
    bar->update(done);
  });
  if (bar) bar->finish();
  auto json = header(planner, devices);
  json["meshes"] = {{"all", found.meshes}, {"impossible", found.impossible}, {"too_large", found.too_large}, {"behind", found.behind}};
  auto text = header_text(planner, devices);
  text += fmt::format(
      "{} meshes: {} do not divide the model or batch, {} do not fit into memory, {} cannot come near the best; {} layouts judged\n\n",
      found.meshes, found.impossible, found.too_large, found.behind, found.fitting.size());
  if (found.fitting.empty()) {
    text += found.smallest ? fmt::format("nothing fits; {} needs least, {} a device of {}\n", plan::label(*found.smallest),
                                         format_bytes(found.smallest_bytes), format_bytes(memory_bytes))
                           : "nothing divides; train.batch_size and the devices have too few factors in common\n";
    json["layouts"] = Json::array();
    return finish(all, json, text, 3);
  }
  text += fmt::format("{:>3}  {:>9}{:>12}{:>8}{:>11}  {:<74}{}\n", "", "step ms", "tokens/s", "MFU", "memory", "layout", "what binds");
  const auto shown = std::min<size_t>(found.fitting.size(), static_cast<size_t>(all.plan.top));
  const auto row = [&](const std::string& mark, const plan::Judged& j) {
    return fmt::format("{:>3}  {:>9.1f}{:>12}{:>6.1f} %{:>11}  {:<74}{}\n", mark, j.step_s() * 1e3,
                       format_count(static_cast<double>(planner.tokens_per_step()) / j.step_s()), 100 * planner.mfu(j),
                       format_bytes(j.memory.total_bytes()), plan::label(j.choice), plan::binding(j, memory_bytes));
  };
  for (size_t i = 0; i < shown; ++i) {
    text += row(std::to_string(i + 1), found.fitting[i]);
    json["layouts"].push_back(to_json(found.fitting[i], planner));
  }
  text += "\nless memory for more time:\n";
  for (const auto& j : found.pareto) {
    text += row("", j);
    json["pareto"].push_back(to_json(j, planner));
  }
  text += "\n" + plan::as_toml(found.fitting.front().choice);
  json["toml"] = plan::as_toml(found.fitting.front().choice);
  return finish(all, json, text, 0);
}

}  // namespace

int run_plan(const Options& all) {
  const auto& o = all.plan;
  const auto cluster = cluster_of(o);
  const int64_t devices = o.devices > 0 ? o.devices : cluster.devices();
  Planner planner(read_config(o.config, o.set), cluster, kProgramBytes);
  if (o.action == "memory") return memory(all, planner, devices);
  return o.action == "time" ? time(all, planner, devices) : search(all, planner, devices);
}

}  // namespace ingot::cli

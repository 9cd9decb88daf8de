// `ingot plan size`: the sizes of a model that suit a device, and why.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "bench/shape_probe.h"
#include "bench/suite.h"
#include "cli/sizing_device.h"
#include "cli/verbs.h"
#include "layers/cost.h"
#include "plan/sizing.h"

namespace ingot::cli {
namespace {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

plan::SizeRequest request_of(const PlanOptions& o, bool is_measured) {
  const auto& s = o.sizing;
  return {.is_mixture = s.family == "moe",
          .parameters = count_of(s.params, "--params", 1e14),
          .active = count_of(s.active, "--active", 1e14),
          .flops = count_of(s.flops, "--flops", 1e30),
          .tokens = count_of(s.tokens, "--tokens", 1e16),
          .seq = s.seq > 0     ? s.seq
                 : is_measured ? 512
                               : 4096,
          .vocab = s.vocab,
          .multiple = s.multiple,
          .experts = s.experts.empty() ? 0 : s.experts.front(),
          .share = s.share,
          .batch_tokens = count_of(s.batch_tokens, "--batch-tokens", 1e12)};
}

// From the table where it has neighbouring sizes, else by a probe where that is possible.
std::optional<plan::ShapeMultiples> shapes_of(const SizingDevice& chosen, bool probes) {
  if (!chosen.device.is_measured()) return std::nullopt;
  auto neighbours = plan::neighbouring_shapes(chosen.device.profile, chosen.device.dtype);
  if (neighbours.empty() && chosen.is_here && probes) {
    const bench::ShapeProbe probe{.dtype = chosen.device.dtype, .device = chosen.device.profile.device};
    base::ProgressBar bar("probe neighbouring shapes", probe.rounds, base::ProgressUnit::count);
    const base::LoadWatch load;
    neighbours = bench::measure_neighbours(probe, [&](int done) {
      bar.update(done);
      return true;
    });
    const double foreign = load.foreign_share();
    bar.update(probe.rounds);
    bar.finish();
    if (foreign > bench::kBusyShare)
      base::log_warning("other programs used {:.0f} % of this machine during the probe: small differences between sizes say nothing",
                        100 * foreign);
  }
  return plan::shape_multiples(neighbours);
}

const char* name_of(models::Recompute recompute) {
  return recompute == models::Recompute::none ? "none" : recompute == models::Recompute::selective ? "selective" : "full";
}

Json to_json(const plan::SizeCandidate& c) {
  const auto& m = c.model;
  Json json = {{"family", m.family},     {"layers", m.layers},     {"hidden", m.hidden},        {"heads", m.heads},
               {"kv_heads", m.kv_heads}, {"head_dim", m.head_dim}, {"vocab_size", m.vocab_size}};
  if (models::create_model(m)->has_experts()) json.update({{"experts", m.experts}, {"top_k", m.top_k}, {"expert_ffn", m.expert_ffn}});
  else json["ffn"] = m.ffn;
  json.update({{"width_over_depth", c.aspect()},
               {"parameters", c.parameters},
               {"active_parameters", c.active_parameters},
               {"flops_per_token", c.flops_per_token},
               {"memory_bytes", c.memory.total_bytes()},
               {"fits", c.run.has_value()},
               {"is_usual", c.is_usual},
               {"is_chosen", c.is_chosen}});
  if (!c.run) return json;
  const auto& s = c.run->shape;
  json.update({{"microbatch_size", s.microbatch},
               {"recompute", name_of(s.recompute)},
               {"zero", s.zero},
               {"step_ms", c.run->step_s() * 1e3},
               {"tokens_per_s", c.run->tokens_per_s()},
               {"mfu", c.mfu}});
  return json;
}

Json to_json(const plan::Sizing& s, const SizingDevice& chosen) {
  Json json = {{"device", to_json(chosen)}, {"rules", Json::array()}, {"candidates", Json::array()}};
  for (const auto& rule : s.rules) {
    Json entry = {{"name", rule.name},
                  {"value", rule.value},
                  {"basis", plan::name_of(rule.basis)},
                  {"reason", rule.reason},
                  {"numbers", Json::array()}};
    for (const auto& n : rule.numbers) entry["numbers"].push_back({{"what", n.what}, {"value", n.value}, {"unit", n.unit}});
    json["rules"].push_back(std::move(entry));
  }
  for (const auto& c : s.candidates) json["candidates"].push_back(to_json(c));
  json["chosen"] = to_json(s.chosen);
  json["training"] = {{"batch_size", s.batch}, {"steps", s.steps}, {"tokens", s.tokens}, {"flops", s.flops}};
  json["training"]["days"] = s.days > 0 ? Json(s.days) : Json();
  json["mfu_convention"] = layers::kMfuConvention;
  json["toml"] = s.toml;
  return json;
}

std::string number_text(double value) {
  return value != 0 && (std::abs(value) >= 1e6 || std::abs(value) < 1e-3) ? fmt::format("{:.3g}", value)
         : std::abs(value) >= 100                                         ? fmt::format("{:.0f}", value)
                                                                          : fmt::format("{:.3g}", value);
}

std::string rules_text(const std::vector<plan::Rule>& rules) {
  std::string text;
  for (const auto& rule : rules) {
    text += fmt::format("\n{}: {}  [{}]\n  {}\n", rule.name, rule.value, plan::name_of(rule.basis), rule.reason);
    for (const auto& n : rule.numbers) text += fmt::format("  {:>12} {:<9}{}\n", number_text(n.value), n.unit, n.what);
  }
  return text;
}

std::string candidates_text(const std::vector<plan::SizeCandidate>& candidates) {
  auto text = fmt::format("\n{:>8}{:>8}{:>8}{:>12}{:>12}{:>13}{:>10}{:>12}{:>8}{:>12}  {}\n", "layers", "hidden", "ratio", "parameters",
                          "active", "FLOPs/token", "step ms", "tokens/s", "MFU", "memory", "run");
  for (const auto& c : candidates) {
    text += fmt::format("{:>8}{:>8}{:>8.1f}{:>12}{:>12}{:>13}", c.model.layers, c.model.hidden, c.aspect(),
                        format_count(static_cast<double>(c.parameters)), format_count(static_cast<double>(c.active_parameters)),
                        format_count(c.flops_per_token));
    if (c.run)
      text += fmt::format("{:>10.1f}{:>12}{:>6.1f} %{:>12}  {} at a time, zero {}, recompute {}{}\n", c.run->step_s() * 1e3,
                          format_count(c.run->tokens_per_s()), 100 * c.mfu, format_bytes(c.memory.total_bytes()), c.run->shape.microbatch,
                          c.run->shape.zero, name_of(c.run->shape.recompute), c.is_chosen ? "  <- chosen" : "");
    else
      text += fmt::format("{:>10}{:>12}{:>8}{:>12}  does not fit{}\n", "-", "-", "-", format_bytes(c.memory.total_bytes()),
                          c.is_chosen ? "  <- chosen" : "");
  }
  return text;
}

std::string summary(const plan::Sizing& s, const plan::Device& device) {
  const auto& c = s.chosen;
  if (!c.run)
    return "\nIt does not fit by data parallelism alone: ingot plan search with the configuration below looks at every layout, --memory-gb "
           "and "
           "--devices try other devices.\n";
  return fmt::format(
      "\nPredicted: {:.1f} ms a step of {} tokens, {} tokens/s, {:.1f} % MFU, {} of a device's {}; {} tokens in {:.3g} days\n{}\n",
      c.run->step_s() * 1e3, c.run->tokens_per_step(), format_count(c.run->tokens_per_s()), 100 * c.mfu,
      format_bytes(c.memory.total_bytes()), format_bytes(device.memory_bytes), format_count(s.tokens), s.days, layers::kMfuConvention);
}

}  // namespace

int run_plan_size(const Options& all) {
  const auto& o = all.plan;
  const auto chosen = sizing_device(o);
  const auto request = request_of(o, chosen.device.is_measured());
  plan::DataParallel devices(chosen.device);
  const auto sizing = plan::size_model(request, devices, shapes_of(chosen, !o.sizing.no_probe));
  const auto json = to_json(sizing, chosen).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? json
                       : describe(chosen) + rules_text(sizing.rules) + candidates_text(sizing.candidates) + summary(sizing, chosen.device) +
                             "\n" + sizing.toml)
                 .c_str(),
             stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, o.output.ends_with(".toml") ? sizing.toml : json);
    base::log_info("wrote {}", o.output);
  }
  return sizing.chosen.run ? 0 : 3;
}

}  // namespace ingot::cli

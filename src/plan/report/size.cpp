#include "plan/report/size.h"

#include <cmath>

#include "base/text.h"
#include "layers/cost.h"
#include "plan/describe.h"
#include "plan/run/shape.h"

namespace ingot::plan {
namespace {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

Json to_json(const SizeCandidate& c) {
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
               {"recompute", recompute_name(s.recompute)},
               {"zero", s.zero},
               {"step_ms", c.run->step_s() * 1e3},
               {"tokens_per_s", c.run->tokens_per_s()},
               {"mfu", c.mfu}});
  return json;
}

Json to_json(const Sizing& s, const SizingDevice& chosen) {
  Json json = {{"device", to_json(chosen)}, {"rules", Json::array()}, {"candidates", Json::array()}};
  for (const auto& rule : s.rules) {
    Json entry = {
        {"name", rule.name}, {"value", rule.value}, {"basis", name_of(rule.basis)}, {"reason", rule.reason}, {"numbers", Json::array()}};
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

std::string rules_text(const std::vector<Rule>& rules) {
  std::string text;
  for (const auto& rule : rules) {
    text += fmt::format("\n{}: {}  [{}]\n  {}\n", rule.name, rule.value, name_of(rule.basis), rule.reason);
    for (const auto& n : rule.numbers) text += fmt::format("  {:>12} {:<9}{}\n", number_text(n.value), n.unit, n.what);
  }
  return text;
}

std::string candidates_text(const std::vector<SizeCandidate>& candidates) {
  auto text = fmt::format("\n{:>8}{:>8}{:>8}{:>12}{:>12}{:>13}{:>10}{:>12}{:>8}{:>12}  {}\n", "layers", "hidden", "ratio", "parameters",
                          "active", "FLOPs/token", "step ms", "tokens/s", "MFU", "memory", "run");
  for (const auto& c : candidates) {
    text += fmt::format("{:>8}{:>8}{:>8.1f}{:>12}{:>12}{:>13}", c.model.layers, c.model.hidden, c.aspect(),
                        format_count(static_cast<double>(c.parameters)), format_count(static_cast<double>(c.active_parameters)),
                        format_count(c.flops_per_token));
    if (c.run)
      text += fmt::format("{:>10.1f}{:>12}{:>6.1f} %{:>12}  {} at a time, zero {}, recompute {}{}\n", c.run->step_s() * 1e3,
                          format_count(c.run->tokens_per_s()), 100 * c.mfu, format_bytes(c.memory.total_bytes()), c.run->shape.microbatch,
                          c.run->shape.zero, recompute_name(c.run->shape.recompute), c.is_chosen ? "  <- chosen" : "");
    else
      text += fmt::format("{:>10}{:>12}{:>8}{:>12}  does not fit{}\n", "-", "-", "-", format_bytes(c.memory.total_bytes()),
                          c.is_chosen ? "  <- chosen" : "");
  }
  return text;
}

std::string summary(const Sizing& s, const Device& device) {
  const auto& c = s.chosen;
  if (!c.run)
    return "\nIt does not fit by data parallelism alone: ingot plan search with the configuration below looks at every layout, --memory-gb "
           "and "
           "--devices try other devices.\n";
  return fmt::format("\nPredicted: {} a step of {} tokens, {} tokens/s, {:.1f} % MFU, {} of a device's {}; {} tokens in {:.3g} days\n{}\n",
                     format_step_time(c.run->step_s()), c.run->tokens_per_step(), format_count(c.run->tokens_per_s()), 100 * c.mfu,
                     format_bytes(c.memory.total_bytes()), format_bytes(device.memory_bytes), format_count(s.tokens), s.days,
                     layers::kMfuConvention);
}

}  // namespace

Document document_of(const Sizing& sizing, const SizingDevice& chosen) {
  return {to_json(sizing, chosen),
          describe(chosen) + rules_text(sizing.rules) + candidates_text(sizing.candidates) + summary(sizing, chosen.device) + "\n" +
              sizing.toml,
          sizing.chosen.run.has_value()};
}

}  // namespace ingot::plan

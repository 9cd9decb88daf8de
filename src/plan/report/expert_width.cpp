#include "plan/report/expert_width.h"

#include <cmath>

#include "base/text.h"
#include "layers/cost.h"

namespace ingot::plan {
namespace {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

std::string label(const ExpertChoice& c) {
  return fmt::format("{} expert{} of width {}, {} for a token", c.experts, c.experts == 1 ? "" : "s", c.expert_ffn, c.top_k);
}

// Of what is on which front: T with training's throughput and decoding, P with prompts, small where more parameters count as better too.
std::string fronts(const ExpertChoice& c) {
  std::string marks;
  if (c.on_decode_front) marks += "D";
  if (c.on_prefill_front) marks += "P";
  if (c.on_decode_capacity_front) marks += "d";
  if (c.on_prefill_capacity_front) marks += "p";
  return marks.empty() ? "-" : marks;
}

std::vector<std::string> columns() {
  return {"parameters", "active", "GFLOPs/token", "tokens/expert", "tokens/s", "MFU", "memory", "decode ms", "prefill ms", "front"};
}

std::vector<std::string> cells(const ExpertChoice& c) {
  const auto fitting = [&](std::string text) { return c.fits() ? std::move(text) : std::string("-"); };
  return {format_count(static_cast<double>(c.parameters)),
          format_count(static_cast<double>(c.active_parameters)),
          fmt::format("{:.4g}", c.flops_per_token / 1e9),
          fitting(format_count(c.tokens_per_expert)),
          c.fits() ? format_count(c.tokens_per_s()) : "does not fit",
          fitting(fmt::format("{:.1f} %", 100 * c.mfu)),
          format_bytes(c.memory.total_bytes()),
          fmt::format("{:.3f}", c.decode.total_s * 1e3),
          fmt::format("{:.2f}", c.prefill.total_s * 1e3),
          fronts(c)};
}

Json to_json(const Latency& l) {
  return {{"ms", l.total_s * 1e3},  {"weight_bytes", l.weight_bytes}, {"cache_bytes", l.cache_bytes},    {"flops", l.flops},
          {"launches", l.launches}, {"memory_ms", l.memory_s * 1e3},  {"compute_ms", l.compute_s * 1e3}, {"launch_ms", l.launch_s * 1e3}};
}

Json to_json(const ExpertChoice& c) {
  Json json = {{"experts", c.experts},
               {"top_k", c.top_k},
               {"expert_ffn", c.expert_ffn},
               {"is_base", c.is_base},
               {"parameters", c.parameters},
               {"active_parameters", c.active_parameters},
               {"flops_per_token", c.flops_per_token},
               {"fits", c.fits()},
               {"memory_bytes", c.memory.total_bytes()},
               {"decode", to_json(c.decode)},
               {"prefill", to_json(c.prefill)},
               {"on_front", {{"decode", c.on_decode_front}, {"prefill", c.on_prefill_front}}},
               {"on_front_with_parameters", {{"decode", c.on_decode_capacity_front}, {"prefill", c.on_prefill_capacity_front}}}};
  if (c.run)
    json.update({{"microbatch_size", c.run->shape.microbatch},
                 {"zero", c.run->shape.zero},
                 {"step_ms", c.run->step_s() * 1e3},
                 {"tokens_per_s", c.tokens_per_s()},
                 {"tokens_per_expert", c.tokens_per_expert},
                 {"mfu", c.mfu}});
  return json;
}

struct Standing {
  std::vector<std::string> sentences;
  Json json = Json::array();
};

// Where the configuration lies with respect to each front.
Standing standing_of(const std::vector<ExpertChoice>& choices) {
  Standing standing;
  const auto& base = choices.front();
  if (!base.fits()) {
    standing.sentences.push_back(
        fmt::format("The configuration ({}) does not fit: it needs {}.", label(base), format_bytes(base.memory.total_bytes())));
    return standing;
  }
  for (const bool with_capacity : {false, true})
    for (const bool decode : {true, false}) {
      const std::string front =
          fmt::format("throughput, {} latency{}", decode ? "decode" : "prefill", with_capacity ? " and parameters" : "");
      const auto by = dominator_of(choices, 0, decode, with_capacity);
      Json entry = {{"latency", decode ? "decode" : "prefill"}, {"counts_parameters", with_capacity}, {"is_dominated", by.exists}};
      if (!by.exists) {
        standing.sentences.push_back(fmt::format("{}: the configuration ({}) is on the front.", front, label(base)));
      } else {
        const auto& other = choices[by.point];
        standing.sentences.push_back(
            fmt::format("{}: the configuration ({}) is dominated, most by {}: {:.3f} times the tokens/s at {:.3f} times the "
                        "latency, and {:.2f} times the parameters.",
                        front, label(base), label(other), by.gains[0], 1 / by.gains[1],
                        static_cast<double>(other.parameters) / static_cast<double>(base.parameters)));
        entry["by"] = {{"experts", other.experts}, {"top_k", other.top_k}, {"expert_ffn", other.expert_ffn}};
        entry["tokens_per_s_gain"] = by.gains[0];
        entry["latency_gain"] = by.gains[1];
      }
      standing.json.push_back(std::move(entry));
    }
  const double own = static_cast<double>(base.parameters);
  for (const auto& c : choices) {
    if (c.is_base || !c.fits() || std::abs(static_cast<double>(c.parameters) / own - 1) > 0.05) continue;
    standing.sentences.push_back(
        fmt::format("With as many parameters, {}: {:.3f} times the tokens/s, {:.3f} times the decode and {:.3f} times the "
                    "prefill latency.",
                    label(c), c.tokens_per_s() / base.tokens_per_s(), c.decode.total_s / base.decode.total_s,
                    c.prefill.total_s / base.prefill.total_s));
  }
  const auto& l = base.decode;
  standing.sentences.push_back(
      fmt::format("A token of the configuration takes {:.3f} ms: {} launches take {:.3f}, reading {} of weights and {} of "
                  "cache {:.3f}, and computing would take {:.3f}.",
                  l.total_s * 1e3, l.launches, l.launch_s * 1e3, format_bytes(static_cast<int64_t>(l.weight_bytes)),
                  format_bytes(static_cast<int64_t>(l.cache_bytes)), l.memory_s * 1e3, l.compute_s * 1e3));
  return standing;
}

std::string header(const ExpertSweep& sweep, const SizingDevice& chosen) {
  const auto& c = sweep.base;
  return describe(chosen) +
         fmt::format(
             "{}: {} layers, hidden {}, vocabulary {}; {} sequences of {} tokens a step; equal {}, widths in multiples of {}\n"
             "decode: a token behind {}; prefill: a prompt of {} tokens; both for one user on one device\n",
             c.family, c.layers, c.hidden, c.vocab_size, sweep.job.batch, sweep.job.seq,
             sweep.equal == Equal::flops ? "training FLOPs for a token" : "active parameters", sweep.multiple, sweep.context, sweep.prompt);
}

std::string table(const std::vector<ExpertChoice>& choices) {
  auto text = fmt::format("\n{:>8}{:>6}{:>7}", "experts", "top-k", "width");
  for (const auto& column : columns()) text += fmt::format("{:>14}", column);
  text += "\n";
  for (const auto& c : choices) {
    text += fmt::format("{:>8}{:>6}{:>7}", c.experts, c.top_k, c.expert_ffn);
    for (const auto& cell : cells(c)) text += fmt::format("{:>14}", cell);
    text += c.is_base ? "  <- the configuration\n" : "\n";
  }
  return text + "front: of throughput with D decode, P prefill latency; d, p: where more parameters count as better, too\n";
}

}  // namespace

ExpertDocument document_of(const ExpertSweep& sweep, const SizingDevice& chosen, const std::vector<ExpertChoice>& choices) {
  const auto where = standing_of(choices);
  ExpertDocument document;
  document.json = {{"device", to_json(chosen)},   {"equal", sweep.equal == Equal::flops ? "flops" : "active"},
                   {"multiple", sweep.multiple},  {"batch_size", sweep.job.batch},
                   {"seq_len", sweep.job.seq},    {"context", sweep.context},
                   {"prompt", sweep.prompt},      {"choices", Json::array()},
                   {"configuration", where.json}, {"mfu_convention", layers::kMfuConvention}};
  for (const auto& c : choices) document.json["choices"].push_back(to_json(c));
  document.heading = header(sweep, chosen);
  document.text = document.heading + table(choices) + "\n";
  for (const auto& sentence : where.sentences) document.text += sentence + "\n";
  document.text.append(kExpertCaution).append("\n");
  document.sentences = where.sentences;
  document.columns = columns();
  for (const auto& c : choices) document.cells.push_back(cells(c));
  document.fits = choices.front().fits();
  return document;
}

}  // namespace ingot::plan

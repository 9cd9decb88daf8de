// `ingot plan moe-width`: width, number and use of a mixture's experts at equal FLOPs, by what training and serving take.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/config.h"
#include "cli/sizing_device.h"
#include "cli/verbs.h"
#include "layers/cost.h"
#include "plan/expert_width.h"
#include "plan/sizing.h"
#include "report/experts/page.h"
#include "train/phases.h"

namespace ingot::cli {
namespace {

using base::format_bytes;
using base::format_count;
using plan::ExpertChoice;
using Json = nlohmann::ordered_json;

plan::ExpertSweep sweep_of(const PlanOptions& o, const plan::Device& device) {
  const auto& s = o.sizing;
  if (o.config.empty() == (s.hidden == 0))
    throw base::UsageError("give a configuration, such as configs/zaya1-base.toml, or --hidden H, and not both");
  plan::ExpertSweep sweep;
  if (o.config.empty()) {
    if (s.hidden % 256 != 0) throw base::UsageError("--hidden {}: query heads of 128 fill half of it; say a multiple of 256", s.hidden);
    sweep.base = plan::shape_of({.multiple = 64, .vocab = s.vocab > 0 ? s.vocab : 131072, .is_mixture = true}, s.hidden,
                                s.layers > 0 ? s.layers : std::max<int64_t>(1, s.hidden / 51));
    sweep.job.seq = device.is_measured() ? 512 : 4096;
    sweep.job.batch = (int64_t{1} << 20) / sweep.job.seq;
  } else {
    const auto config = read_config(o.config, o.set);
    train::check(config);
    const auto phase = train::lay_out_phases(config).front();
    sweep.base = config.model;
    if (s.vocab > 0) sweep.base.vocab_size = s.vocab;
    sweep.job = {.batch = phase.batch_size, .seq = phase.data.seq_len, .optimizer = phase.optimizer};
  }
  if (s.seq > 0) sweep.job.seq = s.seq;
  if (const double tokens = count_of(s.batch_tokens, "--batch-tokens", 1e12); tokens > 0)
    sweep.job.batch = plan::nearest_multiple(tokens / static_cast<double>(sweep.job.seq), device.count);
  if (sweep.job.batch % device.count != 0)
    throw base::UsageError("{} sequences a step do not divide among {} devices; --batch-tokens or --devices can change that",
                           sweep.job.batch, device.count);
  sweep.equal = s.equal == "active" ? plan::Equal::active : plan::Equal::flops;
  if (s.multiple > 0) sweep.multiple = s.multiple;
  if (!s.experts.empty()) sweep.experts = s.experts;
  if (!s.top_k.empty()) sweep.top_k = s.top_k;
  sweep.context = s.context > 0 ? s.context : sweep.job.seq;
  sweep.prompt = s.prompt > 0 ? s.prompt : std::max<int64_t>(1, sweep.job.seq / 2);
  return sweep;
}

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

Json to_json(const plan::Latency& l) {
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

struct Verdict {
  std::vector<std::string> sentences;
  Json json = Json::array();
};

// Where the configuration lies with respect to each front.
Verdict verdict_of(const std::vector<ExpertChoice>& choices) {
  Verdict verdict;
  const auto& base = choices.front();
  if (!base.fits()) {
    verdict.sentences.push_back(
        fmt::format("The configuration ({}) does not fit: it needs {}.", label(base), format_bytes(base.memory.total_bytes())));
    return verdict;
  }
  for (const bool with_capacity : {false, true})
    for (const bool decode : {true, false}) {
      const std::string front =
          fmt::format("throughput, {} latency{}", decode ? "decode" : "prefill", with_capacity ? " and parameters" : "");
      const auto by = plan::dominator_of(choices, 0, decode, with_capacity);
      Json entry = {{"latency", decode ? "decode" : "prefill"}, {"counts_parameters", with_capacity}, {"is_dominated", by.exists}};
      if (!by.exists) {
        verdict.sentences.push_back(fmt::format("{}: the configuration ({}) is on the front.", front, label(base)));
      } else {
        const auto& other = choices[by.point];
        verdict.sentences.push_back(
            fmt::format("{}: the configuration ({}) is dominated, most by {}: {:.3f} times the tokens/s at {:.3f} times the "
                        "latency, and {:.2f} times the parameters.",
                        front, label(base), label(other), by.gains[0], 1 / by.gains[1],
                        static_cast<double>(other.parameters) / static_cast<double>(base.parameters)));
        entry["by"] = {{"experts", other.experts}, {"top_k", other.top_k}, {"expert_ffn", other.expert_ffn}};
        entry["tokens_per_s_gain"] = by.gains[0];
        entry["latency_gain"] = by.gains[1];
      }
      verdict.json.push_back(std::move(entry));
    }
  const double own = static_cast<double>(base.parameters);
  for (const auto& c : choices) {
    if (c.is_base || !c.fits() || std::abs(static_cast<double>(c.parameters) / own - 1) > 0.05) continue;
    verdict.sentences.push_back(
        fmt::format("With as many parameters, {}: {:.3f} times the tokens/s, {:.3f} times the decode and {:.3f} times the "
                    "prefill latency.",
                    label(c), c.tokens_per_s() / base.tokens_per_s(), c.decode.total_s / base.decode.total_s,
                    c.prefill.total_s / base.prefill.total_s));
  }
  const auto& l = base.decode;
  verdict.sentences.push_back(
      fmt::format("A token of the configuration takes {:.3f} ms: {} launches take {:.3f}, reading {} of weights and {} of "
                  "cache {:.3f}, and computing would take {:.3f}.",
                  l.total_s * 1e3, l.launches, l.launch_s * 1e3, format_bytes(static_cast<int64_t>(l.weight_bytes)),
                  format_bytes(static_cast<int64_t>(l.cache_bytes)), l.memory_s * 1e3, l.compute_s * 1e3));
  return verdict;
}

std::string header(const plan::ExpertSweep& sweep, const SizingDevice& chosen) {
  const auto& c = sweep.base;
  return describe(chosen) +
         fmt::format(
             "{}: {} layers, hidden {}, vocabulary {}; {} sequences of {} tokens a step; equal {}, widths in multiples of {}\n"
             "decode: a token behind {}; prefill: a prompt of {} tokens; both for one user on one device\n",
             c.family, c.layers, c.hidden, c.vocab_size, sweep.job.batch, sweep.job.seq,
             sweep.equal == plan::Equal::flops ? "training FLOPs for a token" : "active parameters", sweep.multiple, sweep.context,
             sweep.prompt);
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

constexpr const char* kCaution =
    "At equal FLOPs fewer experts train faster and answer no slower: what a mixture buys is its parameters, so the fronts that count them "
    "decide. "
    "Experts get equal shares of the tokens here; the loss is not predicted.";

std::string page_of(const plan::ExpertSweep& sweep, const SizingDevice& chosen, const std::vector<ExpertChoice>& choices,
                    const Verdict& verdict) {
  report::ExpertPage page{.title = fmt::format("Width of experts: {} layers of hidden {}", sweep.base.layers, sweep.base.hidden),
                          .notes = base::split(header(sweep, chosen), '\n'),
                          .columns = columns(),
                          .points = {}};
  page.notes.pop_back();  // behind the last line
  page.notes.insert(page.notes.end(), verdict.sentences.begin(), verdict.sentences.end());
  page.notes.emplace_back(kCaution);
  for (const auto& c : choices)
    page.points.push_back({.experts = c.experts,
                           .top_k = c.top_k,
                           .width = c.expert_ffn,
                           .parameters = static_cast<double>(c.parameters),
                           .tokens_per_s = c.tokens_per_s(),
                           .decode_s = c.decode.total_s,
                           .prefill_s = c.prefill.total_s,
                           .is_base = c.is_base,
                           .on_decode_front = c.on_decode_front,
                           .on_prefill_front = c.on_prefill_front,
                           .on_decode_capacity_front = c.on_decode_capacity_front,
                           .on_prefill_capacity_front = c.on_prefill_capacity_front,
                           .cells = cells(c)});
  return report::make_expert_page(page, "from " + chosen.device.profile.date + " rates");
}

}  // namespace

int run_plan_moe_width(const Options& all) {
  const auto& o = all.plan;
  const auto chosen = sizing_device(o);
  const auto sweep = sweep_of(o, chosen.device);
  plan::DataParallel devices(chosen.device);
  std::optional<base::ProgressBar> bar;
  const auto choices = plan::sweep_experts(sweep, devices, [&](int64_t done, int64_t count) {
    if (!bar) bar.emplace("moe-width", count, base::ProgressUnit::count);
    bar->update(done);
  });
  if (bar) bar->update(static_cast<int64_t>(choices.size())), bar->finish();
  const auto verdict = verdict_of(choices);
  Json json = {{"device", to_json(chosen)},     {"equal", o.sizing.equal},
               {"multiple", sweep.multiple},    {"batch_size", sweep.job.batch},
               {"seq_len", sweep.job.seq},      {"context", sweep.context},
               {"prompt", sweep.prompt},        {"choices", Json::array()},
               {"configuration", verdict.json}, {"mfu_convention", layers::kMfuConvention}};
  for (const auto& c : choices) json["choices"].push_back(to_json(c));
  const auto written = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  auto text = header(sweep, chosen) + table(choices) + "\n";
  for (const auto& sentence : verdict.sentences) text += sentence + "\n";
  std::fputs((all.json ? written : text + kCaution + "\n").c_str(), stdout);
  if (!o.output.empty()) {
    base::write_file_atomically(o.output, o.output.ends_with(".html") ? page_of(sweep, chosen, choices, verdict) : written);
    base::log_info("wrote {}", o.output);
  }
  return choices.front().fits() ? 0 : 3;
}

}  // namespace ingot::cli

// `ingot plan moe-width`: width, number and use of a mixture's experts at equal FLOPs, by what training and serving take.
#include "cli/sizing_flags.h"

namespace ingot::cli {

struct WidthFlags : SizingFlags {
  std::string config, equal = "flops";
  std::vector<std::string> set;
  std::vector<int64_t> top_k;
  int64_t hidden = 0, layers = 0, context = 0, prompt = 0;
};

#ifndef INGOT_COMPUTES
void add_plan_moe_width(Flags& flags) {
  const auto values = std::make_shared<WidthFlags>();
  auto& o = *values;
  auto& verb =
      flags.verb("plan", "moe-width", "width, number and use of a mixture's experts at equal FLOPs: throughput against latency", values);
  verb.add_option("config", o.config, "configuration (TOML) to start from; or --hidden");
  add_set(verb, o.set);
  verb.add_option("--hidden", o.hidden, "without a configuration: a zaya1 of this width, with 16 experts as wide")
      ->check(CLI::Range(int64_t{64}, int64_t{32768}));
  verb.add_option("--layers", o.layers, "and so many layers (default: hidden / 51, as ZAYA1)")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  verb.add_option("--equal", o.equal, "what all have in common: flops (of training, a token) or active (parameters)")
      ->check(CLI::IsMember({"flops", "active"}));
  verb.add_option("--experts", o.experts, "numbers of experts (default 1,2,4,...,128)")
      ->delimiter(',')
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option("--top-k", o.top_k, "experts of a token (default 1,2,4,8)")->delimiter(',')->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option("--context", o.context, "tokens behind which one is decoded (default: the sequence)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb.add_option("--prompt", o.prompt, "tokens of a prompt (default: half the sequence)")->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  verb.add_option("-o,--output", o.output, "write a page with plots (.html), or everything (.json)");
  add_sizing(verb, o);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <optional>

#include "base/counts.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/show.h"
#include "plan/report/expert_width.h"
#include "plan/sizing.h"
#include "report/experts/page.h"
#include "train/config.h"
#include "train/phases.h"

namespace ingot::cli {
namespace {

plan::ExpertSweep sweep_of(const WidthFlags& s, const plan::Device& device) {
  if (s.config.empty() == (s.hidden == 0))
    throw base::UsageError("give a configuration, such as configs/zaya1-base.toml, or --hidden H, and not both");
  plan::ExpertSweep sweep;
  if (s.config.empty()) {
    if (s.hidden % 256 != 0) throw base::UsageError("--hidden {}: query heads of 128 fill half of it; say a multiple of 256", s.hidden);
    sweep.base = plan::shape_of({.multiple = 64, .vocab = s.vocab > 0 ? s.vocab : 131072, .is_mixture = true}, s.hidden,
                                s.layers > 0 ? s.layers : std::max<int64_t>(1, s.hidden / 51));
    sweep.job.seq = device.is_measured() ? 512 : 4096;
    sweep.job.batch = (int64_t{1} << 20) / sweep.job.seq;
  } else {
    const auto config = train::read_config(s.config, s.set);
    train::check(config);
    const auto phase = train::lay_out_phases(config).front();
    sweep.base = config.model;
    if (s.vocab > 0) sweep.base.vocab_size = s.vocab;
    sweep.job = {.batch = phase.batch_size, .seq = phase.data.seq_len, .optimizer = phase.optimizer};
  }
  if (s.seq > 0) sweep.job.seq = s.seq;
  if (const double tokens = base::quantity_from("--batch-tokens", s.batch_tokens, 1e12); tokens > 0)
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

std::string page_of(const plan::ExpertSweep& sweep, const plan::SizingDevice& chosen, const std::vector<plan::ExpertChoice>& choices,
                    const plan::ExpertDocument& document) {
  report::ExpertPage page{.title = fmt::format("Width of experts: {} layers of hidden {}", sweep.base.layers, sweep.base.hidden),
                          .notes = base::split(document.heading, '\n'),
                          .columns = document.columns,
                          .points = {}};
  page.notes.pop_back();  // behind the last line
  page.notes.insert(page.notes.end(), document.sentences.begin(), document.sentences.end());
  page.notes.emplace_back(plan::kExpertCaution);
  for (size_t i = 0; i < choices.size(); ++i) {
    const auto& c = choices[i];
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
                           .cells = document.cells[i]});
  }
  return report::make_expert_page(page, "from " + chosen.device.profile.date + " rates");
}

}  // namespace

int run_plan_moe_width(const Call& call) {
  const auto& o = call.options<WidthFlags>();
  const auto chosen = device_of(o);
  const auto sweep = sweep_of(o, chosen.device);
  plan::DataParallel devices(chosen.device);
  std::optional<base::ProgressBar> bar;
  const auto choices = plan::sweep_experts(sweep, devices, [&](int64_t done, int64_t count) {
    if (!bar) bar.emplace("moe-width", count, base::ProgressUnit::count);
    bar->update(done);
  });
  if (bar) bar->update(static_cast<int64_t>(choices.size())), bar->finish();
  const auto document = plan::document_of(sweep, chosen, choices);
  const bool is_page = o.output.ends_with(".html");
  show(call, document.json, document.text, is_page ? "" : o.output);
  if (is_page) {
    base::write_file_atomically(o.output, page_of(sweep, chosen, choices, document));
    base::log_info("wrote {}", o.output);
  }
  return document.fits ? 0 : 3;
}

}  // namespace ingot::cli
#endif

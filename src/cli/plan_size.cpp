// `ingot plan size`: the sizes of a model that suit a device, and why.
#include "cli/sizing_flags.h"

namespace ingot::cli {

// Counts as text, such as 8B or 1e21.
struct SizeFlags : SizingFlags {
  std::string family = "dense", params, active, flops, tokens;
  double share = 0.9;
  bool no_probe = false;
};

#ifndef INGOT_COMPUTES
void add_plan_size(Flags& flags) {
  const auto values = std::make_shared<SizeFlags>();
  auto& o = *values;
  auto& verb =
      flags.verb("plan", "size", "the sizes of a model that suit a device, with the numbers behind each, and a configuration", values);
  verb.add_option("--params", o.params, "parameters, all of them, such as 8B");
  verb.add_option("--active", o.active, "parameters that a token meets, embeddings left out, such as 760M");
  verb.add_option("--flops", o.flops, "FLOPs of the whole training, such as 1e21");
  verb.add_option("--tokens", o.tokens, "tokens of the whole training, such as 100B");
  verb.add_option("--family", o.family, "dense (llama) or moe (zaya1)")->check(CLI::IsMember({"dense", "moe"}));
  verb.add_option("--experts", o.experts, "experts of a mixture (default: as many as cost little)")
      ->expected(1)
      ->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option("--share", o.share, "of the best rate that GEMMs shall reach")->check(CLI::Range(0.1, 0.99))->capture_default_str();
  verb.add_flag("--no-probe", o.no_probe, "do not measure neighbouring shapes (some seconds) where the profile is of this machine");
  verb.add_option("-o,--output", o.output, "write the configuration (.toml), or everything (.json)");
  add_sizing(verb, o);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <optional>

#include "base/counts.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "bench/shape_probe.h"
#include "cli/show.h"
#include "plan/disturbed.h"
#include "plan/report/size.h"

namespace ingot::cli {
namespace {

plan::SizeRequest request_of(const SizeFlags& s, bool is_measured) {
  return {.is_mixture = s.family == "moe",
          .parameters = base::quantity_from("--params", s.params, 1e14),
          .active = base::quantity_from("--active", s.active, 1e14),
          .flops = base::quantity_from("--flops", s.flops, 1e30),
          .tokens = base::quantity_from("--tokens", s.tokens, 1e16),
          .seq = s.seq > 0     ? s.seq
                 : is_measured ? 512
                               : 4096,
          .vocab = s.vocab,
          .multiple = s.multiple,
          .experts = s.experts.empty() ? 0 : s.experts.front(),
          .share = s.share,
          .batch_tokens = base::quantity_from("--batch-tokens", s.batch_tokens, 1e12)};
}

// From the table where it has neighbouring sizes, else by a probe where that is possible.
std::optional<plan::ShapeMultiples> shapes_of(const plan::SizingDevice& chosen, bool probes) {
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
    if (foreign > plan::kBusyShare)
      base::log_warning("other programs used {:.0f} % of this machine during the probe: small differences between sizes say nothing",
                        100 * foreign);
  }
  return plan::shape_multiples(neighbours);
}

}  // namespace

int run_plan_size(const Call& call) {
  const auto& o = call.options<SizeFlags>();
  const auto chosen = device_of(o);
  const auto request = request_of(o, chosen.device.is_measured());
  plan::check_names_a_size(request);  // before a probe that takes seconds
  plan::DataParallel devices(chosen.device);
  const auto sizing = plan::size_model(request, devices, shapes_of(chosen, !o.no_probe));
  const auto document = plan::document_of(sizing, chosen);
  const bool is_toml = o.output.ends_with(".toml");
  show(call, document.json, document.text, is_toml ? "" : o.output);
  if (is_toml) {
    base::write_file_atomically(o.output, sizing.toml);
    base::log_info("wrote {}", o.output);
  }
  return document.fits ? 0 : 3;
}

}  // namespace ingot::cli
#endif

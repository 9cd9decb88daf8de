// `ingot doctor`: what this machine can run, and what is missing; whether it is fit for a job; or which rank of a run went astray.
#include "cli/verb.h"

namespace ingot::cli {

struct DoctorOptions {
  std::string ledgers, exclusion_list;
  bool fit = false;
  double seconds = 1;
  std::vector<std::string> folders;
};

#ifndef INGOT_COMPUTES
void add_doctor(Flags& flags) {
  const auto values = std::make_shared<DoctorOptions>();
  auto& o = *values;
  auto& verb = flags.verb("doctor", "what this machine can run, and what is missing", values);
  auto* const ledgers = verb.add_option("--ledgers", o.ledgers, "a run directory whose ranks lost each other: which one went astray first");
  auto* const fit =
      verb.add_flag("--fit", o.fit,
                    "some seconds of work with known results on each core, each GPU, memory and folders, and what the hardware "
                    "counts; exits 3 when something is wrong")
          ->excludes(ledgers);
  verb.add_option("--seconds", o.seconds, "of products, with --fit")->check(CLI::Range(0.01, 86400.0))->needs(fit);
  verb.add_option("--folder", o.folders, "to write to, with --fit; may be given several times")->needs(fit);
  verb.add_option("--exclusion-list", o.exclusion_list, "file that this machine adds itself to, with --fit, when something is wrong")
      ->needs(fit);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <fmt/ranges.h>

#include <cstdio>

#include "base/error.h"
#include "comm/ledger.h"
#include "health/doctor.h"
#include "health/exclusion_list.h"
#include "health/node_fitness.h"

namespace ingot::cli {
namespace {

int compare_ledgers(const std::string& folder, bool json) {
  const auto ledgers = comm::read_ledgers(folder);
  if (ledgers.empty()) throw base::UsageError("{} has no ledger-rank-*.json: ranks write them when they lose each other", folder);
  const auto found = comm::compare(ledgers);
  using Json = nlohmann::ordered_json;
  if (json)
    std::puts(Json{{"ledgers", ledgers.size()}, {"rank", found.rank < 0 ? Json() : Json(found.rank)}, {"explanation", found.explanation}}
                  .dump(2)
                  .c_str());
  else std::puts(found.explanation.c_str());
  return 0;
}

int examine_fitness(const DoctorOptions& o, bool json) {
  health::FitnessOptions options{.seconds = o.seconds};
  options.folders.assign(o.folders.begin(), o.folders.end());
  const auto fitness = health::examine_fitness(options);
  if (json) std::puts(fitness.to_json().dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  else std::fputs(fitness.text().c_str(), stdout);
  if (fitness.is_fit()) return 0;
  if (!o.exclusion_list.empty()) health::exclude(o.exclusion_list, fitness.node, fmt::format("{}", fmt::join(fitness.reasons, "; ")));
  constexpr int kUnfitStatus = 3;  // a verification was missed
  return kUnfitStatus;
}

}  // namespace

int run_doctor(const Call& call) {
  const auto& o = call.options<DoctorOptions>();
  if (o.fit) return examine_fitness(o, call.json);
  if (!o.ledgers.empty()) return compare_ledgers(o.ledgers, call.json);
  const auto examination = health::examine();
  if (call.json)
    std::printf("%s\n", health::json_of(examination).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  else std::fputs(health::text_of(examination).c_str(), stdout);
  return examination.can_train() ? 0 : 1;
}

}  // namespace ingot::cli
#endif

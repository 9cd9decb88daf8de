// `ingot doctor`: what this machine can run, and what is missing; or which rank of a run went astray.
#include "cli/verb.h"

namespace ingot::cli {

struct DoctorOptions {
  std::string ledgers;
};

#ifndef INGOT_COMPUTES
void add_doctor(Flags& flags) {
  const auto values = std::make_shared<DoctorOptions>();
  flags.verb("doctor", "what this machine can run, and what is missing", values)
      .add_option("--ledgers", values->ledgers, "a run directory whose ranks lost each other: which one went astray first");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>

#include "base/error.h"
#include "comm/ledger.h"
#include "health/doctor.h"

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

}  // namespace

int run_doctor(const Call& call) {
  const auto& o = call.options<DoctorOptions>();
  if (!o.ledgers.empty()) return compare_ledgers(o.ledgers, call.json);
  const auto examination = health::examine();
  if (call.json)
    std::printf("%s\n", health::json_of(examination).dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  else std::fputs(health::text_of(examination).c_str(), stdout);
  return examination.can_train() ? 0 : 1;
}

}  // namespace ingot::cli
#endif

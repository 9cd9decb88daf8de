// `ingot plan errors`: how far predictions were from what the runs of this machine measured.
#include "cli/verb.h"

namespace ingot::cli {

struct ErrorsFlags {
  std::string output;
};

#ifndef INGOT_COMPUTES
void add_plan_errors(Flags& flags) {
  const auto values = std::make_shared<ErrorsFlags>();
  auto& verb = flags.verb("plan", "errors", "how far predictions were from what this machine's runs measured, raw and calibrated", values);
  add_output(verb, values->output);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/show.h"
#include "plan/report/errors.h"

namespace ingot::cli {

int run_plan_errors(const Call& call) {
  const auto cache = base::environment().cache_folder();
  if (cache.empty()) throw base::UsageError("no folder for the record of predictions: set INGOT_CACHE or HOME");
  const auto record = plan::record_path(cache);
  int64_t unreadable = 0;
  const auto groups = plan::errors_of(plan::read_record(record, &unreadable));
  if (unreadable > 0) base::log_warning("{} lines of {} cannot be read and do not count", unreadable, record.string());
  const auto document = plan::errors_document(record, groups, unreadable);
  show(call, document.json, document.text, call.options<ErrorsFlags>().output);
  return 0;
}

}  // namespace ingot::cli
#endif

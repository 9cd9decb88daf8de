#include "verify/verify.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/verbs.h"

namespace ingot::cli {

int run_verify(const Options& all) {
  const auto& o = all.verify;
  verify::Options options{.device = o.device, .rtol = o.rtol, .atol = o.atol, .settings = o.set};
  // Operators and trajectories are recorded in fp64, models in fp32.
  options.dtype = !o.dtype.empty() ? o.dtype : o.kind == "model" ? "fp32" : "fp64";
  const auto report = o.kind == "model" ? verify::verify_model(o.target, o.fixture, options)
                      : o.kind == "op"  ? verify::verify_op(o.target, o.fixture, options)
                                        : verify::verify_trajectory(o.target, o.fixture, options);
  if (all.json) std::printf("%s\n", report.json().dump(2).c_str());
  else std::fputs(report.text().c_str(), stdout);
  if (!report.pass()) base::log_error("verification failed: {} against {} in {}", o.target, o.fixture, options.dtype);
  return report.pass() ? 0 : 3;
}

}  // namespace ingot::cli

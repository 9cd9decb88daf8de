// `ingot verify`: this machine's numbers against recorded references.
#include "cli/verb.h"

namespace ingot::cli {

struct VerifyOptions {
  std::string target, fixture, dtype, device = "cpu";
  std::optional<double> rtol, atol;
  std::vector<std::string> set;
};

#ifndef INGOT_COMPUTES
void add_verify(Flags& flags) {
  const auto values = std::make_shared<VerifyOptions>();
  auto& o = *values;
  flags.group("verify", "compare this machine's numbers with a recorded reference; status 3 past the tolerance");
  const auto verb = [&](const char* name, const char* help, const char* target, const char* what) -> CLI::App& {
    auto& added = flags.verb("verify", name, help, values);
    added.add_option(target, o.target, what)->required();
    added.add_option("--fixture", o.fixture, "recorded reference, .safetensors")->required();
    added.add_option("--dtype", o.dtype, "fp64, fp32 or bf16")->check(CLI::IsMember({"fp64", "fp32", "bf16"}));
    added.add_option("--device", o.device, "cpu, cuda or emulated")->check(CLI::IsMember({"cpu", "cuda", "emulated"}));
    added.add_option("--rtol", o.rtol, "allowed difference, relative to the tensor's largest magnitude");
    added.add_option("--atol", o.atol, "allowed difference, absolute");
    return added;
  };
  add_set(verb("model", "logits, loss, every gradient and greedy ids of a Hugging Face folder", "folder", "model folder"), o.set,
          "model.key=value");
  verb("op", "single operators: muon, adamw, linear_attention", "name", "operator");
  verb("trajectory", "a short training run from the weights of a folder", "folder", "model folder");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "verify/verify.h"

namespace ingot::cli {

int run_verify(const Call& call) {
  const auto& o = call.options<VerifyOptions>();
  verify::Options options{.device = o.device, .rtol = o.rtol, .atol = o.atol, .settings = o.set};
  // Operators and trajectories are recorded in fp64, models in fp32.
  options.dtype = !o.dtype.empty() ? o.dtype : call.action == "model" ? "fp32" : "fp64";
  const auto report = call.action == "model" ? verify::verify_model(o.target, o.fixture, options)
                      : call.action == "op"  ? verify::verify_op(o.target, o.fixture, options)
                                             : verify::verify_trajectory(o.target, o.fixture, options);
  if (call.json) std::printf("%s\n", report.json().dump(2).c_str());
  else std::fputs(report.text().c_str(), stdout);
  if (!report.pass()) base::log_error("verification failed: {} against {} in {}", o.target, o.fixture, options.dtype);
  return report.pass() ? 0 : 3;
}

}  // namespace ingot::cli
#endif

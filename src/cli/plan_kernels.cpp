// `ingot plan kernels`: the least time that fused kernels could take on devices, on paper.
#include "cli/verb.h"

namespace ingot::cli {

struct KernelsFlags {
  std::vector<std::string> clusters;
  std::string dtype = "bf16", output;
};

#ifndef INGOT_COMPUTES
void add_plan_kernels(Flags& flags) {
  const auto values = std::make_shared<KernelsFlags>();
  auto& verb = flags.verb("plan", "kernels", "bytes and FLOPs of fused kernels, and the least time that they take on devices", values);
  verb.add_option("--cluster", values->clusters, "profiles of clusters, such as configs/clusters/h100-64.json; may be given several times")
      ->required();
  verb.add_option("--dtype", values->dtype, "that models compute in")->check(CLI::IsMember({"fp32", "bf16"}))->capture_default_str();
  add_output(verb, values->output);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "cli/show.h"
#include "optim/operators.h"
#include "plan/report/kernel_limits.h"

namespace ingot::cli {

int run_plan_kernels(const Call& call) {
  const auto& o = call.options<KernelsFlags>();
  std::vector<schedule::Cluster> clusters;
  std::vector<std::vector<plan::KernelLimit>> limits;
  for (const auto& path : o.clusters) {
    clusters.push_back(schedule::read_cluster(path));
    limits.push_back(plan::kernel_limits(optim::operators(), clusters.back(), o.dtype));
  }
  const auto document = plan::kernel_limits_document(clusters, limits, o.dtype);
  show(call, document.json, document.text, o.output);
  return 0;
}

}  // namespace ingot::cli
#endif

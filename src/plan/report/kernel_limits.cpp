#include "plan/report/kernel_limits.h"

namespace ingot::plan {

Document kernel_limits_document(const std::vector<schedule::Cluster>& clusters, const std::vector<std::vector<KernelLimit>>& limits,
                                const std::string& dtype) {
  Document document;
  auto& [json, text, fits] = document;
  json = {{"dtype", dtype}, {"clusters", nlohmann::ordered_json::array()}};
  for (size_t c = 0; c < clusters.size(); ++c) {
    auto kernels = nlohmann::ordered_json::array();
    for (const auto& l : limits[c])
      kernels.push_back({{"kernel", l.name},
                         {"pass", l.is_backward ? "backward" : "forward"},
                         {"rows", l.rows},
                         {"width", l.width},
                         {"moved_bytes", l.moved_bytes},
                         {"flops", l.flops},
                         {"memory_s", l.memory_s},
                         {"compute_s", l.compute_s},
                         {"least_s", l.least_s()}});
    json["clusters"].push_back({{"name", clusters[c].name},
                                {"memory_bytes_per_s", clusters[c].memory_bytes_per_s},
                                {"flops_per_s", clusters[c].rates(dtype).gemm_flops_per_s},
                                {"kernels", std::move(kernels)}});
    text += fmt::format("device {}: {}, {:.2f} TB/s, {:.0f} TFLOP/s\n", c + 1, clusters[c].name, clusters[c].memory_bytes_per_s / 1e12,
                        clusters[c].rates(dtype).gemm_flops_per_s / 1e12);
  }
  text += fmt::format("{:<22}{:<10}{:>8}{:>7}{:>11}{:>9}", "kernel, " + dtype, "pass", "rows", "width", "moved", "GFLOP");
  for (size_t c = 0; c < clusters.size(); ++c) text += fmt::format("{:>14}", fmt::format("device {}", c + 1));
  text += "\n";
  for (size_t k = 0; k < limits.front().size(); ++k) {
    const auto& first = limits.front()[k];
    text += fmt::format("{:<22}{:<10}{:>8}{:>7}{:>8.1f} MB{:>9.2f}", first.name, first.is_backward ? "backward" : "forward", first.rows,
                        first.width, first.moved_bytes / 1e6, first.flops / 1e9);
    for (const auto& of : limits) text += fmt::format("{:>9.1f} us {}", 1e6 * of[k].least_s(), of[k].is_bound_by_memory() ? "m" : "c");
    text += "\n";
  }
  text +=
      "The least time that the bytes and FLOPs of a kernel take; m: memory bounds it, c: multiplications. Nothing was measured; ingot "
      "bench "
      "all\non the device measures these sizes.\n";
  return document;
}

}  // namespace ingot::plan

#include "train/metrics/step_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace ingot::train {
namespace {

// Four significant digits without an exponent where that fits, so that a column keeps its width: "0.0123", "1.234", "12345".
std::string four_digits(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.2e}", value);
  const int decimals = std::clamp(3 - static_cast<int>(std::floor(std::log10(size))), 0, 6);
  return fmt::format("{:.{}f}", value, decimals);
}

// "1.250/1.500 GiB": both in the unit of the larger.
std::string memory_column(int64_t measured_bytes, int64_t predicted_bytes) {
  const bool gib = std::max(measured_bytes, predicted_bytes) >= int64_t{1} << 30;
  const double unit = gib ? 0x1p30 : 0x1p20;
  auto text = four_digits(static_cast<double>(measured_bytes) / unit);
  if (predicted_bytes > 0) text += "/" + four_digits(static_cast<double>(predicted_bytes) / unit);
  return text + (gib ? " GiB" : " MiB");
}

}  // namespace

std::string step_line(const StepRecord& r) {
  const auto width = std::to_string(r.steps).size();
  const double percent = r.steps > 0 ? 100.0 * static_cast<double>(r.step) / static_cast<double>(r.steps) : 0;
  auto line = fmt::format("step {:>{}}/{} {:3.0f}%  loss {:>6}  norm {:>6}  lr {:8.2e}  {:>5}", r.step, width, r.steps, percent,
                          four_digits(r.loss), four_digits(r.grad_norm), r.lr, four_digits(r.step_ms));
  if (r.predicted_step_ms > 0) line += "/" + four_digits(r.predicted_step_ms);
  line += fmt::format(" ms  {:>6} tok/s  {:>6} TFLOP/s", base::format_count(r.tokens_per_s), four_digits(r.tflops));
  if (r.mfu > 0) line += fmt::format("  MFU {:4.1f}%", 100 * r.mfu);
  line += "  mem " + memory_column(r.memory_peak_bytes, r.predicted_memory_bytes);
  if (r.expert_load) line += fmt::format("  imb {:.{}f}x", r.expert_load->imbalance(), r.expert_load->imbalance() < 10 ? 2 : 1);
  line += "  left " + base::format_duration(r.eta_s);
  if (r.validation_loss) line += "  val " + four_digits(*r.validation_loss);
  if (r.skipped) line += "  SKIPPED";
  return line;
}

std::string evaluation_line(int64_t step, const Evaluation& evaluation) {
  std::vector<std::string> parts;
  for (const auto& metric : evaluation.metrics)
    parts.push_back(
        fmt::format("{} {}{}", metric.name, four_digits(metric.value), metric.error ? " ± " + four_digits(*metric.error) : std::string()));
  return fmt::format("step {}  {} ({} items): {}", step, evaluation.task, evaluation.items, fmt::join(parts, ", "));
}

std::string step_line_legend() {
  return "step lines: ms and mem are measured/predicted; norm is before clipping; imb is the experts' load imbalance, max/mean; "
         "left is time left; val is the validation loss";
}

std::string mfu_convention(double peak_tflops, std::string_view peak_source) {
  const std::string counted = "model FLOPs forward and backward; causal attention counted once, active experts only, recompute not counted";
  if (!(peak_tflops > 0)) return fmt::format("TFLOP/s: {}; no MFU, as no peak is known (ingot bench gemm measures it)", counted);
  return fmt::format("MFU = TFLOP/s / {} TFLOP/s per rank ({}); {}", four_digits(peak_tflops), peak_source, counted);
}

}  // namespace ingot::train

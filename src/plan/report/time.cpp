#include "plan/report/time.h"

#include <cmath>

#include "base/text.h"
#include "layers/cost.h"
#include "plan/describe.h"
#include "plan/report/run.h"

namespace ingot::plan {

using base::format_count;
using Json = nlohmann::ordered_json;

namespace {

// Steps of later phases, which may be longer, and wider apart.
std::vector<double> step_s_of_phases(Planner& planner, const Choice& choice, double first_s, Document& document) {
  std::vector<double> seconds = {first_s};
  const auto& phases = planner.phases();
  if (phases.size() == 1) return seconds;
  document.text += "\nphases\n";
  document.json["phases"] = Json::array();
  for (size_t i = 0; i < phases.size(); ++i) {
    if (i > 0) seconds.push_back(planner.judge(choice, {}, i).step_s());
    const auto& phase = phases[i];
    document.text += fmt::format("  {:<28}{:>12.2f} ms  {} steps of {} sequences of {} tokens\n", phase.name, seconds[i] * 1e3, phase.steps,
                                 phase.batch_size, phase.data.seq_len);
    document.json["phases"].push_back({{"phase", phase.name}, {"steps", phase.steps}, {"step_ms", seconds[i] * 1e3}});
  }
  return seconds;
}

// The whole run, by what the profile knows.
void add_run(const Failures& failures, Planner& planner, const Choice& choice, double step_s, Document& document) {
  auto run = planner.run_plan(choice, step_s_of_phases(planner, choice, step_s, document));
  run.device_mtbf_h = failures.mtbf_h;
  run.restart_s = failures.restart_s;
  const auto t = predict_run_time(run);
  const bool is_here = planner.target().is_here;
  const bool knows_data = run.load_s > 0, knows_saves = run.save_write_s > 0;
  document.json["run"] = {{"steps", run.steps},
                          {"steps_s", t.steps_s},
                          {"validation_s", t.validation_s},
                          {"saves", t.saves},
                          {"saved_bytes", planner.saved_bytes()},
                          {"save_write_s", knows_saves ? Json(run.save_write_s) : Json(nullptr)},
                          {"saves_s", t.saves > 0 && !knows_saves ? Json(nullptr) : Json(t.saves_s)},
                          {"load_s", knows_data ? Json(run.load_s) : Json(nullptr)},
                          {"data_s", knows_data ? Json(t.data_s) : Json(nullptr)},
                          {"failures_s", std::isfinite(t.failures_s) ? Json(t.failures_s) : Json(nullptr)},
                          {"total_s", std::isfinite(t.total_s()) ? Json(t.total_s()) : Json(nullptr)},
                          {"goodput", t.goodput()}};
  auto& text = document.text;
  const auto line = [&](const std::string& what, double seconds, const std::string& how = "") {
    text += fmt::format("  {:<28}{:>15}{:>9.2f} %  {}\n", what, base::format_duration(seconds), 100 * seconds / t.total_s(), how);
  };
  text += fmt::format("\nthe run of {} steps\n", run.steps);
  if (!std::isfinite(t.total_s())) {
    text += fmt::format("  it does not come to an end: failures of {} devices come sooner than what lies between two checkpoints is done\n",
                        run.devices);
    return;
  }
  line("steps", t.steps_s);
  if (run.validations > 0) line("validation", t.validation_s, fmt::format("{} times", run.validations));
  if (t.saves > 0)
    line("checkpoints", t.saves_s,
         fmt::format("{} of {}{}", t.saves, base::format_bytes(planner.saved_bytes()),
                     knows_saves ? fmt::format(", durable after {}", base::format_duration(run.save_write_s))
                     : is_here   ? "; storage was not measured: ingot bench all does that"
                                 : "; copying and storage of a cluster count as free"));
  if (knows_data)
    line("waiting for data", t.data_s, fmt::format("storage reads a step's data in {} at most", base::format_duration(run.load_s)));
  if (run.device_mtbf_h > 0)
    line("failures", t.failures_s,
         t.saves > 0 ? fmt::format("{:g} h between those of one of {} devices, {:g} s to start again", run.device_mtbf_h, run.devices,
                                   run.restart_s)
                     : "nothing is saved: each costs all that was done");
  line("all", t.total_s(), fmt::format("goodput {:.2f} %", 100 * t.goodput()));
}

}  // namespace

Document time_of(Planner& planner, int64_t devices, const Failures& failures, const std::vector<Outcome>& record) {
  const auto choice = planner.configured(devices);
  planner.check(choice);
  const auto j = planner.judge(choice, planner.memory(choice));
  auto document = header_of(planner, devices);
  auto& [json, text, fits] = document;
  json.update(to_json(j, planner));
  text += label(choice) + "\n\n";
  const auto line = [&](const char* what, double seconds) {
    if (seconds > 0) text += fmt::format("  {:<28}{:>12.2f} ms {:>5.1f} %\n", what, seconds * 1e3, 100 * seconds / j.step_s());
  };
  line("matmul", j.time.gemm_s);
  line("attention", j.time.attention_s);
  line("head and loss", j.time.head_s);
  line("other kernels", j.time.kernels_s);
  line("recomputation", j.time.recompute_s);
  line("waiting for other stages", j.time.waiting_s);
  line("optimizer", j.time.optimizer_s);
  line("between operations", j.time.between_s);
  line("waiting for slower ranks", j.time.uneven_s);
  line("communication in blocks", j.communication.blocks_s);
  line("communication of gradients", j.communication.gradients_s);
  line("communication of experts", j.communication.experts_s);
  line("communication of stages", j.communication.stages_s);
  line("communication of the update", j.communication.update_s);
  line("step", j.step_s());
  text += fmt::format("  {} tokens/s, {} a device, {:.1f} % MFU\n{}\n",
                      format_count(static_cast<double>(planner.tokens_per_step()) / j.step_s()),
                      format_count(static_cast<double>(planner.tokens_per_step()) / j.step_s() / static_cast<double>(devices)),
                      100 * planner.mfu(j), layers::kMfuConvention);
  if (planner.target().is_here) {
    auto outcome = planner.identity(choice);
    const auto calibration = calibrate(outcome, j.step_s(), j.memory.total_bytes(), record);
    const auto* last = last_like(outcome, record);
    text += describe(outcome, calibration, last);
    json["calibrated"] = to_json(outcome, calibration, last);
  }
  add_run(failures, planner, choice, j.step_s(), document);
  return document;
}

}  // namespace ingot::plan

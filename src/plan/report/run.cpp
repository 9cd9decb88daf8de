#include "plan/report/run.h"

#include <algorithm>

#include "base/text.h"
#include "layers/cost.h"
#include "plan/describe.h"

namespace ingot::plan {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

namespace {

std::string counted(int64_t count, const std::string& noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

// A layout that was found, and whose planner judged it.
struct Found {
  const Judged* judged;
  const Planner* planner;
  int64_t all_memory() const { return judged->memory.total_bytes() * judged->choice.ranks(); }
};

}  // namespace

Json to_json(const Judged& j, const Planner& planner) {
  const auto& p = j.choice.parallel;
  return {{"layout", label(j.choice)},
          {"parallel",
           {{"pipeline", p.pipeline},
            {"data", p.data},
            {"context", p.context},
            {"context_method", p.context_method},
            {"tensor", p.tensor},
            {"tensor_sequence", p.tensor_sequence},
            {"expert", p.expert},
            {"zero", p.zero}}},
          {"microbatch_size", j.choice.microbatch},
          {"recompute", recompute_name(j.choice.recompute)},
          {"memory_bytes", to_json(j.memory)},
          {"step_ms", to_json(j.time, j.communication)},
          {"tokens_per_s", static_cast<double>(planner.tokens_per_step()) / j.step_s()},
          {"mfu", planner.mfu(j)}};
}

Document header_of(const Planner& planner, int64_t devices) {
  Document document;
  document.json = {{"cluster", planner.cluster().name},
                   {"devices", devices},
                   {"parameters", planner.model().parameters().weight_elements()},
                   {"flops_per_token", planner.flops_per_token()},
                   {"tokens_per_step", planner.tokens_per_step()},
                   {"mfu_convention", layers::kMfuConvention}};
  const auto& c = planner.model().config();
  const auto& target = planner.target();
  const auto where = target.is_here
                         ? fmt::format("this machine ({}), {} with {} of {}{}", target.profile.cpu, counted(devices, "rank"),
                                       counted(target.profile.threads, "thread"),
                                       format_bytes(static_cast<int64_t>(target.cluster.memory_bytes)), devices > 1 ? " each" : "")
                         : fmt::format("{} devices of {}, {} each", devices, target.cluster.name,
                                       format_bytes(static_cast<int64_t>(target.cluster.memory_bytes)));
  document.text = fmt::format("{}: {} layers, hidden {}, {} parameters, {} FLOPs per token; {} tokens a step, {}\n{}\n", c.family, c.layers,
                              c.hidden, format_count(static_cast<double>(planner.model().parameters().weight_elements())),
                              format_count(planner.flops_per_token()), planner.tokens_per_step(), planner.config().train.precision, where);
  return document;
}

Document memory_of(Planner& planner, int64_t devices, double expert_load) {
  const auto choice = planner.configured(devices);
  planner.check(choice);
  auto document = header_of(planner, devices);
  auto& [json, text, fits] = document;
  json["layout"] = label(choice);
  text += label(choice) + "\n\n";
  text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", "stage", "weights", "gradients", "optimizer", "activations",
                      "update", "program", "peak");
  for (int stage = 0; stage < choice.parallel.pipeline; ++stage) {
    const auto m = planner.memory(choice, stage);
    auto entry = to_json(m);
    entry["stage"] = stage;
    json["stages"].push_back(entry);
    text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", stage, format_bytes(m.weights_bytes),
                        format_bytes(m.gradients_bytes), format_bytes(m.optimizer_bytes), format_bytes(m.forward_backward_bytes),
                        format_bytes(m.update_bytes), format_bytes(m.program_bytes + m.gemm_kernels_bytes), format_bytes(m.total_bytes()));
    fits = fits && static_cast<double>(m.total_bytes()) <= planner.cluster().memory_bytes;
  }
  if (const auto& p = choice.parallel; p.expert > 1) {
    const auto peak = [&](double load) {
      planner.set_expert_load(load);
      return planner.memory(choice).total_bytes();
    };
    const int64_t even = peak(1), bound = peak(static_cast<double>(p.expert)), expected = peak(expert_load);
    json["experts"] = {{"expert_load", expert_load}, {"even", even}, {"expected", expected}, {"bound", bound}};
    text += fmt::format(
        "\nrows of {} ranks that share experts: {} when all get as many, {} when the busiest gets {:g} times the mean, {} when it gets "
        "all\n",
        p.expert, format_bytes(even), format_bytes(expected), expert_load, format_bytes(bound));
    if (fits && static_cast<double>(bound) > planner.cluster().memory_bytes)
      text += "the last does not fit: a router that fails to balance ends such a run\n";
  }
  json["fits"] = fits;
  if (!fits) text += "does not fit; ingot plan search finds what does\n";
  return document;
}

Document search_of(const std::vector<Planner>& planners, const std::vector<SearchResult>& results, int64_t top) {
  Document document;
  auto& [json, text, fits] = document;
  json = header_of(planners.front(), planners.back().target().devices).json;
  std::vector<Found> fitting, pareto;
  for (size_t i = 0; i < planners.size(); ++i) {
    const auto& r = results[i];
    text += header_of(planners[i], planners[i].target().devices).text;
    text += fmt::format("{}: {} do not divide the model or batch, {} do not fit into memory, {} cannot come near the best; {} judged\n",
                        r.meshes == 1 ? "1 mesh" : fmt::format("{} meshes", r.meshes), r.impossible, r.too_large, r.behind,
                        counted(static_cast<int64_t>(r.fitting.size()), "layout"));
    json["meshes"].push_back({{"devices", planners[i].target().devices},
                              {"all", r.meshes},
                              {"impossible", r.impossible},
                              {"too_large", r.too_large},
                              {"behind", r.behind}});
    for (const auto& j : r.fitting) fitting.push_back({&j, &planners[i]});
    for (const auto& j : r.pareto) pareto.push_back({&j, &planners[i]});
  }
  if (fitting.empty()) {
    for (const auto& r : results)
      text += r.smallest ? fmt::format("nothing fits; {} needs least, {} a device\n", label(*r.smallest), format_bytes(r.smallest_bytes))
                         : "nothing divides; train.batch_size and the devices have too few factors in common\n";
    json["layouts"] = Json::array();
    fits = false;
    return document;
  }
  for (auto* list : {&fitting, &pareto})
    std::stable_sort(list->begin(), list->end(), [](const Found& a, const Found& b) { return a.judged->step_s() < b.judged->step_s(); });
  std::vector<Found> front;
  for (const auto& found : pareto)
    if (front.empty() || found.all_memory() < front.back().all_memory()) front.push_back(found);
  text += fmt::format("\n{:>3}  {:>11}{:>12}{:>8}{:>11}  {:<74} {}\n", "", "step", "tokens/s", "MFU", "memory", "layout", "what binds");
  const auto row = [&](const std::string& mark, const Found& found) {
    const auto& [j, planner] = found;
    return fmt::format("{:>3}  {:>11}{:>12}{:>6.1f} %{:>11}  {:<74} {}\n", mark, format_step_time(j->step_s()),
                       format_count(static_cast<double>(planner->tokens_per_step()) / j->step_s()), 100 * planner->mfu(*j),
                       format_bytes(j->memory.total_bytes()), label(j->choice),
                       binding(*j, static_cast<int64_t>(planner->cluster().memory_bytes)));
  };
  const auto shown = std::min<size_t>(fitting.size(), static_cast<size_t>(top));
  for (size_t i = 0; i < shown; ++i) {
    text += row(std::to_string(i + 1), fitting[i]);
    json["layouts"].push_back(to_json(*fitting[i].judged, *fitting[i].planner));
  }
  text += "\nless memory for more time:\n";
  for (const auto& found : front) {
    text += row("", found);
    json["pareto"].push_back(to_json(*found.judged, *found.planner));
  }
  const auto& best = fitting.front().judged->choice;
  text += "\n" + as_toml(best);
  if (planners.front().target().is_here && best.ranks() > 1)
    text += fmt::format("\nstart it with: ingot launch -n {} -- ingot train …\n", best.ranks());
  json["toml"] = as_toml(best);
  return document;
}

}  // namespace ingot::plan

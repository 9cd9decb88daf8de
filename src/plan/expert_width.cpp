#include "plan/expert_width.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "models/model.h"

namespace ingot::plan {
namespace {

std::unique_ptr<models::Model> with_experts(models::ModelConfig config, int64_t experts, int64_t top_k, int64_t expert_ffn) {
  config.experts = experts;
  config.top_k = top_k;
  config.expert_ffn = expert_ffn;
  return models::create_model(config);
}

double amount(const models::Model& model, Equal equal, int64_t seq) {
  return equal == Equal::flops ? model.training_flops_per_token(seq) : static_cast<double>(model.active_elements());
}

// Both amounts grow with the width by a constant, so two widths tell all.
double exact_width(const models::ModelConfig& base, Equal equal, int64_t experts, int64_t top_k, int64_t seq) {
  const double wanted = amount(*with_experts(base, base.experts, base.top_k, base.expert_ffn), equal, seq);
  const double one = amount(*with_experts(base, experts, top_k, 1), equal, seq);
  const double each = amount(*with_experts(base, experts, top_k, 2), equal, seq) - one;
  return 1 + (wanted - one) / each;
}

ExpertChoice judge(const ExpertSweep& sweep, DataParallel& devices, int64_t experts, int64_t top_k, int64_t expert_ffn) {
  const auto model = with_experts(sweep.base, experts, top_k, expert_ffn);
  ExpertChoice choice{.experts = experts, .top_k = top_k, .expert_ffn = expert_ffn};
  choice.parameters = model->parameters().weight_elements();
  choice.active_parameters = model->active_elements();
  choice.flops_per_token = model->training_flops_per_token(sweep.job.seq);
  choice.run = devices.best(*model, sweep.job);
  choice.memory = choice.run ? choice.run->memory : devices.least_memory(*model, sweep.job);
  choice.decode = decode_latency(*model, sweep.context, devices.device());
  choice.prefill = prefill_latency(*model, sweep.prompt, devices.device(), devices.rates());
  if (!choice.run) return choice;
  choice.mfu = devices.mfu(*model, *choice.run);
  choice.tokens_per_expert =
      static_cast<double>(choice.run->shape.sequences_at_once() * sweep.job.seq * top_k) / static_cast<double>(experts);
  return choice;
}

std::vector<size_t> fitting(const std::vector<ExpertChoice>& choices) {
  std::vector<size_t> which;
  for (size_t i = 0; i < choices.size(); ++i)
    if (choices[i].fits()) which.push_back(i);
  return which;
}

void mark_fronts(std::vector<ExpertChoice>& choices) {
  const auto which = fitting(choices);
  const auto mark = [&](bool ExpertChoice::*flag, bool decode, bool with_capacity) {
    std::vector<Objectives> points;
    for (const size_t i : which) points.push_back(objectives_of(choices[i], decode, with_capacity));
    const auto front = pareto_front(points);
    for (size_t k = 0; k < which.size(); ++k) choices[which[k]].*flag = front[k];
  };
  mark(&ExpertChoice::on_decode_front, true, false);
  mark(&ExpertChoice::on_prefill_front, false, false);
  mark(&ExpertChoice::on_decode_capacity_front, true, true);
  mark(&ExpertChoice::on_prefill_capacity_front, false, true);
}

}  // namespace

Objectives objectives_of(const ExpertChoice& choice, bool decode, bool with_capacity) {
  Objectives values = {choice.tokens_per_s(), 1 / (decode ? choice.decode : choice.prefill).total_s};
  if (with_capacity) values.push_back(static_cast<double>(choice.parameters));
  return values;
}

int64_t equal_width(const models::ModelConfig& base, Equal equal, int64_t experts, int64_t top_k, int64_t multiple, int64_t seq) {
  const double width = exact_width(base, equal, experts, top_k, seq);
  return multiple * std::max<int64_t>(1, std::llround(width / static_cast<double>(multiple)));
}

std::vector<ExpertChoice> sweep_experts(const ExpertSweep& sweep, DataParallel& devices,
                                        const std::function<void(int64_t, int64_t)>& on_choice) {
  const auto& base = sweep.base;
  if (!models::create_model(base)->has_experts())
    throw base::UsageError("the {} family has no experts; give a configuration of an MoE, such as configs/zaya1-base.toml", base.family);
  struct Shape {
    int64_t experts, top_k, expert_ffn;
  };
  std::vector<Shape> shapes = {{base.experts, base.top_k, base.expert_ffn}};
  for (const int64_t experts : sweep.experts)
    for (const int64_t top_k : sweep.top_k) {
      if (top_k > experts || (experts == base.experts && top_k == base.top_k)) continue;
      const double width = exact_width(base, sweep.equal, experts, top_k, sweep.job.seq);
      if (width < 0.5 * static_cast<double>(sweep.multiple)) continue;
      shapes.push_back({experts, top_k, equal_width(base, sweep.equal, experts, top_k, sweep.multiple, sweep.job.seq)});
    }
  std::vector<ExpertChoice> choices;
  for (const auto& shape : shapes) {
    if (on_choice) on_choice(static_cast<int64_t>(choices.size()), static_cast<int64_t>(shapes.size()));
    choices.push_back(judge(sweep, devices, shape.experts, shape.top_k, shape.expert_ffn));
  }
  choices.front().is_base = true;
  std::sort(choices.begin() + 1, choices.end(),
            [](const auto& a, const auto& b) { return std::pair(a.experts, a.top_k) < std::pair(b.experts, b.top_k); });
  mark_fronts(choices);
  return choices;
}

Dominator dominator_of(const std::vector<ExpertChoice>& choices, size_t i, bool decode, bool with_capacity) {
  if (!choices[i].fits()) return {};
  const auto which = fitting(choices);
  std::vector<Objectives> points;
  size_t self = 0;
  for (const size_t k : which) {
    if (k == i) self = points.size();
    points.push_back(objectives_of(choices[k], decode, with_capacity));
  }
  auto found = strongest_dominator(points, self);
  if (found.exists) found.point = which[found.point];
  return found;
}

}  // namespace ingot::plan

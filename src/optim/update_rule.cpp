#include "optim/update_rule.h"

#include "base/error.h"
#include "base/text.h"
#include "optim/adamw.h"
#include "optim/dion.h"
#include "optim/muon.h"
#include "optim/normuon.h"

namespace ingot::optim {

namespace {

using Rules = std::vector<std::unique_ptr<UpdateRule>>;

struct Entry {
  const char* name;
  const char* help;
  Rules (*make)(const OptimizerConfig& config);
};

template <class... Rule>
Rules rules_of(const OptimizerConfig& config) {
  Rules rules;
  (rules.push_back(std::make_unique<Rule>(config)), ...);
  return rules;
}

const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      {"muon", "Muon on hidden matrices and AdamW on the rest", &rules_of<Muon, AdamW>},
      {"normuon", "Muon with normalised rows on hidden matrices and AdamW on the rest", &rules_of<NorMuon, AdamW>},
      {"dion", "updates of low rank on hidden matrices (optimizer.rank_fraction) and AdamW on the rest", &rules_of<Dion, AdamW>},
      {"adamw", "AdamW on everything", &rules_of<AdamW>},
  };
  return entries;
}

}  // namespace

UpdateRules::UpdateRules(const OptimizerConfig& config) {
  for (const auto& entry : table())
    if (config.name == entry.name) rules_ = entry.make(config);
  if (rules_.empty()) throw base::ConfigError("optimizer.name = \"{}\": there is {}", config.name, base::join(optimizer_names(), ", "));
}

UpdateRule& UpdateRules::of(const layers::Parameter& parameter) const {
  for (const auto& rule : rules_)
    if (rule->takes(parameter)) return *rule;
  throw base::ModelError("no rule of the optimizer takes {}", parameter.name);
}

int64_t UpdateRules::state_elements(const layers::Parameter& parameter, int64_t elements) const {
  const auto& rule = of(parameter);
  int64_t all = elements * static_cast<int64_t>(rule.state_names().size());
  for (const auto& state : rule.matrix_states(parameter)) all += matrices_here(parameter) * tensor::element_count(state.shape);
  return all;
}

at::ScalarType moments_dtype(const OptimizerConfig& config, at::ScalarType master) {
  return master == at::kFloat && config.moments_dtype == "bf16" ? at::kBFloat16 : master;
}

int64_t matrices_here(const layers::Parameter& p) { return p.shape.size() == 3 ? p.local_shape()[0] : 1; }

at::Tensor matrices_of(const tensor::Region& region, const at::Tensor& flat) {
  const auto view = parallel::view_of(region, flat);
  return view.dim() == 3 ? view : view.unsqueeze(0);
}

std::vector<OwnersShare> by_owners(const RuleShare& share, const Team& team) {
  const auto group_of = [&](const layers::Parameter& p) -> comm::Group* {
    auto* group = team.owners_of ? &team.owners_of(p) : nullptr;
    return group && group->size() > 1 ? group : nullptr;
  };
  std::vector<OwnersShare> all;
  const auto share_of = [&](const layers::Parameter& p) -> OwnersShare& {
    auto* group = group_of(p);
    for (auto& one : all)
      if (one.group == group) return one;
    return all.emplace_back(OwnersShare{.group = group, .taken = {}, .slots = {}, .matrices = {}});
  };
  for (const auto* p : share.taken) share_of(*p).taken.push_back(p);
  for (auto* slot : share.slots) share_of(*slot->shard.parameter).slots.push_back(slot);
  for (auto* matrices : share.matrices) share_of(*matrices->parameter).matrices.push_back(matrices);
  return all;
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const auto& entry : table()) names.emplace_back(entry.name);
  return names;
}

std::string optimizer_help() {
  std::vector<std::string> lines;
  for (const auto& entry : table()) lines.push_back(std::string(entry.name) + ": " + entry.help);
  return base::join(lines, "; ");
}

}  // namespace ingot::optim

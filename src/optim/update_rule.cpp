#include "optim/update_rule.h"

#include "base/error.h"
#include "base/text.h"
#include "optim/adamw.h"
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
  const auto row_states = static_cast<int64_t>(rule.row_state_names().size());
  return elements * static_cast<int64_t>(rule.state_names().size()) +
         (row_states > 0 ? row_states * tensor::element_count(row_shape(parameter)) : 0);
}

at::ScalarType moments_dtype(const OptimizerConfig& config, at::ScalarType master) {
  return master == at::kFloat && config.moments_dtype == "bf16" ? at::kBFloat16 : master;
}

tensor::Shape row_shape(const layers::Parameter& p) {
  const size_t dims = p.shape.size();
  return {dims == 3 ? p.local_shape()[0] : 1, p.shape[dims - 2]};
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

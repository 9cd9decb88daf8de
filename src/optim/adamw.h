// AdamW (Loshchilov & Hutter, arXiv 1711.05101), for every kind of parameter.
#pragma once

#include "optim/update_rule.h"

namespace ingot::optim {

class AdamW : public UpdateRule {
 public:
  explicit AdamW(const OptimizerConfig& config) : config_(config) {}
  std::string_view name() const override { return "adamw"; }
  bool takes(const layers::Parameter&) const override { return true; }
  std::vector<std::string> state_names() const override { return {"first_moment", "second_moment"}; }
  void prepare(const RuleShare& share, const Team& team) override;
  void update(const Update& update) override;

 private:
  OptimizerConfig config_;
  std::vector<Slot*> slots_;
  StateHome* home_ = nullptr;
};

}  // namespace ingot::optim

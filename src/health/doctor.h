// What this machine can run and what is missing. Every finding that hinders comes with the next step.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ingot::health {

struct Finding {
  std::string what, next_step;
  bool prevents_training = false;
};

struct Examination {
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();  // section -> name -> value
  std::vector<Finding> findings;

  void add(const char* section, const char* name, nlohmann::ordered_json value) { facts[section][name] = std::move(value); }
  bool can_train() const {
    return std::none_of(findings.begin(), findings.end(), [](const Finding& f) { return f.prevents_training; });
  }
};

/// Looks at the machine, its disk, GPUs and surroundings, and takes a step of a tiny model. Throws nothing: what fails is a finding.
Examination examine();

std::string text_of(const Examination& examination);
nlohmann::ordered_json json_of(const Examination& examination);

}  // namespace ingot::health

// The kinds of steps; each is made of its settings, and throws ConfigError, FileError or DataError.
#pragma once

#include "data/process/step.h"

namespace ingot::data::process {

std::unique_ptr<Filter> make_rules(const StepConfig& config);
std::unique_ptr<Filter> make_lines(const StepConfig& config);
std::unique_ptr<Filter> make_classifier(const StepConfig& config);
std::unique_ptr<Filter> make_language(const StepConfig& config);
std::unique_ptr<Filter> make_contamination(const StepConfig& config);
std::unique_ptr<Filter> make_personal_data(const StepConfig& config);
std::unique_ptr<Search> make_duplicates(const StepConfig& config);
std::unique_ptr<Search> make_near_duplicates(const StepConfig& config);

}  // namespace ingot::data::process

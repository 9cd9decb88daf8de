#include "data/process/steps.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace ingot::data::process {
namespace {

struct Kind {
  const char* name;
  std::vector<std::string> settings;  // beside kind and name
  std::unique_ptr<Filter> (*filter)(const StepConfig&);
  std::unique_ptr<Search> (*search)(const StepConfig&);
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"rules", {"keep"}, &make_rules, nullptr},
      {"lines", {"keep"}, &make_lines, nullptr},
      {"duplicates", {"of", "least_characters"}, nullptr, &make_duplicates},
      {"near_duplicates", {"words", "bands", "rows"}, nullptr, &make_near_duplicates},
      {"language", {"languages", "share"}, &make_language, nullptr},
      {"classifier", {"model", "threshold"}, &make_classifier, nullptr},
      {"contamination", {"files", "field", "words", "overlap"}, &make_contamination, nullptr},
      {"personal_data", {"mask"}, &make_personal_data, nullptr},
  };
  return all;
}

// What was set of a kind that has no such setting.
void refuse_others(const StepConfig& config, const Kind& kind) {
  const StepConfig usual;
  const std::pair<const char*, bool> changed[] = {{"keep", config.keep != usual.keep},
                                                  {"of", config.of != usual.of},
                                                  {"least_characters", config.least_characters != usual.least_characters},
                                                  {"words", config.words != usual.words},
                                                  {"bands", config.bands != usual.bands},
                                                  {"rows", config.rows != usual.rows},
                                                  {"files", config.files != usual.files},
                                                  {"field", config.field != usual.field},
                                                  {"overlap", config.overlap != usual.overlap},
                                                  {"mask", config.mask != usual.mask},
                                                  {"languages", config.languages != usual.languages},
                                                  {"share", config.share != usual.share},
                                                  {"model", config.model != usual.model},
                                                  {"threshold", config.threshold != usual.threshold}};
  for (const auto& [name, is_changed] : changed)
    if (is_changed && std::find(kind.settings.begin(), kind.settings.end(), name) == kind.settings.end())
      throw base::ConfigError("{}: {} is no setting of {}, which has {}", config.name, name, kind.name, base::join(kind.settings, ", "));
}

}  // namespace

Step make_step(const StepConfig& config) {
  const auto found = std::find_if(kinds().begin(), kinds().end(), [&](const Kind& kind) { return config.kind == kind.name; });
  if (found == kinds().end()) throw base::ConfigError("{}: there is no step of kind {}", config.name, config.kind);
  refuse_others(config, *found);
  try {
    return {config.name, found->filter ? found->filter(config) : nullptr, found->search ? found->search(config) : nullptr};
  } catch (const base::ConfigError& wrong) {
    const std::string what = wrong.what();
    if (what.starts_with(config.name)) throw;
    throw base::ConfigError("{}: {}", config.name, what);
  }
}

std::vector<std::string> step_kinds() {
  std::vector<std::string> names;
  for (const auto& kind : kinds()) names.emplace_back(kind.name);
  return names;
}

}  // namespace ingot::data::process

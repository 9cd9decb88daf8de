// Steps that keep documents, or lines of them, for which rules hold.
#include "base/error.h"
#include "data/process/measures.h"
#include "data/process/steps.h"
#include "data/process/text_parts.h"

namespace ingot::data::process {
namespace {

class Rules : public Filter {
 public:
  explicit Rules(const StepConfig& config) : rules_(rules_of(config.keep)) {}
  bool apply(Document& document, Tally& tally) const override {
    const Measured measured(document.text);
    for (const auto& rule : rules_) {
      if (rule.holds(measured)) continue;
      tally.remove(document, "not " + rule.text, fmt::format("{:.4g}", measured.value_of(rule.measure)));
      return false;
    }
    return true;
  }

 private:
  std::vector<Rule> rules_;
};

class Lines : public Filter {
 public:
  explicit Lines(const StepConfig& config) : rules_(rules_of(config.keep, /*of_lines=*/true)) {}
  bool apply(Document& document, Tally& tally) const override {
    std::string kept;
    for (const auto line : lines_with_ends(document.text)) {
      if (!trimmed(line).empty() && !stays(trimmed(line), tally)) continue;
      kept += line;
    }
    if (trimmed(kept).empty() && !trimmed(document.text).empty()) {
      tally.remove(document, "no line is left");
      return false;
    }
    document.text = std::move(kept);
    return true;
  }

 private:
  bool stays(std::string_view line, Tally& tally) const {
    const Measured measured(line);
    for (const auto& rule : rules_) {
      if (rule.holds(measured)) continue;
      tally.count("lines: not " + rule.text, 1);
      return false;
    }
    return true;
  }
  std::vector<Rule> rules_;
};

void need_rules(const StepConfig& config) {
  if (config.keep.empty()) throw base::ConfigError("{}: keep is empty: name rules, or a set of them", config.name);
}

}  // namespace

std::unique_ptr<Filter> make_rules(const StepConfig& config) {
  need_rules(config);
  return std::make_unique<Rules>(config);
}
std::unique_ptr<Filter> make_lines(const StepConfig& config) {
  need_rules(config);
  return std::make_unique<Lines>(config);
}

}  // namespace ingot::data::process

// The steps of a recipe. A Filter looks at one document at a time, on any thread; a Search has to have seen all of them before it knows
// which ones go (duplicates). steps.cpp has the table of both: a new kind of step is a file and a line there.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/process/document.h"
#include "data/process/recipe.h"
#include "data/process/records.h"

namespace ingot::data::process {

class Filter {
 public:
  virtual ~Filter() = default;
  /// Changes the document or removes it (tally.remove); false when it was removed. Any thread.
  virtual bool apply(Document& document, Tally& tally) const = 0;
};

class Search {
 public:
  virtual ~Search() = default;
  /// Appends what is compared of the document: equal keys, equal documents or parts of them. Any thread.
  virtual void keys_of(const Document& document, int64_t number, std::vector<Record>& keys) const = 0;
  /// Of all keys, sorted by key and then place: what goes, in any order. `earlier`: the place that is kept of the same.
  virtual void find(RecordSorter& keys, const std::function<void(Removal)>& remove) const = 0;
  /// Takes what goes out of the document; false when all of it goes.
  virtual bool take_out(Document& document, std::span<const Removal> removals, Tally& tally) const = 0;
};

struct Step {
  std::string name;
  std::unique_ptr<Filter> filter;  // or
  std::unique_ptr<Search> search;
};

/// Throws ConfigError naming the step for settings that do not fit.
Step make_step(const StepConfig& config);
/// The values of `kind`.
std::vector<std::string> step_kinds();

}  // namespace ingot::data::process

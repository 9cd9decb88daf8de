// Runs a recipe: documents go through its steps in their order, and what stays is written as JSON lines in zstd, the same bytes whatever
// the number of threads. Memory does not grow with the texts but for what near duplicates have in common; what is compared of them lies on
// disk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/process/document.h"
#include "data/process/recipe.h"

namespace ingot::data::process {

struct ProcessOptions {
  int threads = 0;  // 0 = one per core
  /// On the calling thread: which pass, and bytes of what it reads.
  std::function<void(const std::string& pass, int64_t done_bytes, int64_t total_bytes)> progress;
};

struct ProcessResult {
  struct OfStep {
    std::string name, kind;
    Tally tally;
  };
  struct OfSource {
    std::string name;
    int64_t documents = 0, bytes = 0, kept_documents = 0, kept_bytes = 0;
  };
  std::vector<OfSource> sources;
  std::vector<OfStep> steps;
  std::vector<std::string> files;  // written, inside of the folder
  int64_t empty_documents = 0, bad_lines = 0, invalid_utf8 = 0;
  std::string first_bad_line, first_invalid_utf8;  // "file:line: reason"
  int64_t work_bytes = 0;                          // the most that lay in the work folder
};

/// Nothing appears in the recipe's folder before all is done: files "part-00000.jsonl.zst", "report.json" last. Throws UsageError where
/// there are some already, DataError and FileError.
ProcessResult process(const Recipe& recipe, const ProcessOptions& options);

/// Of the report.
nlohmann::ordered_json to_json(const ProcessResult& result);
/// For people: what each step removed, and examples.
std::string to_markdown(const ProcessResult& result);

}  // namespace ingot::data::process

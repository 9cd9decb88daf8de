// Traces on disk: what the same program traced before, of the same model and shape, on a machine with the same kernels. A search over a
// thousand GPUs' layouts takes seconds of tracing, and the next one none.
//
// Files are a cache's: one that is missing, damaged or of another program is as if it were not there, and one that cannot be written is
// left out. Each belongs to one key, which it holds; its bytes are checked by XXH3.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "plan/trace/pass_trace.h"

namespace ingot::plan {

class TraceStore {
 public:
  /// `folder`: of one program; made when the first trace is written.
  explicit TraceStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  std::optional<PassTrace> pass(const std::string& key) const;
  std::optional<UpdateTrace> update(const std::string& key) const;
  void keep(const std::string& key, const PassTrace& trace);
  void keep(const std::string& key, const UpdateTrace& trace);

 private:
  std::filesystem::path file_of(const std::string& key) const;
  void write(const std::string& key, const std::string& content);

  std::filesystem::path folder_;
  bool is_open_ = true;  // nothing went wrong with it
};

/// From now on all PassTraces of this process keep theirs in a folder of this program under `cache_folder` (base/environment.h), unless
/// that is empty. Folders of other programs are removed when there are more than a few.
void keep_traces(const std::string& cache_folder);
/// Null without.
TraceStore* trace_store();

}  // namespace ingot::plan

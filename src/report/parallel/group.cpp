#include "report/parallel/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "report/page/html.h"

namespace ingot::report {
namespace {

template <class Value>
void insert_sorted(std::vector<Value>& values, Value value) {
  const auto at = std::lower_bound(values.begin(), values.end(), value);
  if (at == values.end() || *at != value) values.insert(at, value);
}

}  // namespace

const schedule::Result* ParallelGroup::find(size_t method, int64_t seq) const {
  const auto found = results.find({method, seq});
  return found == results.end() ? nullptr : found->second;
}

std::vector<std::string> method_names(const std::vector<ParallelFile>& files) {
  std::vector<std::string> names;
  for (const auto& file : files)
    for (const auto& result : file.sweep.results)
      if (std::find(names.begin(), names.end(), result.method) == names.end()) names.push_back(result.method);
  return names;
}

std::vector<ParallelGroup> groups_of(const ParallelFile& file, const std::vector<std::string>& names) {
  std::vector<ParallelGroup> groups;
  std::map<std::tuple<std::string, std::string, int, int64_t>, size_t> places;
  for (const auto& result : file.sweep.results) {
    const auto [at, is_new] = places.try_emplace({result.layer, result.pass, result.ranks, result.batch}, groups.size());
    if (is_new) groups.push_back({.layer = result.layer, .pass = result.pass, .ranks = result.ranks, .batch = result.batch});
    auto& group = groups[at->second];
    const auto method = static_cast<size_t>(std::find(names.begin(), names.end(), result.method) - names.begin());
    insert_sorted(group.methods, method);
    insert_sorted(group.seqs, result.seq);
    group.results[{method, result.seq}] = &result;
  }
  return groups;
}

std::string tokens_text(int64_t tokens) {
  constexpr int64_t kKilo = 1024, kMega = kKilo * kKilo;
  if (tokens >= kMega && tokens % kMega == 0) return grouped(tokens / kMega) + "M";
  if (tokens >= kKilo && tokens % kKilo == 0) return grouped(tokens / kKilo) + "K";
  if (tokens >= kKilo && tokens % (kKilo / 4) == 0) return fmt::format("{}K", static_cast<double>(tokens) / kKilo);
  return grouped(tokens);
}

std::string pass_text(const std::string& pass) { return pass == "both" ? "forward and backward" : pass; }

}  // namespace ingot::report

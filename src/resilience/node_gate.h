// Whether this node may take part in a job: it is not on the list of nodes to be without, and, where that is asked for, `ingot doctor
// --fit` finds nothing against it. What is found goes on the list, which outlives the job.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "resilience/retry_policy.h"

namespace ingot::resilience {

class NodeGate {
 public:
  struct Options {
    std::string node;                // its name, as on the list
    std::filesystem::path list;      // health/exclusion_list.h; "": none
    std::vector<std::string> check;  // command that writes the JSON of health/node_fitness.h; empty: nodes are not checked
    double limit_s = 120;            // of the check
  };
  explicit NodeGate(Options options) : options_(std::move(options)) {}

  /// Before the first round: "", or why not. Throws FileError and DataError for a list that cannot be read.
  std::string reason_to_stay_away() const;
  /// After an attempt that a rank of this node has ended: "", or why this node should go. A rank that found its products wrong needs no
  /// check; a process that was killed from outside, or called wrongly, says nothing about its node.
  std::string reason_to_go(Cause cause, const std::string& last_line) const;
  /// Puts the node on the list; a list that cannot be written is a warning.
  void exclude(const std::string& why) const;

 private:
  std::string found_by_check() const;

  Options options_;
};

}  // namespace ingot::resilience

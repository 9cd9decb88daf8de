// What came of tasks: for people a table, for programs JSON.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "eval/estimate.h"

namespace ingot::eval {

/// A question and what the model did with it.
struct Item {
  std::string where, source;  // of the row; empty: of no source
  std::vector<Share> shares;  // of each metric
  nlohmann::ordered_json details = nlohmann::ordered_json::object();
};

/// Of a part of the items: one source, one length.
struct Group {
  std::string by, name;
  int64_t items = 0;
  std::vector<Estimate> estimates;  // of each metric
};

/// Loss of the tokens that the model has seen so many before.
struct PositionLoss {
  int64_t from = 0, to = 0, tokens = 0;
  Estimate loss;
};

struct TaskResult {
  std::string name, kind;
  std::vector<std::string> metrics;
  std::vector<Estimate> estimates;
  std::map<uint64_t, std::vector<Estimate>> by_seed;  // where there are several
  std::vector<Group> groups;
  std::vector<PositionLoss> positions;
  int64_t items = 0, shots = 0;
  std::vector<uint64_t> seeds;
  std::map<std::string, int64_t> counts;  // what was cut, scored, written
  std::vector<Item> each;
  double seconds = 0;
};

/// Fills estimates, those by seed and by source, from the items of each seed, which are of the same questions in the same order.
TaskResult summed(std::string name, std::string kind, std::vector<std::string> metrics, const std::map<uint64_t, std::vector<Item>>& items);
/// The estimates of the items that `name_of` gives the same name, in the order in which names come; "" belongs to none.
void add_groups(TaskResult& result, const std::string& by, const std::vector<Item>& items,
                const std::function<std::string(const Item&)>& name_of);

nlohmann::ordered_json json_of(const TaskResult& result);
std::string table_of(const std::vector<TaskResult>& results);
/// JSON lines: of each item what the model did.
std::string lines_of(const std::vector<TaskResult>& results);

}  // namespace ingot::eval

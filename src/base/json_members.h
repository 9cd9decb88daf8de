// Hostile JSON, object by object: typed access that names what is wrong, with bounds on counts and sizes. Throws ProfileError.
#pragma once

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace ingot::base {

/// One object. Every member must be asked for before finish(). `where`: its place, as errors name it; `advice`: what to do when a member
/// is missing. The document must outlive it.
class JsonMembers {
 public:
  static constexpr size_t kLongestText = 4096;

  JsonMembers(const nlohmann::json& json, std::string where, std::string advice)
      : json_(json), where_(std::move(where)), advice_(std::move(advice)) {
    if (!json.is_object()) throw ProfileError("{} is not an object", where_);
  }

  bool has(const char* name) {
    asked_.insert(name);
    return json_.contains(name);
  }
  std::string text(const char* name) {
    const auto& value = member(name);
    if (!value.is_string() || value.get_ref<const std::string&>().size() > kLongestText) fail(name, "must be a text of at most 4096 bytes");
    return value.get<std::string>();
  }
  std::string one_of(const char* name, const std::vector<std::string>& choices) {
    auto value = text(name);
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) fail(name, "must be one of " + join(choices, ", "));
    return value;
  }
  int64_t whole(const char* name, int64_t largest) {
    const auto& value = member(name);
    if (!value.is_number_integer() || value.get<double>() < 1 || value.get<double>() > static_cast<double>(largest))
      fail(name, fmt::format("must be a whole number from 1 to {}", largest));
    return value.get<int64_t>();
  }
  double positive(const char* name) { return number(name, false); }
  double not_negative(const char* name) { return number(name, true); }
  bool boolean(const char* name) {
    const auto& value = member(name);
    if (!value.is_boolean()) fail(name, "must be true or false");
    return value.get<bool>();
  }
  /// Calls `read(element, where)` for each element.
  template <class Read>
  void list(const char* name, size_t fewest, size_t most, const Read& read) {
    const auto& value = member(name);
    if (!value.is_array() || value.size() < fewest || value.size() > most)
      fail(name, fmt::format("must be a list of {} to {} entries", fewest, most));
    for (size_t i = 0; i < value.size(); ++i) read(value[i], fmt::format("{}.{}[{}]", where_, name, i));
  }
  void finish() const {
    for (const auto& [name, value] : json_.items())
      if (!asked_.contains(name))
        throw ProfileError("{} has an unknown member '{}'{}", where_, name, did_you_mean(name, {asked_.begin(), asked_.end()}));
  }

  const nlohmann::json& member(const char* name) {
    asked_.insert(name);
    const auto found = json_.find(name);
    if (found == json_.end()) throw ProfileError("{} lacks '{}'; {}", where_, name, advice_);
    return *found;
  }
  const std::string& where() const { return where_; }
  [[noreturn]] void fail(const std::string& name, const std::string& rule) const { throw ProfileError("{}.{} {}", where_, name, rule); }

 private:
  double number(const char* name, bool zero_allowed) {
    const auto& value = member(name);
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < 0 || value.get<double>() > 1e18 ||
        (value.get<double>() == 0 && !zero_allowed))
      fail(name, zero_allowed ? "must be a number from 0 to 10^18" : "must be a positive number up to 10^18");
    return value.get<double>();
  }

  const nlohmann::json& json_;
  std::string where_, advice_;
  std::set<std::string> asked_;
};

}  // namespace ingot::base

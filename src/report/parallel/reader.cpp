#include "report/parallel/reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

using base::DataError;
using nlohmann::json;

constexpr int64_t kMaxFileBytes = int64_t{24} << 20;
// A page of more would be too large to read, in either sense.
constexpr size_t kMaxResults = 20'000, kMaxLengths = 100, kMaxMethods = 100, kMaxGroups = 200;
constexpr int64_t kMaxRanks = int64_t{1} << 24, kMaxTokens = int64_t{1} << 40, kMaxCalls = int64_t{1} << 40, kMaxBytes = int64_t{1} << 60;
constexpr double kMaxMs = 1e12;
constexpr size_t kMaxTextBytes = 400;

constexpr const char* kAdvice = "; the file must be as ingot bench parallel --json -o FILE.json writes it";

// Lists and objects by their kind only: printing them recurses as deeply as they are nested.
std::string printed(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), 60);
}

// An object of the file, and the words that lead to it: "a.json: results[3]".
class Entry {
 public:
  Entry(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) throw DataError("{} is {}, not an object{}", where_, printed(object), kAdvice);
  }

  bool has(const char* name) const { return object_.contains(name); }

  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) throw DataError("{} has no field {}{}", where_, name, kAdvice);
    return *found;
  }

  std::string path_of(const char* name) const { return where_ + (where_.ends_with(':') ? " " : ".") + name; }

  std::string text(const char* name) const {
    if (!at(name).is_string()) throw wrong(name, "a text");
    return shortened(at(name).get_ref<const std::string&>(), kMaxTextBytes);
  }

  int64_t whole(const char* name, int64_t least, int64_t most) const {
    const auto& value = at(name);
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) ||
        value.get<int64_t>() < least || value.get<int64_t>() > most)
      throw wrong(name, fmt::format("a whole number from {} to {}", least, most));
    return value.get<int64_t>();
  }

  double ms(const char* name) const {
    const auto& value = at(name);
    if (!value.is_number() || !(value.get<double>() >= 0 && value.get<double>() <= kMaxMs))
      throw wrong(name, fmt::format("a number of milliseconds from 0 to {:g}", kMaxMs));
    return value.get<double>();
  }

  bool flag(const char* name) const {
    if (!at(name).is_boolean()) throw wrong(name, "true or false");
    return at(name).get<bool>();
  }

  Entry object(const char* name) const { return {at(name), path_of(name)}; }

  // Calls take(Entry) for each element of an array.
  template <class Take>
  void each(const char* name, const Take& take) const {
    const auto& list = at(name);
    if (!list.is_array()) throw wrong(name, "a list");
    if (list.size() > kMaxResults) throw DataError("{} has {} entries; a page shows at most {}", path_of(name), list.size(), kMaxResults);
    for (size_t i = 0; i < list.size(); ++i) take(Entry(list[i], fmt::format("{}[{}]", path_of(name), i)));
  }

  // A text that `check` does not refuse with a ConfigError.
  template <class Check>
  std::string name(const char* field, const Check& check) const {
    auto value = text(field);
    try {
      check(value);
    } catch (const base::ConfigError& unknown) {
      throw DataError("{}: {}", path_of(field), unknown.what());
    }
    return value;
  }

  DataError wrong(const char* name, const std::string& wanted) const {
    return DataError("{} is {}, not {}{}", path_of(name), printed(at(name)), wanted, kAdvice);
  }

  const json& fields() const { return object_; }

 private:
  const json& object_;
  std::string where_;
};

// "tp4+sp2" is a factorisation of tp+sp.
void check_method(const std::string& label) {
  std::string letters;
  for (const char c : label)
    if (c < '0' || c > '9') letters += c;
  const auto name_of_tp_sp = schedule::name_of(schedule::Method::tp_sp);
  const bool is_factorisation = letters == name_of_tp_sp && label != letters && label.size() < 24;
  schedule::method_from_name(is_factorisation ? name_of_tp_sp : label);
}

void check_layer(const std::string& name) { schedule::layer_from_name(name); }
void check_pass(const std::string& name) { schedule::pass_from_name(name); }

schedule::Quantity quantity_of(const Entry& entry) {
  using schedule::Quantity;
  const auto name = entry.text("quantity");
  for (const auto quantity : {Quantity::time, Quantity::received_bytes, Quantity::peak_bytes})
    if (schedule::name_of(quantity) == name) return quantity;
  throw entry.wrong("quantity", "time, received_bytes or peak_bytes");
}

schedule::Traffic traffic_of(const Entry& ops) {
  schedule::Traffic traffic;
  const auto& kinds = schedule::traffic_kinds();
  for (const auto& [kind, unused] : ops.fields().items()) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end())
      throw DataError("{} is no kind of operation; there are {}", ops.path_of(shortened(kind, 60).c_str()), base::join(kinds, ", "));
    const auto entry = ops.object(kind.c_str());
    const schedule::KindTraffic counted{entry.whole("calls", 0, kMaxCalls), entry.whole("sent_bytes", 0, kMaxBytes / 16),
                                        entry.whole("received_bytes", 0, kMaxBytes / 16)};
    if (counted != schedule::KindTraffic{}) traffic[kind] = counted;
  }
  return traffic;
}

schedule::Result result_of(const Entry& entry) {
  return {.method = entry.name("method", check_method),
          .layer = entry.name("layer", check_layer),
          .ranks = static_cast<int>(entry.whole("ranks", 1, kMaxRanks)),
          .seq = entry.whole("seq", 1, kMaxTokens),
          .batch = entry.whole("batch", 1, kMaxTokens),
          .pass = entry.name("pass", check_pass),
          .time_ms = entry.ms("time_ms"),
          .exposed_ms = entry.ms("exposed_ms"),
          .peak_bytes = entry.whole("peak_bytes", 0, kMaxBytes),
          .ops = traffic_of(entry.object("ops")),
          .fits = entry.flag("fits")};
}

schedule::Crossover crossover_of(const Entry& entry) {
  return {.lower = entry.name("lower", check_method),
          .higher = entry.name("higher", check_method),
          .layer = entry.has("layer") ? entry.name("layer", check_layer) : "",
          .ranks = static_cast<int>(entry.whole("ranks", 1, kMaxRanks)),
          .pass = entry.name("pass", check_pass),
          .quantity = quantity_of(entry),
          .seq = entry.whole("seq", 1, kMaxTokens)};
}

schedule::Refusal refusal_of(const Entry& entry) {
  return {.method = entry.text("method"),
          .ranks = static_cast<int>(entry.whole("ranks", 1, kMaxRanks)),
          .seq = entry.whole("seq", 1, kMaxTokens),
          .reason = entry.text("reason")};
}

// One value for each place of a plot, and no more places than a page has room for.
void check_results(const schedule::SweepResult& sweep, const std::string& name) {
  using Group = std::tuple<std::string, std::string, int, int64_t>;
  std::set<std::tuple<Group, std::string, int64_t>> seen;
  std::set<Group> groups;
  std::set<std::string> methods;
  std::set<int64_t> lengths;
  for (size_t i = 0; i < sweep.results.size(); ++i) {
    const auto& r = sweep.results[i];
    const Group group{r.layer, r.pass, r.ranks, r.batch};
    if (!seen.emplace(group, r.method, r.seq).second)
      throw DataError("{}: results[{}] says a second time how {} does ({}, {}, {} ranks, seq {}); take one of them out", name, i, r.method,
                      r.layer, r.pass, r.ranks, r.seq);
    groups.insert(group);
    methods.insert(r.method);
    lengths.insert(r.seq);
  }
  const auto check = [&](size_t count, size_t most, const char* what) {
    if (count > most) throw DataError("{}: results has {} {}; a page shows at most {}", name, count, what, most);
  };
  check(groups.size(), kMaxGroups, "combinations of layer, pass, ranks and batch");
  check(methods.size(), kMaxMethods, "methods");
  check(lengths.size(), kMaxLengths, "lengths");
}

}  // namespace

ParallelFile parse_parallel(std::string_view content, const std::string& name) {
  json document;
  try {
    document = json::parse(content);
  } catch (const json::exception&) {
    throw DataError(
        "{} is not JSON; ingot report takes run directories, machine profiles, and what ingot bench collectives and parallel write", name);
  }
  const Entry top(document, name + ":");
  ParallelFile file{.name = name, .mode = top.text("mode"), .machine = top.text("machine"), .sweep = {}};
  if (file.mode != "measured" && file.mode != "modelled") throw top.wrong("mode", "measured or modelled");
  top.each("results", [&](const Entry& entry) { file.sweep.results.push_back(result_of(entry)); });
  top.each("crossovers", [&](const Entry& entry) { file.sweep.crossovers.push_back(crossover_of(entry)); });
  top.each("refused", [&](const Entry& entry) { file.sweep.refusals.push_back(refusal_of(entry)); });
  if (file.sweep.results.empty())
    throw DataError("{}: results is empty, so there is nothing to show{}", name,
                    file.sweep.refusals.empty() ? "" : "; the first refusal: " + file.sweep.refusals.front().reason);
  check_results(file.sweep, name);
  return file;
}

ParallelFile read_parallel(const std::filesystem::path& path) {
  const auto size_bytes = base::MappedFile(path).size_bytes();
  if (size_bytes > kMaxFileBytes)
    throw DataError("{} has {}, more than the {} that a page can be made of", path.string(), base::format_bytes(size_bytes),
                    base::format_bytes(kMaxFileBytes));
  auto file = parse_parallel(base::read_file(path, kMaxFileBytes), path.string());
  file.name = path.filename().string();
  return file;
}

}  // namespace ingot::report

// Values of a chat template, as Jinja has them from Python: how they print, compare and count as true. Lists, dicts and namespaces are
// shared by those who hold them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace ingot::data::chat {

class Value;
using List = std::vector<Value>;
/// In the order in which keys came.
using Dict = std::vector<std::pair<std::string, Value>>;
struct Arguments;
using Function = std::function<Value(const Arguments&)>;

class Value {
 public:
  struct Undefined {
    std::string name;  // that has no value
  };
  struct None {};

  Value() : value_(None{}) {}
  Value(Undefined undefined) : value_(std::move(undefined)) {}
  Value(bool value) : value_(value) {}
  Value(int64_t value) : value_(value) {}
  Value(double value) : value_(value) {}
  Value(std::string value) : value_(std::move(value)) {}
  Value(const char* value) : value_(std::string(value)) {}
  Value(List list) : value_(std::make_shared<List>(std::move(list))) {}
  Value(Dict dict) : value_(std::make_shared<Dict>(std::move(dict))) {}
  Value(Function function) : value_(std::make_shared<Function>(std::move(function))) {}
  static Value from(const nlohmann::ordered_json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(value_); }
  bool is_none() const { return std::holds_alternative<None>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_float() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_integer() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<List>>(value_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<Dict>>(value_); }
  bool is_function() const { return std::holds_alternative<std::shared_ptr<Function>>(value_); }

  const std::string& undefined_name() const { return std::get<Undefined>(value_).name; }
  /// bool counts as 0 and 1.
  int64_t integer() const { return is_bool() ? std::get<bool>(value_) : std::get<int64_t>(value_); }
  double number() const { return is_float() ? std::get<double>(value_) : static_cast<double>(integer()); }
  const std::string& string() const { return std::get<std::string>(value_); }
  List& list() const { return *std::get<std::shared_ptr<List>>(value_); }
  Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(value_); }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(value_); }

  /// Of a dict; null when it has no such key.
  Value* find(const std::string& key) const;
  /// Adds or replaces a key of a dict.
  void put(const std::string& key, Value value) const;

  /// Python's truth.
  bool truth() const;
  /// Python's ==.
  bool equals(const Value& other) const;
  /// "a list", "None".
  std::string kind() const;
  /// As {{ }} prints it, and as Python's repr.
  std::string text() const;
  std::string repr() const;
  /// As json.dumps with ensure_ascii=False; `indent` below 0: on one line.
  std::string json(int64_t indent = -1) const;

 private:
  void write_json(std::string& out, int64_t indent, int64_t depth) const;

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>, std::shared_ptr<Dict>, std::shared_ptr<Function>>
      value_;
};

struct Arguments {
  List positional;
  Dict named;

  const Value* named_value(const std::string& name) const {
    for (const auto& [key, value] : named)
      if (key == name) return &value;
    return nullptr;
  }
  /// The argument at `place`, or that of this name; null when it is not given.
  const Value* get(size_t place, const std::string& name) const {
    return place < positional.size() ? &positional[place] : named_value(name);
  }
};

/// Code points of a text, and back.
std::u32string code_points(const std::string& text);
std::string utf8(const std::u32string& text);

}  // namespace ingot::data::chat

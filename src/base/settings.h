// Settings live in one declared table: name, type, default, check and a line of help. The TOML parser, `--set`, `--help`,
// the reference page and the dump of the resolved configuration are all made from it.
//
// A table is bound to the structs it fills: the value a field has when it is declared is its default, and the struct must
// outlive the table and stay where it is. Each layer declares its own group (`declare_settings`); tables are used by one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::base {

struct IntegerRange {
  int64_t minimum = INT64_MIN, maximum = INT64_MAX;
};
struct NumberRange {
  double minimum = -1e308, maximum = 1e308;
};
inline IntegerRange at_least(int64_t minimum) { return {minimum, INT64_MAX}; }

class SettingsTable {
 public:
  /// Each `add` declares one setting under its full dotted name, e.g. "train.steps".
  void add(std::string name, bool& field, std::string help);
  void add(std::string name, int64_t& field, IntegerRange range, std::string help);
  void add(std::string name, double& field, NumberRange range, std::string help);
  void add(std::string name, std::string& field, std::string help);
  /// A string that must be one of `choices`.
  void add(std::string name, std::string& field, std::vector<std::string> choices, std::string help);
  void add(std::string name, std::vector<std::string>& field, std::string help);
  void add(std::string name, std::vector<double>& field, NumberRange range, std::string help);

  /// A list of tables, `[[name]]` in TOML; `declare` fills a table of settings (names relative to the element).
  template <class Element>
  void add_list(std::string name, std::vector<Element>& field, void (*declare)(SettingsTable&, Element&), std::string help) {
    add_list_entry({std::move(name), std::move(help), [&field] { field.clear(); },
                    [&field, declare] {
                      SettingsTable table;
                      declare(table, field.emplace_back());
                      return table;
                    },
                    [&field, declare] {
                      std::vector<SettingsTable> tables(field.size());
                      for (size_t i = 0; i < field.size(); ++i) declare(tables[i], field[i]);
                      return tables;
                    },
                    [declare] {
                      static Element sample;
                      SettingsTable table;
                      declare(table, sample = Element{});
                      return table;
                    }});
  }

  /// Sets one value from text, as `--set name=text` gives it. Throws ConfigError naming the setting, the value, the allowed
  /// range and `origin`; an unknown name is refused with the nearest known one.
  void set(std::string_view name, std::string_view text, std::string_view origin);

  /// Reads a TOML document; unknown keys and wrong types are ConfigErrors that give line and column.
  void load_toml(std::string_view document, std::string_view origin);

  /// The present values as TOML, readable by load_toml.
  std::string dump_toml() const;
  /// The same of those settings alone that have changed since they were declared.
  std::string dump_changed_toml() const;
  /// One line per setting: name, type, default, help.
  std::string help() const;
  /// The same as Markdown, a table for each group: docs/settings.md.
  std::string markdown() const;

  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;

 private:
  struct Setting {
    std::string name, type, default_text, help;
    std::function<void(std::string_view text)> parse;  // throws std::invalid_argument with the reason
    std::function<std::string()> toml;
  };
  struct List {
    std::string name, help;
    std::function<void()> clear;
    std::function<SettingsTable()> append;
    std::function<std::vector<SettingsTable>()> elements;
    std::function<SettingsTable()> sample;
  };
  void add_list_entry(List list) { lists_.push_back(std::move(list)); }
  void add_entry(Setting setting);
  std::string dump(bool (*is_wanted)(const Setting&)) const;
  Setting* find(std::string_view name);

  std::vector<Setting> settings_;
  std::vector<List> lists_;
  friend struct TomlReader;
};

}  // namespace ingot::base

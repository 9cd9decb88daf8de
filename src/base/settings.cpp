#include "base/settings.h"

#include <toml++/toml.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "base/closest_name.h"
#include "base/error.h"
#include "base/text.h"

namespace ingot::base {
namespace {

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else out += c;
  }
  return out + "\"";
}

std::string number_text(double value) {
  auto text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string list_text(const std::vector<std::string>& values) {
  std::vector<std::string> parts;
  for (const auto& value : values) parts.push_back(toml_string(value));
  return "[" + join(parts, ", ") + "]";
}

// A bare word as `--set` gives it, or a quoted TOML string.
std::string unquoted(std::string_view text) {
  if (text.empty() || (text.front() != '"' && text.front() != '\'')) return std::string(text);
  const auto parsed = toml::parse("x = " + std::string(text));
  const auto* value = parsed["x"].as_string();
  return value ? value->get() : std::string(text);
}

}  // namespace

void SettingsTable::add_entry(Setting setting) {
  setting.default_text = setting.toml();
  settings_.push_back(std::move(setting));
}

void SettingsTable::add(std::string name, bool& field, std::string help) {
  add_entry({std::move(name), "true or false", "", std::move(help),
             [&field](std::string_view text) {
               if (text != "true" && text != "false") throw std::invalid_argument("it must be true or false");
               field = text == "true";
             },
             [&field] { return std::string(field ? "true" : "false"); }});
}

void SettingsTable::add(std::string name, int64_t& field, IntegerRange range, std::string help) {
  std::string type = "integer";
  if (range.minimum != INT64_MIN && range.maximum != INT64_MAX) type = fmt::format("integer from {} to {}", range.minimum, range.maximum);
  else if (range.minimum != INT64_MIN) type = fmt::format("integer from {}", range.minimum);
  add_entry({std::move(name), type, "", std::move(help),
             [&field, range, type](std::string_view text) {
               const auto value = parse_integer(text);
               if (!value || *value < range.minimum || *value > range.maximum) throw std::invalid_argument("it must be an " + type);
               field = *value;
             },
             [&field] { return std::to_string(field); }});
}

static std::string name_of(const NumberRange& range) {
  if (range.minimum > -1e300 && range.maximum < 1e300) return fmt::format("number from {} to {}", range.minimum, range.maximum);
  return range.minimum > -1e300 ? fmt::format("number from {}", range.minimum) : "number";
}

static double number_within(const NumberRange& range, std::string_view text) {
  const auto value = parse_number(text);
  if (!value || !(*value >= range.minimum && *value <= range.maximum)) throw std::invalid_argument("it must be a " + name_of(range));
  return *value;
}

void SettingsTable::add(std::string name, double& field, NumberRange range, std::string help) {
  add_entry({std::move(name), name_of(range), "", std::move(help),
             [&field, range](std::string_view text) { field = number_within(range, text); }, [&field] { return number_text(field); }});
}

void SettingsTable::add(std::string name, std::vector<double>& field, NumberRange range, std::string help) {
  add_entry({std::move(name), "list, each a " + name_of(range), "", std::move(help),
             [&field, range](std::string_view text) {
               if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
               std::vector<double> values;
               for (std::string_view part : split(text, ',')) {
                 while (part.starts_with(' ')) part.remove_prefix(1);
                 while (part.ends_with(' ')) part.remove_suffix(1);
                 if (!part.empty() || text.find(',') != std::string_view::npos) values.push_back(number_within(range, part));
               }
               field = std::move(values);
             },
             [&field] {
               std::vector<std::string> parts;
               for (const double value : field) parts.push_back(number_text(value));
               return "[" + join(parts, ", ") + "]";
             }});
}

void SettingsTable::add(std::string name, std::string& field, std::string help) {
  add_entry({std::move(name), "text", "", std::move(help), [&field](std::string_view text) { field = unquoted(text); },
             [&field] { return toml_string(field); }});
}

void SettingsTable::add(std::string name, std::string& field, std::vector<std::string> choices, std::string help) {
  add_entry({std::move(name), join(choices, ", "), "", std::move(help),
             [&field, choices](std::string_view text) {
               const auto value = unquoted(text);
               if (std::find(choices.begin(), choices.end(), value) == choices.end())
                 throw std::invalid_argument("it must be one of " + join(choices, ", ") + did_you_mean(value, choices));
               field = value;
             },
             [&field] { return toml_string(field); }});
}

void SettingsTable::add(std::string name, std::vector<std::string>& field, std::string help) {
  add_entry({std::move(name), "list of texts", "", std::move(help),
             [&field](std::string_view text) {
               std::vector<std::string> values;
               if (!text.empty() && text.front() == '[') {
                 const auto parsed = toml::parse("x = " + std::string(text));
                 const auto* array = parsed["x"].as_array();
                 if (!array) throw std::invalid_argument("it must be a list of texts");
                 for (const auto& item : *array) {
                   if (item.is_table() || item.is_array()) throw std::invalid_argument("it must be a list of texts");
                   std::ostringstream as_text;  // numbers are texts, too
                   item.visit([&](const auto& value) { as_text << value; });
                   values.push_back(item.is_string() ? item.as_string()->get() : as_text.str());
                 }
               } else if (!text.empty()) {
                 for (auto& part : split(text, ',')) values.push_back(unquoted(part));
               }
               field = std::move(values);
             },
             [&field] { return list_text(field); }});
}

SettingsTable::Setting* SettingsTable::find(std::string_view name) {
  const auto found = std::find_if(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings_.end() ? nullptr : &*found;
}

bool SettingsTable::contains(std::string_view name) const { return const_cast<SettingsTable*>(this)->find(name) != nullptr; }

std::vector<std::string> SettingsTable::names() const {
  std::vector<std::string> all;
  for (const auto& setting : settings_) all.push_back(setting.name);
  for (const auto& list : lists_) all.push_back(list.name);
  return all;
}

void SettingsTable::set(std::string_view name, std::string_view text, std::string_view origin) {
  Setting* setting = find(name);
  if (!setting) {
    // A list is given on the command line as an inline TOML array of tables.
    for (const auto& list : lists_) {
      if (list.name == name) return load_toml(fmt::format("{} = {}", name, text), origin);
    }
    const auto near = did_you_mean(name, names());
    throw ConfigError("{}: unknown setting '{}'{} {}", origin, name,
                      near.empty() ? fmt::format("; the nearest is '{}'.", closest_name(name, names())) : near,
                      contains("train.steps") ? "'ingot train --settings' lists all." : "There is " + join(names(), ", ") + ".");
  }
  try {
    setting->parse(text);
  } catch (const std::exception& wrong) {
    throw ConfigError("{}: {} = {} is not possible: {}", origin, name, text, wrong.what());
  }
}

// Walks a parsed TOML document over a table.
struct TomlReader {
  SettingsTable& table;
  std::string_view origin;

  std::string where(const toml::node& node) const {
    return fmt::format("{}:{}:{}", origin, node.source().begin.line, node.source().begin.column);
  }

  void read(const toml::table& document, const std::string& prefix) {
    for (const auto& [key, node] : document) {
      const std::string name = prefix + std::string(key.str());
      const auto list = std::find_if(table.lists_.begin(), table.lists_.end(), [&](const auto& l) { return l.name == name; });
      if (list != table.lists_.end()) {
        read_list(*list, node, name);
      } else if (const auto* inner = node.as_table()) {
        read(*inner, name + ".");
      } else {
        table.set(name, value_text(node), where(node));
      }
    }
  }

  void read_list(const SettingsTable::List& list, const toml::node& node, const std::string& name) {
    const auto* array = node.as_array();
    if (!array) throw ConfigError("{}: {} is a list of tables: write [[{}]]", where(node), name, name);
    list.clear();
    for (const auto& item : *array) {
      const auto* element = item.as_table();
      if (!element) throw ConfigError("{}: {} is a list of tables: write [[{}]]", where(item), name, name);
      SettingsTable inner = list.append();
      TomlReader{inner, origin}.read(*element, "");
    }
  }

  std::string value_text(const toml::node& node) const {
    if (const auto* text = node.as_string()) return toml_string(text->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    if (const auto* integer = node.as_integer()) return std::to_string(integer->get());
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* array = node.as_array()) {
      std::vector<std::string> parts;
      for (const auto& item : *array) parts.push_back(value_text(item));
      return "[" + join(parts, ", ") + "]";
    }
    throw ConfigError("{}: dates and times are not used by any setting", where(node));
  }
};

void SettingsTable::load_toml(std::string_view document, std::string_view origin) {
  try {
    const toml::table parsed = toml::parse(document, origin);
    TomlReader{*this, origin}.read(parsed, "");
  } catch (const toml::parse_error& wrong) {
    throw ConfigError("{}:{}:{}: {}", origin, wrong.source().begin.line, wrong.source().begin.column, wrong.description());
  }
}

std::string SettingsTable::dump_toml() const {
  return dump([](const Setting&) { return true; });
}

std::string SettingsTable::dump_changed_toml() const {
  return dump([](const Setting& setting) { return setting.toml() != setting.default_text; });
}

std::string SettingsTable::dump(bool (*is_wanted)(const Setting&)) const {
  std::vector<std::pair<std::string, std::string>> groups;  // in the order in which they were first declared
  for (const auto& setting : settings_) {
    if (!is_wanted(setting)) continue;
    const size_t dot = setting.name.rfind('.');
    const std::string group = dot == std::string::npos ? "" : setting.name.substr(0, dot);
    auto found = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == group; });
    if (found == groups.end()) found = groups.insert(group.empty() ? groups.begin() : groups.end(), {group, ""});
    found->second += fmt::format("{} = {}\n", setting.name.substr(dot == std::string::npos ? 0 : dot + 1), setting.toml());
  }
  std::string out;
  for (const auto& [group, lines] : groups) {
    if (!group.empty()) out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", group);
    out += lines;
  }
  for (const auto& list : lists_) {
    for (const auto& element : list.elements()) out += fmt::format("\n[[{}]]\n{}", list.name, element.dump(is_wanted));
  }
  return out;
}

std::string SettingsTable::help() const {
  std::string out;
  for (const auto& s : settings_) out += fmt::format("  {} = {}  ({})\n      {}\n", s.name, s.default_text, s.type, s.help);
  for (const auto& list : lists_) {
    out += fmt::format("  [[{}]]\n      {}; each has\n", list.name, list.help);
    const SettingsTable sample = list.sample();
    for (const auto& s : sample.settings_) out += fmt::format("        {} = {}  ({})  {}\n", s.name, s.default_text, s.type, s.help);
  }
  return out;
}

std::string SettingsTable::markdown() const {
  const auto row = [](const Setting& s) {
    std::string help = s.help;
    for (size_t at = 0; (at = help.find('|', at)) != std::string::npos; at += 2) help.insert(at, 1, '\\');
    return fmt::format("| `{}` | {} | {} | {} |\n", s.name, s.default_text.empty() ? "" : "`" + s.default_text + "`", s.type, help);
  };
  constexpr const char* kHead = "| setting | default | type | meaning |\n|---|---|---|---|\n";
  std::string out, group;
  for (const auto& s : settings_) {
    if (const auto of = s.name.substr(0, s.name.find('.')); of != group) {
      out += fmt::format("{}## {}\n\n{}", out.empty() ? "" : "\n", of, kHead);
      group = of;
    }
    out += row(s);
  }
  for (const auto& list : lists_) {
    out += fmt::format("\n## [[{}]]\n\nA list: {}.\n\n{}", list.name, list.help, kHead);
    for (const auto& s : list.sample().settings_) out += row(s);
  }
  return out;
}

}  // namespace ingot::base

#include "data/imported_blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "data/indexed_dataset.h"

namespace ingot::data {
namespace {

using base::DataError;
using Entries = std::vector<ImportedBlend::Entry>;

constexpr const char* kForms = "give WEIGHT PREFIX pairs, or prefixes alone, which are taken in proportion to their sizes";

bool is_number(const std::string& word) {
  std::string lower;
  for (const char c : word) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  const auto digits = lower.substr(lower.starts_with('-') || lower.starts_with('+') ? 1 : 0);
  return digits == "nan" || digits == "inf" || digits == "infinity" || base::parse_number(word).has_value() ||
         (word.starts_with('+') && base::parse_number(word.substr(1)).has_value());
}

std::vector<std::string> words_in(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::string quoted(const std::string& path) {
  try {
    return nlohmann::json(path).dump();
  } catch (const nlohmann::json::exception&) {
    throw DataError("a prefix is not UTF-8: {}", nlohmann::json(path).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

bool has_control_characters(const std::string& path) {
  return std::any_of(path.begin(), path.end(), [](char c) { return static_cast<unsigned char>(c) < 32 || c == 127; });
}

double weight_of(const std::string& word, const std::string& path, const std::string& name) {
  const auto weight = base::parse_number(word.starts_with('+') ? word.substr(1) : word);
  if (!weight || !(*weight >= 0 && *weight <= 1e308)) throw DataError("{}: the weight of {} is {}: it must be 0 or more", name, path, word);
  return *weight;
}

// The part of YAML that lists of plain, 'quoted' and "quoted" words need, in lines or in brackets.
class DataPrefix {
 public:
  DataPrefix(const std::string& yaml, const std::string& name) : name_(name) {
    std::istringstream lines(yaml);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.ends_with('\r')) line.pop_back();
      const auto text = without_comment(line);
      if (const auto first = text.find_first_not_of(' '); first != std::string::npos && text != "---")
        lines_.push_back({number, first, text.substr(first)});
    }
  }

  ImportedBlend parse() {
    size_t found = lines_.size();
    for (at_ = 0; at_ < lines_.size(); ++at_) {
      if (!key_of(lines_[at_].text, "data_prefix")) continue;
      if (found < lines_.size()) throw wrong(lines_[at_], "data_prefix stands here, too: leave the one that is meant");
      found = at_;
    }
    if (found == lines_.size()) throw DataError("{}: there is no data_prefix", name_);
    at_ = found;
    const auto key = lines_[at_];
    const auto value = *key_of(key.text, "data_prefix");
    ImportedBlend blend;
    if (value.empty() && at_ + 1 < lines_.size() && lines_[at_ + 1].indent > key.indent && !lines_[at_ + 1].text.starts_with("-")) {
      const size_t indent = lines_[++at_].indent;
      while (at_ < lines_.size() && lines_[at_].indent == indent) take_split(blend);
      if (at_ < lines_.size() && lines_[at_].indent > key.indent)
        throw wrong(lines_[at_], "this belongs to none of train, validation, test");
    } else if (value.starts_with('{')) {
      take_braces(key, value, blend);
    } else {
      blend.train = entries(key, list_behind(key, value));
    }
    if (blend.train.empty()) throw wrong(key, "data_prefix has no train");
    return blend;
  }

 private:
  struct Line {
    int64_t number = 0;
    size_t indent = 0;
    std::string text;  // without indent and comment
  };
  using Words = std::vector<std::string>;

  DataError wrong(const Line& line, const std::string& what) const { return DataError("{}:{}: {}", name_, line.number, what); }

  static std::string without_comment(const std::string& line) {
    char quote = 0;
    size_t end = line.size();
    for (size_t i = 0; i < line.size() && end == line.size(); ++i) {
      const char c = line[i];
      if (quote == 0 && c == '#' && (i == 0 || line[i - 1] == ' ')) end = i;
      else if (quote == c) quote = 0;
      else if (quote == 0 && (c == '"' || c == '\'') && (i == 0 || line[i - 1] == ' ' || line[i - 1] == '[' || line[i - 1] == ','))
        quote = c;
    }
    const auto last = line.substr(0, end).find_last_not_of(" \t");
    return last == std::string::npos ? "" : line.substr(0, last + 1);
  }

  // What stands behind "NAME:".
  static std::optional<std::string> key_of(const std::string& text, const std::string& name) {
    if (!text.starts_with(name + ":") || (text.size() > name.size() + 1 && text[name.size() + 1] != ' ')) return std::nullopt;
    const auto value = text.find_first_not_of(' ', name.size() + 1);
    return value == std::string::npos ? "" : text.substr(value);
  }

  Entries* split_named(const std::string& name, ImportedBlend& blend) {
    return name == "train" ? &blend.train : name == "validation" ? &blend.validation : name == "test" ? &blend.test : nullptr;
  }

  void take_split(ImportedBlend& blend) {
    const auto line = lines_[at_];
    for (const char* name : {"train", "validation", "test"})
      if (const auto value = key_of(line.text, name)) {
        auto& entries_of_split = *split_named(name, blend);
        if (!entries_of_split.empty()) throw wrong(line, fmt::format("{} stands here twice", name));
        if (*value == "null" || *value == "[]") return void(++at_);
        entries_of_split = entries(line, list_behind(line, *value));
        return;
      }
    throw wrong(line, fmt::format("\"{}\" is none of train, validation, test", line.text));
  }

  Entries entries(const Line& line, const Words& words) const { return parse_data_path(words, fmt::format("{}:{}", name_, line.number)); }

  // In brackets, in lines that begin with "- ", or one word; at_ is behind it then.
  Words list_behind(const Line& key, const std::string& value) {
    if (value.starts_with('[')) return in_brackets(key, up_to_end(key, value, '[', ']'));
    ++at_;
    if (!value.empty()) return {word(key, value)};
    Words words;
    for (; at_ < lines_.size() && lines_[at_].indent >= key.indent && lines_[at_].text.starts_with("-"); ++at_) {
      const auto& line = lines_[at_];
      if (line.text.size() < 3 || line.text[1] != ' ') throw wrong(line, fmt::format("\"{}\" is no item of a list", line.text));
      words.push_back(word(line, line.text.substr(line.text.find_first_not_of(' ', 1))));
    }
    if (words.empty()) throw wrong(key, "a list is missing here");
    return words;
  }

  // The value with the lines that follow, to its last bracket; at_ is behind it then.
  std::string up_to_end(const Line& key, std::string value, char open, char close) {
    const auto opened_in = [&](const std::string& text) {
      return std::count(text.begin(), text.end(), open) - std::count(text.begin(), text.end(), close);
    };
    auto depth = opened_in(value);
    for (++at_; depth > 0; ++at_) {
      if (at_ == lines_.size()) throw wrong(key, fmt::format("\"{}\" is not closed", open));
      depth += opened_in(lines_[at_].text);
      value += " " + lines_[at_].text;
    }
    if (depth < 0 || value.back() != close) throw wrong(key, fmt::format("the list does not end with \"{}\"", close));
    return value.substr(1, value.size() - 2);
  }

  Words in_brackets(const Line& line, const std::string& inner) const {
    Words words;
    if (inner.find_first_of("[]{}") != std::string::npos) throw wrong(line, "lists in lists are no blend");
    std::istringstream items(inner);
    for (std::string item; std::getline(items, item, ',');) {
      const auto first = item.find_first_not_of(' ');
      if (first == std::string::npos) {
        if (items.eof()) break;  // behind a last comma
        throw wrong(line, "there is nothing between two commas");
      }
      words.push_back(word(line, item.substr(first, item.find_last_not_of(' ') + 1 - first)));
    }
    return words;
  }

  // {train: [...], validation: [...]}
  void take_braces(const Line& key, const std::string& value, ImportedBlend& blend) {
    auto inner = up_to_end(key, value, '{', '}');
    while (true) {
      const auto begin = inner.find_first_not_of(" ,");
      if (begin == std::string::npos) return;
      const auto colon = inner.find(':', begin), open = inner.find('[', begin), close = inner.find(']', begin);
      if (colon == std::string::npos || open == std::string::npos || close == std::string::npos || !(colon < open && open < close))
        throw wrong(key, "data_prefix is not of the form {train: [...], validation: [...], test: [...]}");
      auto* split = split_named(inner.substr(begin, colon - begin), blend);
      if (!split || !split->empty() || inner.find_first_not_of(' ', colon + 1) != open)
        throw wrong(key, fmt::format("\"{}\" is none of train, validation, test, each with a list", inner.substr(begin, open - begin)));
      *split = entries(key, in_brackets(key, inner.substr(open + 1, close - open - 1)));
      inner.erase(0, close + 1);
    }
  }

  std::string word(const Line& line, const std::string& text) const {
    const char quote = text.front();
    if (quote == '"' || quote == '\'') {
      const auto inner = text.size() > 1 && text.back() == quote ? text.substr(1, text.size() - 2) : std::string();
      if (inner.empty() || inner.find(quote) != std::string::npos || (quote == '"' && inner.find('\\') != std::string::npos))
        throw wrong(line, fmt::format("{} is not a word in quotes without escapes", text));
      return inner;
    }
    if (text.find("${") != std::string::npos || text == "???" || text == "null")
      throw wrong(line, fmt::format("{} is what NeMo fills in: write the prefix", text));
    if (std::string("&*!|>%@`[]{}-").find(quote) != std::string::npos && !is_number(text))
      throw wrong(line, fmt::format("{}: of YAML only lists of words are read", text));
    return text;
  }

  const std::string& name_;
  std::vector<Line> lines_;
  size_t at_ = 0;
};

}  // namespace

std::vector<ImportedBlend::Entry> parse_data_path(const std::vector<std::string>& words, const std::string& name) {
  if (words.empty()) throw DataError("{}: there are no sources: {}", name, kForms);
  for (const auto& word : words)
    if (word.empty() || has_control_characters(word)) throw DataError("{}: {} is no prefix", name, quoted(word));
  Entries all;
  if (std::none_of(words.begin(), words.end(), is_number)) {
    for (const auto& word : words) all.push_back({word, std::nullopt});
    return all;
  }
  for (size_t i = 0; i < words.size(); i += 2) {
    if (!is_number(words[i]))
      throw DataError("{}: word {} is \"{}\", and a weight belongs there, as other words are weights: {}", name, i + 1, words[i], kForms);
    if (i + 1 == words.size())
      throw DataError("{}: behind the weight {}, the last of {} words, there is no prefix: {}", name, words[i], words.size(), kForms);
    all.push_back({words[i + 1], weight_of(words[i], words[i + 1], name)});
  }
  if (std::none_of(all.begin(), all.end(), [](const auto& entry) { return *entry.weight > 0; }))
    throw DataError("{}: no weight is above 0", name);
  return all;
}

std::vector<ImportedBlend::Entry> parse_data_args(const std::string& text, const std::string& name) {
  return parse_data_path(words_in(text), name);
}

ImportedBlend parse_per_split_data_args(const std::string& text, const std::string& name) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& failure) {
    throw DataError("{}: not JSON: {}", name, failure.what());
  }
  if (!json.is_object()) throw DataError("{}: not an object with the members train, valid and test", name);
  ImportedBlend blend;
  for (const auto& [key, value] : json.items()) {
    auto* split = key == "train" ? &blend.train : key == "valid" ? &blend.validation : key == "test" ? &blend.test : nullptr;
    if (!split) throw DataError("{}: {} is none of train, valid, test", name, nlohmann::json(key).dump());
    if (value.is_null()) continue;
    std::vector<std::string> words;
    if (value.is_string()) words = words_in(value.get<std::string>());
    else if (!value.is_array()) throw DataError("{}: {} is neither a list nor a text", name, key);
    for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
      if (!value[i].is_string() && !value[i].is_number())
        throw DataError("{}: item {} of {} is neither a weight nor a prefix", name, i + 1, key);
      words.push_back(value[i].is_string() ? value[i].get<std::string>() : value[i].dump());
    }
    if (!words.empty()) *split = parse_data_path(words, fmt::format("{}: {}", name, key));
  }
  if (blend.train.empty()) throw DataError("{}: there is no train", name);
  return blend;
}

ImportedBlend parse_nemo_data_prefix(const std::string& yaml, const std::string& name) { return DataPrefix(yaml, name).parse(); }

void require_files(const ImportedBlend& blend) {
  for (const auto* list : {&blend.train, &blend.validation, &blend.test})
    for (const auto& entry : *list) {
      if (is_url(entry.path)) continue;
      for (const char* ending : {".idx", ".bin"}) {
        std::error_code none;
        if (const auto file = dataset_prefix(entry.path).string() + ending; !fs::is_regular_file(file, none))
          throw DataError("there is no {}: a source is the common beginning of a .bin and an .idx file, as in Megatron", file);
      }
    }
}

std::string settings_of(const ImportedBlend& blend) {
  std::string head, sources;
  const bool by_size = blend.train.size() > 1 && !blend.train[0].weight;
  if (by_size) head += "temperature = 1 # in proportion to their sizes\n";
  if (!blend.validation.empty()) {
    std::vector<std::string> paths;
    for (const auto& entry : blend.validation)
      if (entry.weight.value_or(1) > 0) paths.push_back(quoted(entry.path));
    head += fmt::format("validation = [{}]\n", fmt::join(paths, ", "));
  }
  for (const auto& entry : blend.train) {
    sources += fmt::format("[[data.sources]]\npath = {}\n", quoted(entry.path));
    if (entry.weight) sources += fmt::format("weight = {}\n", *entry.weight);
  }
  for (const auto& entry : blend.test) sources += fmt::format("# test, for 'ingot eval': {}\n", quoted(entry.path));
  return (head.empty() ? "" : "[data]\n" + head + "\n") + sources;
}

}  // namespace ingot::data

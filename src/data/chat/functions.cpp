#include "data/chat/functions.h"

#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/error.h"
#include "base/text.h"

namespace ingot::data::chat {
namespace {

using base::DataError;

constexpr int64_t kMostElements = 1'000'000;
constexpr const char* kWhite = " \t\n\r\f\v";

const std::string& text_of(const Value& value, const std::string& of) {
  if (!value.is_string()) throw DataError("{} takes a text, not {}", of, value.kind());
  return value.string();
}

std::string stripped(const std::string& text, const std::string& of, bool left, bool right) {
  const auto begin = left ? text.find_first_not_of(of) : 0;
  if (begin == std::string::npos) return "";
  const auto end = right ? text.find_last_not_of(of) : text.size() - 1;
  return end == std::string::npos || text.empty() ? "" : text.substr(begin, end - begin + 1);
}

std::u32string each(std::u32string text, utf8proc_int32_t (*change)(utf8proc_int32_t)) {
  for (auto& c : text) c = static_cast<char32_t>(change(static_cast<utf8proc_int32_t>(c)));
  return text;
}
std::string lower(const std::string& text) { return utf8(each(code_points(text), utf8proc_tolower)); }
std::string upper(const std::string& text) { return utf8(each(code_points(text), utf8proc_toupper)); }
std::string capitalized(const std::string& text) {
  auto all = each(code_points(text), utf8proc_tolower);
  if (!all.empty()) all[0] = static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(all[0])));
  return utf8(all);
}
std::string titled(const std::string& text) {
  auto all = each(code_points(text), utf8proc_tolower);
  bool begins = true;
  for (auto& c : all) {
    const auto point = static_cast<utf8proc_int32_t>(c);
    const bool is_letter = utf8proc_toupper(point) != point || utf8proc_tolower(point) != point;
    if (begins && is_letter) c = static_cast<char32_t>(utf8proc_totitle(point));
    begins = !is_letter;
  }
  return utf8(all);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most = INT64_MAX) {
  if (from.empty()) return text;
  std::string out;
  size_t at = 0;
  for (size_t found; most-- > 0 && (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  return out.append(text, at);
}

List split(const std::string& text, const Value* separator, int64_t most, bool from_right) {
  List parts;
  if (!separator || separator->is_none()) {
    size_t at = text.find_first_not_of(kWhite);
    while (at != std::string::npos) {
      if (static_cast<int64_t>(parts.size()) == most) {
        parts.emplace_back(stripped(text.substr(at), kWhite, false, true));
        break;
      }
      const size_t end = std::min(text.find_first_of(kWhite, at), text.size());
      parts.emplace_back(text.substr(at, end - at));
      at = text.find_first_not_of(kWhite, end);
    }
    return parts;
  }
  const auto& by = text_of(*separator, "split");
  if (by.empty()) throw DataError("split takes a separator that is not empty");
  std::vector<size_t> places;
  for (size_t at = text.find(by); at != std::string::npos; at = text.find(by, at + by.size())) places.push_back(at);
  if (most >= 0 && static_cast<int64_t>(places.size()) > most) {
    if (from_right) places.erase(places.begin(), places.end() - most);
    else places.resize(static_cast<size_t>(most));
  }
  size_t begin = 0;
  for (const size_t place : places) {
    parts.emplace_back(text.substr(begin, place - begin));
    begin = place + by.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

int64_t whole(const Value* value, int64_t otherwise) { return value && value->is_number() ? value->integer() : otherwise; }

List elements(const Value& value, const std::string& of) {
  if (value.is_list()) return value.list();
  if (value.is_undefined()) return {};
  List all;
  if (value.is_dict()) {
    for (const auto& [key, _] : value.dict()) all.emplace_back(key);
  } else if (value.is_string()) {
    for (const char32_t c : code_points(value.string())) all.emplace_back(utf8({c}));
  } else {
    throw DataError("{} takes a list, not {}", of, value.kind());
  }
  return all;
}

int64_t length_of(const Value& value) {
  if (value.is_string()) return static_cast<int64_t>(code_points(value.string()).size());
  if (value.is_list()) return static_cast<int64_t>(value.list().size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  if (value.is_undefined()) return 0;
  throw DataError("{} has no length", value.kind());
}

// "a.b" of dicts in one another.
Value member(const Value& of, const std::string& path) {
  Value at = of;
  for (const auto& name : base::split(path, '.')) {
    const auto* found = at.find(name);
    if (!found) return Value::Undefined{name};
    at = *found;
  }
  return at;
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_string() && b.is_string()) return a.string() < b.string();
  throw DataError("{} and {} have no order", a.kind(), b.kind());
}

List items_of(const Value& dict) {
  List items;
  for (const auto& [key, value] : dict.dict()) items.emplace_back(List{key, value});
  return items;
}

// select, reject, selectattr, rejectattr.
List chosen(const std::string& name, const Value& value, const Arguments& a) {
  const bool of_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
  List kept;
  for (const auto& element : elements(value, name)) {
    Arguments rest = a;
    Value tested = element;
    if (of_attribute) {
      if (a.positional.empty()) throw DataError("{} takes the name of an attribute", name);
      tested = member(element, text_of(a.positional[0], name));
      rest.positional.erase(rest.positional.begin());
    }
    bool passes = tested.truth();
    if (!rest.positional.empty()) {
      const auto test = text_of(rest.positional[0], name);
      rest.positional.erase(rest.positional.begin());
      passes = passes_test(test, tested, rest);
    }
    if (passes == keeps) kept.push_back(element);
  }
  return kept;
}

List mapped(const Value& value, const Arguments& a) {
  List all;
  for (const auto& element : elements(value, "map")) {
    if (const auto* attribute = a.named_value("attribute")) {
      auto found = attribute->is_string() ? member(element, attribute->string()) : Value(Value::Undefined{"attribute"});
      if (const auto* otherwise = a.named_value("default"); otherwise && found.is_undefined()) found = *otherwise;
      all.push_back(std::move(found));
    } else {
      if (a.positional.empty()) throw DataError("map takes the name of a filter, or attribute=");
      Arguments rest = a;
      rest.positional.erase(rest.positional.begin());
      all.push_back(apply_filter(text_of(a.positional[0], "map"), element, rest));
    }
  }
  return all;
}

Value numbered(const Value& value, const std::string& name, const Arguments& a) {
  const auto* otherwise = a.get(0, "default");
  if (value.is_number())
    return name == "int" ? Value(value.is_float() ? static_cast<int64_t>(value.number()) : value.integer()) : Value(value.number());
  const auto number = value.is_string() ? base::parse_number(stripped(value.string(), kWhite, true, true)) : std::nullopt;
  if (!number) return otherwise ? *otherwise : name == "int" ? Value(int64_t{0}) : Value(0.0);
  return name == "int" ? Value(static_cast<int64_t>(*number)) : Value(*number);
}

std::string indented(const std::string& text, const Arguments& a) {
  const auto* width = a.get(0, "width");
  const auto* first = a.get(1, "first");
  const auto* blank = a.get(2, "blank");
  const std::string margin =
      width && width->is_string() ? width->string() : std::string(static_cast<size_t>(std::clamp<int64_t>(whole(width, 4), 0, 1000)), ' ');
  std::string out;
  const auto lines = base::split(text, '\n');
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool is_moved = i == 0 ? first && first->truth() : !lines[i].empty() || (blank && blank->truth());
    out += (is_moved ? margin : "") + lines[i];
  }
  return out;
}

}  // namespace

const std::vector<std::pair<std::string, Function>>& global_functions() {
  static const std::vector<std::pair<std::string, Function>> all = {
      {"range",
       [](const Arguments& a) -> Value {
         for (const auto& value : a.positional)
           if (!value.is_number() || value.is_float()) throw DataError("range takes whole numbers, not {}", value.kind());
         const size_t count = a.positional.size();
         if (count < 1 || count > 3) throw DataError("range takes one to three numbers");
         const int64_t begin = count > 1 ? a.positional[0].integer() : 0, end = a.positional[count > 1 ? 1 : 0].integer(),
                       step = count > 2 ? a.positional[2].integer() : 1;
         if (step == 0) throw DataError("range cannot have steps of 0");
         List list;
         for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
           if (static_cast<int64_t>(list.size()) == kMostElements) throw DataError("range has more than {} elements", kMostElements);
           list.emplace_back(i);
         }
         return list;
       }},
      {"namespace",
       [](const Arguments& a) -> Value { return a.positional.empty() ? Value(a.named) : Value(Dict(a.positional[0].dict())); }},
      {"dict", [](const Arguments& a) -> Value { return a.named; }},
      {"raise_exception",
       [](const Arguments& a) -> Value { throw DataError("the template says: {}", a.positional.empty() ? "" : a.positional[0].text()); }},
      {"strftime_now",
       [](const Arguments& a) -> Value {
         const auto format = text_of(a.positional.empty() ? Value() : a.positional[0], "strftime_now");
         const std::time_t now = std::time(nullptr);
         std::tm parts{};
         ::localtime_r(&now, &parts);
         char text[256];
         return std::string(text, std::strftime(text, sizeof text, format.c_str(), &parts));
       }},
  };
  return all;
}

bool is_in(const Value& element, const Value& all) {
  if (all.is_string()) {
    if (!element.is_string()) throw DataError("{} cannot be looked for in a text", element.kind());
    return all.string().find(element.string()) != std::string::npos;
  }
  if (all.is_dict()) return element.is_string() && all.find(element.string()) != nullptr;
  if (!all.is_list()) throw DataError("nothing can be looked for in {}", all.kind());
  return std::any_of(all.list().begin(), all.list().end(), [&](const Value& one) { return one.equals(element); });
}

Value apply_filter(const std::string& name, const Value& value, const Arguments& a) {
  if (name == "default" || name == "d") {
    const auto* otherwise = a.get(0, "default_value");
    const auto* of_false = a.get(1, "boolean");
    const bool is_missing = value.is_undefined() || (of_false && of_false->truth() && !value.truth());
    return is_missing ? (otherwise ? *otherwise : Value("")) : value;
  }
  if (name == "trim") {
    const auto* of = a.get(0, "chars");
    return stripped(value.text(), of && of->is_string() ? of->string() : kWhite, true, true);
  }
  if (name == "length" || name == "count") return length_of(value);
  if (name == "tojson") {
    const auto* indent = a.get(0, "indent");
    return value.json(indent && indent->is_integer() ? std::clamp<int64_t>(indent->integer(), 0, 64) : -1);
  }
  if (name == "string") return value.text();
  if (name == "safe" || name == "e" || name == "escape") {
    if (name != "safe") throw DataError("the filter '{}' is not known here: chat templates do not escape", name);
    return value;
  }
  if (name == "upper") return upper(value.text());
  if (name == "lower") return lower(value.text());
  if (name == "capitalize") return capitalized(value.text());
  if (name == "title") return titled(value.text());
  if (name == "indent") return indented(value.text(), a);
  if (name == "replace") {
    const auto *from = a.get(0, "old"), *to = a.get(1, "new");
    if (!from || !to) throw DataError("replace takes what and by what");
    return replaced(value.text(), from->text(), to->text(), whole(a.get(2, "count"), INT64_MAX));
  }
  if (name == "int" || name == "float") return numbered(value, name, a);
  if (name == "abs") {
    if (!value.is_number()) throw DataError("abs takes a number, not {}", value.kind());
    return value.is_float() ? Value(std::abs(value.number())) : Value(std::abs(value.integer()));
  }
  if (name == "round") {
    if (!value.is_number()) throw DataError("round takes a number, not {}", value.kind());
    const double unit = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(whole(a.get(0, "precision"), 0), -15, 15)));
    return std::nearbyint(value.number() * unit) / unit;
  }
  if (name == "list") return elements(value, name);
  if (name == "first" || name == "last") {
    const auto all = elements(value, name);
    if (all.empty()) return Value::Undefined{name + " of nothing"};
    return name == "first" ? all.front() : all.back();
  }
  if (name == "reverse") {
    auto all = elements(value, name);
    std::reverse(all.begin(), all.end());
    if (!value.is_string()) return all;
    std::string text;
    for (const auto& c : all) text += c.string();
    return text;
  }
  if (name == "join") {
    const auto* by = a.get(0, "d");
    const auto* attribute = a.get(1, "attribute");
    std::string out;
    bool is_first = true;
    for (const auto& element : elements(value, name)) {
      out += (is_first || !by ? "" : by->text()) + (attribute ? member(element, attribute->text()) : element).text();
      is_first = false;
    }
    return out;
  }
  if (name == "items") {
    if (value.is_undefined()) return List{};
    if (!value.is_dict()) throw DataError("items takes a dict, not {}", value.kind());
    return items_of(value);
  }
  if (name == "dictsort") {
    if (!value.is_dict()) throw DataError("dictsort takes a dict, not {}", value.kind());
    auto items = items_of(value);
    std::stable_sort(items.begin(), items.end(),
                     [](const Value& x, const Value& y) { return lower(x.list()[0].text()) < lower(y.list()[0].text()); });
    return items;
  }
  if (name == "sort") {
    auto all = elements(value, name);
    const auto* attribute = a.named_value("attribute");
    const auto* falls = a.get(0, "reverse");
    const auto key = [&](const Value& x) { return attribute ? member(x, attribute->text()) : x; };
    std::stable_sort(all.begin(), all.end(), [&](const Value& x, const Value& y) {
      return falls && falls->truth() ? is_less(key(y), key(x)) : is_less(key(x), key(y));
    });
    return all;
  }
  if (name == "unique") {
    List kept;
    for (const auto& element : elements(value, name))
      if (std::none_of(kept.begin(), kept.end(), [&](const Value& one) { return one.equals(element); })) kept.push_back(element);
    return kept;
  }
  if (name == "min" || name == "max") {
    const auto all = elements(value, name);
    if (all.empty()) return Value::Undefined{name + " of nothing"};
    return *(name == "min" ? std::min_element(all.begin(), all.end(), is_less) : std::max_element(all.begin(), all.end(), is_less));
  }
  if (name == "sum") {
    int64_t whole_sum = 0;
    double sum = 0;
    bool is_whole = true;
    for (const auto& element : elements(value, name)) {
      if (!element.is_number()) throw DataError("sum takes numbers, not {}", element.kind());
      is_whole = is_whole && !element.is_float();
      sum += element.number();
      if (is_whole) whole_sum += element.integer();
    }
    return is_whole ? Value(whole_sum) : Value(sum);
  }
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") return chosen(name, value, a);
  if (name == "map") return mapped(value, a);
  throw DataError("the filter '{}' is not known here", name);
}

bool passes_test(const std::string& name, const Value& value, const Arguments& a) {
  const auto argument = [&]() -> const Value& {
    if (a.positional.empty()) throw DataError("the test '{}' takes something to compare with", name);
    return a.positional[0];
  };
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.is_string();
  if (name == "mapping") return value.is_dict();
  if (name == "boolean") return value.is_bool();
  if (name == "true") return value.is_bool() && value.truth();
  if (name == "false") return value.is_bool() && !value.truth();
  if (name == "integer") return value.is_integer();
  if (name == "float") return value.is_float();
  if (name == "number") return value.is_number();
  if (name == "iterable" || name == "sequence") return value.is_list() || value.is_string() || value.is_dict();
  if (name == "callable") return value.is_function();
  if (name == "in") return is_in(value, argument());
  if (name == "equalto" || name == "eq" || name == "sameas") return value.equals(argument());
  if (name == "ne") return !value.equals(argument());
  if (name == "lt" || name == "lessthan") return is_less(value, argument());
  if (name == "gt" || name == "greaterthan") return is_less(argument(), value);
  if (name == "le") return !is_less(argument(), value);
  if (name == "ge") return !is_less(value, argument());
  if (name == "odd" || name == "even" || name == "divisibleby") {
    if (!value.is_number() || value.is_float()) throw DataError("the test '{}' takes a whole number, not {}", name, value.kind());
    const int64_t by = name == "divisibleby" ? whole(&argument(), 0) : 2;
    if (by == 0) throw DataError("division by 0");
    return (value.integer() % by == 0) == (name != "odd");
  }
  if (name == "lower") return value.is_string() && lower(value.string()) == value.string();
  if (name == "upper") return value.is_string() && upper(value.string()) == value.string();
  throw DataError("the test '{}' is not known here", name);
}

Value call_method(const Value& value, const std::string& name, const Arguments& a) {
  if (value.is_string()) {
    const auto& text = value.string();
    const auto* first = a.get(0, "");
    const auto chars = [&] { return first && first->is_string() ? first->string() : std::string(kWhite); };
    if (name == "strip") return stripped(text, chars(), true, true);
    if (name == "lstrip") return stripped(text, chars(), true, false);
    if (name == "rstrip") return stripped(text, chars(), false, true);
    if (name == "lower") return lower(text);
    if (name == "upper") return upper(text);
    if (name == "title") return titled(text);
    if (name == "capitalize") return capitalized(text);
    if (name == "split" || name == "rsplit") return split(text, a.get(0, "sep"), whole(a.get(1, "maxsplit"), -1), name == "rsplit");
    if (name == "splitlines") {
      auto lines = split(replaced(text, "\r\n", "\n"), std::make_unique<Value>("\n").get(), -1, false);
      if (!lines.empty() && lines.back().string().empty()) lines.pop_back();
      return lines;
    }
    if (name == "startswith" || name == "endswith") {
      if (!first) throw DataError("{} takes a text", name);
      const auto fits = [&](const Value& part) {
        return name == "startswith" ? text.starts_with(text_of(part, name)) : text.ends_with(text_of(part, name));
      };
      return first->is_list() ? std::any_of(first->list().begin(), first->list().end(), fits) : fits(*first);
    }
    if (name == "replace") {
      if (a.positional.size() < 2) throw DataError("replace takes what and by what");
      return replaced(text, text_of(a.positional[0], name), text_of(a.positional[1], name), whole(a.get(2, "count"), INT64_MAX));
    }
    if (name == "find" || name == "count" || name == "index") {
      if (!first) throw DataError("{} takes a text", name);
      const auto part = text_of(*first, name);
      if (name == "count") {
        int64_t count = 0;
        for (size_t at = text.find(part); !part.empty() && at != std::string::npos; at = text.find(part, at + part.size())) ++count;
        return count;
      }
      const auto at = text.find(part);
      return at == std::string::npos ? int64_t{-1} : static_cast<int64_t>(code_points(text.substr(0, at)).size());
    }
    if (name == "join") {
      if (!first) throw DataError("join takes a list");
      Arguments by;
      by.positional = {value};
      return apply_filter("join", *first, by);
    }
    if (name == "isdigit") return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (name == "removeprefix" || name == "removesuffix") {
      if (!first) throw DataError("{} takes a text", name);
      const auto part = text_of(*first, name);
      if (name == "removeprefix") return text.starts_with(part) ? text.substr(part.size()) : text;
      return text.ends_with(part) && !part.empty() ? text.substr(0, text.size() - part.size()) : text;
    }
  }
  if (value.is_dict()) {
    if (name == "items") return items_of(value);
    if (name == "keys") return elements(value, name);
    if (name == "values") {
      List all;
      for (const auto& [_, one] : value.dict()) all.push_back(one);
      return all;
    }
    if (name == "get") {
      const auto *key = a.get(0, "key"), *otherwise = a.get(1, "default");
      const auto* found = key && key->is_string() ? value.find(key->string()) : nullptr;
      return found ? *found : otherwise ? *otherwise : Value();
    }
    if (name == "update" && !a.positional.empty() && a.positional[0].is_dict()) {
      for (const auto& [key, one] : a.positional[0].dict()) value.put(key, one);
      return {};
    }
  }
  if (value.is_list()) {
    auto& list = value.list();
    if (name == "append" && !a.positional.empty()) {
      if (static_cast<int64_t>(list.size()) >= kMostElements) throw DataError("a list has more than {} elements", kMostElements);
      list.push_back(a.positional[0]);
      return {};
    }
    if (name == "pop" && !list.empty()) {
      const int64_t at = whole(a.get(0, "index"), -1), index = at < 0 ? at + static_cast<int64_t>(list.size()) : at;
      if (index < 0 || index >= static_cast<int64_t>(list.size())) throw DataError("pop: there is no element {}", at);
      auto taken = list[static_cast<size_t>(index)];
      list.erase(list.begin() + index);
      return taken;
    }
    if (name == "index" || name == "count") {
      int64_t count = 0;
      for (size_t i = 0; i < list.size() && !a.positional.empty(); ++i)
        if (list[i].equals(a.positional[0])) {
          if (name == "index") return static_cast<int64_t>(i);
          ++count;
        }
      return name == "index" ? int64_t{-1} : count;
    }
  }
  throw DataError("{} has no '{}' here", value.kind(), name);
}

}  // namespace ingot::data::chat

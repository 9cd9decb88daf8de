#include "data/chat/value.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::data::chat {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  auto text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

// A list may hold itself.
struct Deeper {
  Deeper() {
    if (++depth > 100) {
      --depth;
      throw base::DataError("values lie deeper than 100 in one another");
    }
  }
  ~Deeper() { --depth; }
  Deeper(const Deeper&) = delete;
  static thread_local int depth;
};
thread_local int Deeper::depth = 0;

std::string quoted_json(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        else out += c;
    }
  }
  return out + "\"";
}

// Python prefers ' and takes " where the text has the one and not the other.
std::string quoted_python(const std::string& text) {
  const char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out += '\\', out += c;
    else if (c == '\n') out += "\\n";
    else if (c == '\r') out += "\\r";
    else if (c == '\t') out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
    else out += c;
  }
  return out + quote;
}

}  // namespace

Value Value::from(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& element : json) list.push_back(from(element));
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [key, value] : json.items()) dict.emplace_back(key, from(value));
    return dict;
  }
  return {};
}

Value* Value::find(const std::string& key) const {
  if (!is_dict()) return nullptr;
  for (auto& [known, value] : dict())
    if (known == key) return &value;
  return nullptr;
}

void Value::put(const std::string& key, Value value) const {
  if (auto* known = find(key)) *known = std::move(value);
  else dict().emplace_back(key, std::move(value));
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return number() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().empty();
  return true;
}

bool Value::equals(const Value& other) const {
  const Deeper deeper;
  if (is_number() && other.is_number()) return number() == other.number();
  if (is_string() && other.is_string()) return string() == other.string();
  if (is_none() || is_undefined()) return value_.index() == other.value_.index();
  if (is_list() && other.is_list()) {
    const auto &a = list(), &b = other.list();
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i)
      if (!a[i].equals(b[i])) return false;
    return true;
  }
  if (is_dict() && other.is_dict()) {
    if (dict().size() != other.dict().size()) return false;
    for (const auto& [key, value] : dict()) {
      const auto* there = other.find(key);
      if (!there || !value.equals(*there)) return false;
    }
    return true;
  }
  return false;
}

std::string Value::kind() const {
  static constexpr const char* kNames[] = {"undefined", "None", "a bool", "an int", "a float", "a text", "a list", "a dict", "a function"};
  return kNames[value_.index()];
}

std::string Value::text() const {
  if (is_string()) return string();
  if (is_undefined()) return "";
  return repr();
}

std::string Value::repr() const {
  const Deeper deeper;
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return std::get<bool>(value_) ? "True" : "False";
  if (is_integer()) return std::to_string(integer());
  if (is_float()) return number_text(number());
  if (is_string()) return quoted_python(string());
  std::string out;
  if (is_list()) {
    for (const auto& element : list()) out += (out.empty() ? "" : ", ") + element.repr();
    return "[" + out + "]";
  }
  if (is_dict()) {
    for (const auto& [key, value] : dict()) out += (out.empty() ? "" : ", ") + quoted_python(key) + ": " + value.repr();
    return "{" + out + "}";
  }
  return "<function>";
}

std::string Value::json(int64_t indent) const {
  std::string out;
  write_json(out, indent, 0);
  return out;
}

void Value::write_json(std::string& out, int64_t indent, int64_t depth) const {
  const Deeper deeper;
  const auto line = [&](int64_t at) {
    if (indent >= 0) out += "\n" + std::string(static_cast<size_t>(indent * at), ' ');
  };
  if (is_undefined() || is_function()) throw base::DataError("tojson has {} to write", kind());
  if (is_none()) out += "null";
  else if (is_bool()) out += truth() ? "true" : "false";
  else if (is_string()) out += quoted_json(string());
  else if (is_integer() || is_float()) out += repr();
  else if (is_list()) {
    out += '[';
    for (size_t i = 0; i < list().size(); ++i) {
      if (i > 0) out += indent >= 0 ? "," : ", ";
      line(depth + 1);
      list()[i].write_json(out, indent, depth + 1);
    }
    if (!list().empty()) line(depth);
    out += ']';
  } else {
    out += '{';
    for (size_t i = 0; i < dict().size(); ++i) {
      if (i > 0) out += indent >= 0 ? "," : ", ";
      line(depth + 1);
      out += quoted_json(dict()[i].first) + ": ";
      dict()[i].second.write_json(out, indent, depth + 1);
    }
    if (!dict().empty()) line(depth);
    out += '}';
  }
}

std::u32string code_points(const std::string& text) {
  std::u32string points;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t point = length == 1 ? lead : lead & (0xff >> (length + 1));
    for (size_t k = 1; k < length && i + k < text.size(); ++k) point = point << 6 | (static_cast<unsigned char>(text[i + k]) & 0x3f);
    points += point;
    i += length;
  }
  return points;
}

std::string utf8(const std::u32string& text) {
  std::string out;
  for (const char32_t c : text) {
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += static_cast<char>(0xc0 | c >> 6);
      out += static_cast<char>(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
      out += static_cast<char>(0xe0 | c >> 12);
      out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (c & 0x3f));
    } else {
      out += static_cast<char>(0xf0 | c >> 18);
      out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
      out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
      out += static_cast<char>(0x80 | (c & 0x3f));
    }
  }
  return out;
}

}  // namespace ingot::data::chat

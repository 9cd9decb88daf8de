#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "interchange/pickle.h"

namespace ingot::interchange {
namespace {

using nlohmann::json;

std::string hexadecimal(std::string_view bytes) {
  constexpr size_t kShownBytes = 256;
  std::string out;
  for (const char byte : bytes.substr(0, kShownBytes)) out += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  if (bytes.size() > kShownBytes) out += "...";
  return out;
}

class Printer {
 public:
  Printer(int depth_limit, int64_t limit) : depth_limit_(depth_limit), left_(limit) {}

  json print(const PickleValue& value, int depth) {
    charge(value, 1);
    if (depth > depth_limit_) return {{"!cut", "nested too deeply"}};
    switch (value.kind()) {
      case PickleKind::none: return nullptr;
      case PickleKind::boolean: return value.boolean();
      case PickleKind::integer: return value.integer();
      case PickleKind::large_integer: return {{"!integer", hexadecimal(value.bytes())}};
      case PickleKind::real: return std::isfinite(value.real()) ? json(value.real()) : json(fmt::format("{}", value.real()));
      case PickleKind::text: charge(value, value.text().size()); return value.text();
      case PickleKind::bytes: return {{"!bytes", hexadecimal(value.bytes())}, {"size", value.bytes().size()}};
      case PickleKind::list:
      case PickleKind::tuple: return items(value, depth);
      case PickleKind::set: return {{"!set", items(value, depth)}};
      case PickleKind::dict: return pairs(value, depth);
      case PickleKind::global: return {{"!global", value.class_name()}};
      case PickleKind::persistent: return {{"!persistent", print(value.id(), depth + 1)}};
      case PickleKind::object: return object(value, depth);
    }
    return nullptr;
  }

 private:
  // Shared or cyclic parts can make much of a small file.
  void charge(const PickleValue& value, size_t cost) {
    left_ -= static_cast<int64_t>(cost);
    if (left_ < 0) value.fail("the values of the pickle refer to one another so often that it cannot be printed");
  }

  json items(const PickleValue& value, int depth) {
    json out = json::array();
    for (size_t i = 0; i < value.size(); ++i) out.push_back(print(value[i], depth + 1));
    return out;
  }

  // An object when all keys are texts, else a list of pairs.
  json pairs(const PickleValue& value, int depth) {
    bool texts = true;
    for (size_t i = 0; i < value.size() && texts; ++i) texts = value.pair(i).first.is(PickleKind::text);
    json out = texts ? json::object() : json::array();
    for (size_t i = 0; i < value.size(); ++i) {
      const auto [key, content] = value.pair(i);
      if (texts) {
        charge(key, key.text().size());
        out[std::string(key.text())] = print(content, depth + 1);
      } else {
        out.push_back({print(key, depth + 1), print(content, depth + 1)});
      }
    }
    return texts ? out : json{{"!pairs", std::move(out)}};
  }

  json object(const PickleValue& value, int depth) {
    const bool named = value.callable().is(PickleKind::global);  // else it is itself the result of a call
    json out = {{"!class", named ? json(value.class_name()) : print(value.callable(), depth + 1)}};
    if (value.args().size() > 0) out["args"] = items(value.args(), depth + 1);
    if (const auto keywords = value.keywords()) out["keywords"] = print(*keywords, depth + 1);
    if (const auto state = value.state()) out["state"] = print(*state, depth + 1);
    if (value.size() > 0) out["items"] = value.has_pairs() ? pairs(value, depth + 1) : items(value, depth + 1);
    return out;
  }

  int depth_limit_;
  int64_t left_;
};

}  // namespace

json to_json(const PickleValue& value, int depth_limit) {
  constexpr int64_t kMost = 16, kLeast = 65536;  // values and bytes of texts, per byte of the pickle and at least
  return Printer(depth_limit, kMost * static_cast<int64_t>(value.pickle_bytes()) + kLeast).print(value, 0);
}

}  // namespace ingot::interchange

#include "report/plots/figure.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "report/page/html.h"

namespace ingot::report {
namespace {

nlohmann::ordered_json number_json(double value) {
  if (!std::isfinite(value)) return nullptr;
  // Without the ".0" that JSON writes behind whole doubles.
  if (std::abs(value) < 0x1p53 && value == std::trunc(value)) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

std::string script_json(const nlohmann::ordered_json& json) {
  const auto text = json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') out += "\\u003c";
    else out += c;
  }
  return out;
}

nlohmann::ordered_json rounded(double value) {
  return std::isfinite(value) ? number_json(std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr)) : nullptr;
}

nlohmann::ordered_json rounded(const std::vector<double>& values) {
  auto out = nlohmann::ordered_json::array();
  for (const double value : values) out.push_back(rounded(value));
  return out;
}

nlohmann::ordered_json exact(const std::vector<double>& values) {
  auto out = nlohmann::ordered_json::array();
  for (const double value : values) out.push_back(number_json(value));
  return out;
}

nlohmann::ordered_json axis_json(const Axis& axis, std::string_view label) {
  static constexpr const char* kFormats[] = {"plain", "count", "bytes", "tokens"};
  return {{"label", label},
          {"format", kFormats[static_cast<size_t>(axis.format)]},
          {"low", number_json(axis.low)},
          {"high", number_json(axis.high)},
          {"log", axis.logarithmic}};
}

std::string keys(const std::vector<std::pair<std::string, std::string>>& styles_and_names) {
  std::string out;
  for (const auto& [style, name] : styles_and_names)
    out += fmt::format("<span><span class=\"dot {}\"></span>{}</span>", style, escape(name));
  return out.empty() ? "" : "<p class=\"keys\">" + out + "</p>";
}

std::string render(const Figure& figure) {
  const auto numbers = figure.numbers.empty() ? "" : "<noscript>" + figure.numbers + "</noscript>";
  return fmt::format(
      "<figure class=\"{}\"><figcaption><h3>{}</h3><p>{}</p>{}</figcaption>\n<div class=\"plot\" role=\"img\" aria-label=\"{}\">{}"
      "<script type=\"application/json\">{}</script></div></figure>\n",
      figure.style, escape(figure.title), escape(figure.note), figure.more, escape(figure.title), numbers, script_json(figure.data));
}

}  // namespace ingot::report

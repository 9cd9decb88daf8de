// What all plots share: a <figure> with its caption and, as JSON, what plots.js gives to dygraphs. Nothing is drawn without the script;
// what a plot says must be in a table, too, or in the figure's own (`numbers`).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "report/plots/axis.h"

namespace ingot::report {

struct Figure {
  std::string title;
  std::string style;            // classes: "tall", "wide", "r3" with run 3
  std::string note;             // text beside the title
  std::string more{};           // HTML behind the note
  std::string numbers{};        // HTML for readers without scripts
  nlohmann::ordered_json data;  // "kind" first: "lines", "bars" or "heat"
};

/// `<figure>…</figure>`.
std::string render(const Figure& figure);

/// JSON inside <script>: no text of it can end the element or begin a comment. What is not UTF-8 is replaced.
std::string script_json(const nlohmann::ordered_json& json);

/// Six significant digits are more than a screen has; null where there is no finite number.
nlohmann::ordered_json rounded(double value);
nlohmann::ordered_json rounded(const std::vector<double>& values);
/// Up to 2^53 every step is told from its neighbours.
nlohmann::ordered_json exact(const std::vector<double>& values);

nlohmann::ordered_json axis_json(const Axis& axis, std::string_view label);

/// Names with their colours, each a class of the style sheet, beside the title; "" for none.
std::string keys(const std::vector<std::pair<std::string, std::string>>& styles_and_names);

}  // namespace ingot::report

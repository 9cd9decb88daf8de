// What a verb prints: one JSON document or text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/verb.h"

namespace ingot::cli {

/// On standard output the document with --json, else the text; in the file `output`, unless that is empty, the document. Throws FileError.
void show(const Call& call, const nlohmann::ordered_json& json, const std::string& text, const std::string& output = "");

}  // namespace ingot::cli

// Filters, tests, methods and functions of chat templates: those of Jinja and Python that published templates use.
#pragma once

#include <string>

#include "data/chat/value.h"

namespace ingot::data::chat {

/// range, namespace, dict, raise_exception, strftime_now.
const std::vector<std::pair<std::string, Function>>& global_functions();

/// All throw DataError for what is not known, by name, and for arguments that do not fit.
Value apply_filter(const std::string& name, const Value& value, const Arguments& arguments);
bool passes_test(const std::string& name, const Value& value, const Arguments& arguments);
/// value.name(arguments) of a text, list or dict.
Value call_method(const Value& value, const std::string& name, const Arguments& arguments);
bool is_in(const Value& element, const Value& all);

}  // namespace ingot::data::chat

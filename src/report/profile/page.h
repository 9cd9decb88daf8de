// The page about a machine profile, about collectives, or about two machines that are compared.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/profile/reader.h"

namespace ingot::report {

/// One machine or two; `written` is the time that the page shows as its own, as text.
std::string make_profile_page(const std::vector<Measured>& machines, std::string_view written);

}  // namespace ingot::report

// The page of a sweep: the loss of every run, the metric against each setting, parallel coordinates, and a table.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "report/page/document.h"
#include "report/sweep/results.h"

namespace ingot::report {

/// `folder`: of the sweep, where the runs' metrics lie.
Content content_of(const SweepResults& sweep, const std::filesystem::path& folder);

/// `written`: when, as text.
std::string make_sweep_page(const SweepResults& sweep, const std::filesystem::path& folder, std::string_view written);

/// Writes folder/report.html, whole or not at all, and returns its path.
std::filesystem::path write_sweep_page(const SweepResults& sweep, const std::filesystem::path& folder);

}  // namespace ingot::report

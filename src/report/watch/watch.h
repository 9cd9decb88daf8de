// `ingot report --watch`.
#pragma once

#include <filesystem>
#include <vector>

namespace ingot::report {

/// Prints the URL and serves the page of run directories, or of a sweep's folder, until SIGINT or SIGTERM comes. Called before the
/// process has other threads, for signals to come here.
void watch(const std::vector<std::filesystem::path>& folders, int port, double timeout_s);

}  // namespace ingot::report

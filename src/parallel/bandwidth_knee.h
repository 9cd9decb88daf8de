// How large a message must be to come near the best bandwidth of a group: the default size of gradient buckets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/group.h"

namespace ingot::parallel {

/// The smallest message, in bytes, with which an all_reduce of this group comes within 20 % of its best bandwidth (the knee of
/// the curve): measured here in a fraction of a second, the same answer on all ranks. 0 for a group of one.
int64_t measure_bandwidth_knee(comm::Group& group, at::Device device);

/// The same, measured once and then kept in `cache_folder` under `key`: what is measured twice never gives quite the same, and
/// the size of a bucket decides which rank owns what. The first rank's folder counts; an empty one keeps nothing.
int64_t kept_bandwidth_knee(comm::Group& group, at::Device device, const std::filesystem::path& cache_folder, const std::string& key);

}  // namespace ingot::parallel

// How large a message must be to come near the best bandwidth of a group: the default size of gradient buckets.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "comm/group.h"

namespace ingot::parallel {

struct KneeQuestion {
  bool is_scattered = true;  // gradients are reduced by reduce_scatter (ZeRO 1 to 3), not by all_reduce
  int64_t most_bytes = 0;    // that a bucket may have
};

/// Among 256 KiB, 512 KiB … the smallest message with 80 % of the best bandwidth (the knee of the curve), with `seconds_of` a message:
/// larger ones are tried until three in a row are no faster, or beyond `most_bytes`.
int64_t find_bandwidth_knee(const std::function<double(int64_t bytes)>& seconds_of, int64_t most_bytes);

/// The same of the collective that reduces gradients in this group, timed here and now: in a fraction of a second on most machines. The
/// same answer on all ranks; 0 for a group of one. On a CPU messages have 1/16 of the available memory at most.
int64_t measure_bandwidth_knee(comm::Group& group, at::Device device, const KneeQuestion& question);

/// The same, measured once and then kept in `cache_folder` under `key` and the question: what is measured twice never gives quite the
/// same, and the size of a bucket decides which rank owns what. The first rank's folder counts; an empty one keeps nothing.
int64_t kept_bandwidth_knee(comm::Group& group, at::Device device, const KneeQuestion& question, const std::filesystem::path& cache_folder,
                            const std::string& key);

}  // namespace ingot::parallel

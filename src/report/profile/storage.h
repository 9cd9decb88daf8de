// What a profile says of its folders, for people.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/text.h"
#include "plan/profile.h"

namespace ingot::report {

struct StorageRow {
  std::string what;  // "sequential_write, 1.0 MiB, 4 writers, past the page cache (ext4)"
  double bytes_per_s = 0, operations_per_s = 0, p50_s = 0, p99_s = 0;
};

inline std::vector<StorageRow> storage_rows(const plan::MachineProfile& profile) {
  std::vector<StorageRow> rows;
  for (const auto& e : profile.storage)
    rows.push_back({fmt::format("{}, {}, {} writer{}{} ({})", e.operation, base::format_bytes(e.block_bytes), e.writers,
                                e.writers == 1 ? "" : "s", e.direct ? ", past the page cache" : "", e.folder_type),
                    e.bytes_per_s, e.operations_per_s, e.p50_s, e.p99_s});
  return rows;
}

}  // namespace ingot::report

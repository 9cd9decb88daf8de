// How far predictions were from what the runs of this machine measured, as a document.
#pragma once

#include <filesystem>
#include <vector>

#include "plan/report/document.h"
#include "plan/track_record.h"

namespace ingot::plan {

/// `groups`: errors_of() the record, `unreadable` lines of which do not count.
Document errors_document(const std::filesystem::path& record, const std::vector<GroupErrors>& groups, int64_t unreadable);

}  // namespace ingot::plan

// A model's sizes with the numbers behind each, as a document.
#pragma once

#include "plan/report/document.h"
#include "plan/run/sizing_device.h"
#include "plan/sizing.h"

namespace ingot::plan {

/// Fits: the chosen size does, by data parallelism alone.
Document document_of(const Sizing& sizing, const SizingDevice& chosen);

}  // namespace ingot::plan

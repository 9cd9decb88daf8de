// `ingot data inspect` with a page, or of a run: numbers, and the page that shows them.
#pragma once

#include "data/commands.h"

namespace ingot::cli {

/// Status 3 when ids lie outside of the vocabulary, and when the run would end at its data. Without tensors it reads no configuration.
int inspect_as_page(const data::InspectCommand& command);

}  // namespace ingot::cli

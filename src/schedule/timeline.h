// A replay as a picture: a row for each rank and stream, a bar for each operation. SVG, for documents, which run no script.
#pragma once

#include <string>

#include "schedule/replay.h"

namespace ingot::schedule {

/// Bars carry their operation's name as a tooltip, and inside where it has room.
std::string timeline_svg(const Program& program, const Replay& replay, const std::string& title);

}  // namespace ingot::schedule

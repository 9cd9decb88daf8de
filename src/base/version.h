// The program's version, as CMake's project() says.
#pragma once

namespace ingot::base {

const char* program_version();

}  // namespace ingot::base

#include "base/version.h"

namespace ingot::base {

const char* program_version() { return INGOT_VERSION; }

}  // namespace ingot::base

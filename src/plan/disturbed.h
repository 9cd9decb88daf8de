// When what was measured of a machine says more of the other programs on it. Free of torch.
#pragma once

namespace ingot::plan {

/// Share of the machine that other programs may use before a profile is called disturbed.
inline constexpr double kBusyShare = 0.1;

}  // namespace ingot::plan

// Points of which none is better than another in everything. Each has the same number of positive objectives, of which more is better.
#pragma once

#include <cstddef>
#include <vector>

namespace ingot::plan {

using Objectives = std::vector<double>;

/// Whether `a` is at least as good as `b` everywhere and better somewhere.
bool dominates(const Objectives& a, const Objectives& b);

/// Which points no other dominates; equal ones all are.
std::vector<bool> pareto_front(const std::vector<Objectives>& points);

/// The point that dominates point `i` by most: whose smallest gain over it is largest, of those the one with the largest product of gains.
/// Nothing when point `i` is on the front.
struct Dominator {
  size_t point = 0;
  std::vector<double> gains;  // its objectives over those of `i`, 1 or more each
  bool exists = false;
};
Dominator strongest_dominator(const std::vector<Objectives>& points, size_t i);

}  // namespace ingot::plan

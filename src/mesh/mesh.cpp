#include "mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace ingot::mesh {
namespace {

using base::ConfigError;

constexpr Axis kAxes[] = {Axis::pipeline,        Axis::data,   Axis::context,       Axis::tensor,
                          Axis::tensor_sequence, Axis::expert, Axis::expert_tensor, Axis::expert_data};

std::vector<int64_t> divisors_of(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

}  // namespace

const char* name_of(Axis axis) {
  static constexpr const char* kNames[] = {"pipeline",        "data",   "context",       "tensor",
                                           "tensor_sequence", "expert", "expert_tensor", "expert_data"};
  return kNames[static_cast<size_t>(axis)];
}

Mesh::Mesh(const ParallelConfig& c, int rank, int world) : rank_(rank), world_(world) {
  if (c.tensor > 1 && c.tensor_sequence > 1)
    throw ConfigError(
        "parallel.tensor = {} and parallel.tensor_sequence = {}: TSP takes the place of tensor parallelism; one of them must be 1",
        c.tensor, c.tensor_sequence);
  const int64_t others = c.pipeline * c.context * c.tensor * c.tensor_sequence;
  if (world % others != 0 || (c.data > 0 && c.data * others != world)) {
    const auto sizes =
        fmt::format("pipeline {} x context {} x tensor {} x tensor_sequence {}", c.pipeline, c.context, c.tensor, c.tensor_sequence);
    if (world % others != 0)
      throw ConfigError("parallel: {} = {} does not divide the {} ranks of this job; {}", sizes, others, world,
                        world == 1 ? fmt::format("start as many, with ingot launch -n {} -- ingot train …", others)
                                   : fmt::format("together they may be {}", fmt::join(divisors_of(world), ", ")));
    throw ConfigError("parallel: {} x data {} = {}, but this job has {} ranks; parallel.data = {} would work", sizes, c.data,
                      c.data * others, world, world / others);
  }
  pipeline_ = static_cast<int>(c.pipeline);
  context_ = static_cast<int>(c.context);
  tensor_ = static_cast<int>(c.tensor);
  tensor_sequence_ = static_cast<int>(c.tensor_sequence);
  data_ = static_cast<int>(world / others);
  expert_ = static_cast<int>(c.expert);
  expert_tensor_ = static_cast<int>(c.expert_tensor);
  const int stage = world / pipeline_;
  if (stage % (expert_ * expert_tensor_) != 0)
    throw ConfigError("parallel.expert = {} x expert_tensor = {} does not divide the {} ranks of a pipeline stage; together they may be {}",
                      expert_, expert_tensor_, stage, fmt::join(divisors_of(stage), ", "));
}

int Mesh::size(Axis axis) const {
  switch (axis) {
    case Axis::pipeline: return pipeline_;
    case Axis::data: return data_;
    case Axis::context: return context_;
    case Axis::tensor: return tensor_;
    case Axis::tensor_sequence: return tensor_sequence_;
    case Axis::expert: return expert_;
    case Axis::expert_tensor: return expert_tensor_;
    case Axis::expert_data: return world_ / pipeline_ / expert_ / expert_tensor_;
  }
  return 1;
}

int Mesh::stride(Axis axis) const {
  const int model = tensor_ * tensor_sequence_;
  switch (axis) {
    case Axis::tensor:
    case Axis::tensor_sequence:
    case Axis::expert_tensor: return 1;
    case Axis::expert: return expert_tensor_;
    case Axis::context: return model;
    case Axis::data: return model * context_;
    case Axis::pipeline: return model * context_ * data_;
    case Axis::expert_data: return expert_ * expert_tensor_;
  }
  return 1;
}

int Mesh::position_of(int rank, Axis axis) const { return rank / stride(axis) % size(axis); }

std::vector<int> Mesh::members(const std::vector<Axis>& axes) const {
  const bool folds_experts = std::any_of(axes.begin(), axes.end(), [](Axis a) { return a >= Axis::expert; });
  // The axes that make up a rank in the folding in question.
  const std::vector<Axis> folding = folds_experts
                                        ? std::vector{Axis::pipeline, Axis::expert_data, Axis::expert, Axis::expert_tensor}
                                        : std::vector{Axis::pipeline, Axis::data, Axis::context, Axis::tensor, Axis::tensor_sequence};
  std::vector<int> members;
  for (int other = 0; other < world_; ++other) {
    const bool shares = std::all_of(folding.begin(), folding.end(), [&](Axis axis) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end() || position_of(other, axis) == position(axis);
    });
    if (shares) members.push_back(other);
  }
  return members;
}

std::vector<int> Mesh::members_at_ends(const std::vector<Axis>& axes) const {
  auto members = this->members(axes);
  std::erase_if(members, [this](int rank) {
    const int stage = position_of(rank, Axis::pipeline);
    return stage != 0 && stage + 1 != pipeline_;
  });
  return members;
}

std::vector<Axis> Mesh::token_axes() const {
  std::vector<Axis> axes = {Axis::data, Axis::context};
  if (tensor_sequence_ > 1) axes.push_back(Axis::tensor_sequence);
  return axes;
}

std::string Mesh::describe() const {
  std::vector<std::string> parts;
  for (const Axis axis : kAxes)
    if (size(axis) > 1 && axis != Axis::expert_data) parts.push_back(fmt::format("{} {}", name_of(axis), size(axis)));
  return parts.empty() ? "1 rank" : fmt::format("{}", fmt::join(parts, " x "));
}

std::string Mesh::rank_map() const {
  std::string text;
  for (int r = 0; r < world_; ++r) {
    text += fmt::format("rank {:>4}:", r);
    for (const Axis axis : kAxes)
      if (size(axis) > 1 && (axis != Axis::expert_data || expert_ * expert_tensor_ > 1))
        text += fmt::format("  {} {}", name_of(axis), position_of(r, axis));
    text += "\n";
  }
  return text;
}

}  // namespace ingot::mesh

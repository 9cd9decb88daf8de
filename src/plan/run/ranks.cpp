#include "plan/run/ranks.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

// What each rank keeps of the model and of its training.
std::string holdings(const train::RunConfig& config, const mesh::Mesh& mesh) {
  using mesh::Axis;
  std::vector<std::string> parts;
  if (mesh.size(Axis::pipeline) > 1) parts.emplace_back("the layers of its stage");
  if (mesh.size(Axis::context) > 1) parts.push_back(fmt::format("1/{} of the tokens of its sequences", mesh.size(Axis::context)));
  if (const int size = mesh.size(Axis::tensor_sequence); size > 1)
    parts.push_back(fmt::format("1/{} of each matrix and of the tokens of its sequences", size));
  if (mesh.size(Axis::tensor) > 1) parts.push_back(fmt::format("1/{} of each matrix", mesh.size(Axis::tensor)));
  if (mesh.size(Axis::expert) > 1) parts.push_back(fmt::format("1/{} of the experts", mesh.size(Axis::expert)));
  if (mesh.size(Axis::expert_tensor) > 1) parts.push_back(fmt::format("1/{} of each expert", mesh.size(Axis::expert_tensor)));
  const std::string of = parts.empty() ? "" : fmt::format("{}; of that ", fmt::join(parts, ", "));
  const int ranks = mesh.size(Axis::data) * mesh.size(Axis::context);
  if (ranks == 1 || config.parallel.zero == 0) return of + "all weights, gradients and moments";
  switch (config.parallel.zero) {
    case 1: return fmt::format("{}all weights and gradients, 1/{} of masters and moments", of, ranks);
    case 2: return fmt::format("{}all weights, 1/{} of gradients, masters and moments", of, ranks);
    default: return fmt::format("{}1/{} of weights, gradients, masters and moments", of, ranks);
  }
}

std::string stages(const train::RunConfig& config, const mesh::Mesh& mesh) {
  const int count = mesh.size(mesh::Axis::pipeline);
  if (count == 1) return "";
  std::string text;
  const auto pieces = train::cut_depth(config.model, count * static_cast<int>(config.parallel.pipeline_chunks));
  for (size_t piece = 0; piece < pieces.size(); ++piece)
    text +=
        fmt::format("pipeline {}: layers {} to {}{}{}\n", piece % static_cast<size_t>(count), pieces[piece].begin, pieces[piece].end - 1,
                    piece == 0 ? ", behind the embedding" : "", piece + 1 == pieces.size() ? ", before the head" : "");
  return text;
}

}  // namespace

int64_t configured_ranks(const mesh::ParallelConfig& p) {
  return std::max<int64_t>(1, p.data) * p.pipeline * p.context * p.tensor * p.tensor_sequence;
}

std::string describe_ranks(const train::RunConfig& config, const mesh::Mesh& mesh) {
  return fmt::format("ranks          {}; each holds {}, and trains on {} of the {} sequences of a step\n{}", mesh.describe(),
                     holdings(config, mesh), config.train.batch_size / mesh.size(mesh::Axis::data), config.train.batch_size,
                     mesh.rank_map() + stages(config, mesh));
}

}  // namespace ingot::plan

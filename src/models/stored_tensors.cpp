#include "models/stored_tensors.h"

#include "models/family.h"

namespace ingot::models {

using layers::Parameter;

std::vector<StoredTensor> stored_tensors(const Family& family, const Parameter& parameter) {
  return family.stored ? family.stored(parameter) : stored_whole(parameter);
}

at::Tensor stored_part(const at::Tensor& whole, const StoredTensor& stored) {
  auto part = whole;
  for (size_t d = 0; d < stored.box.offset.size(); ++d)
    part = part.narrow(static_cast<int64_t>(d), stored.box.offset[d], stored.box.extent[d]);
  return part.reshape(stored.shape);
}

std::vector<StoredTensor> stored_whole(const Parameter& p) { return {{p.name, p.shape, tensor::whole(p.shape)}}; }

namespace {

// How a family names a layer's mixture, and the matrices of an expert.
struct ExpertNames {
  const char *module, *gate, *up, *down;
};

std::vector<StoredTensor> stored_by_expert(const Parameter& p, const ExpertNames& names) {
  const std::string up = "gate_up_proj", down = "down_proj";
  const auto named = [&](std::string name) {
    const auto at = name.find(".mlp.");
    return at == std::string::npos ? name : name.replace(at + 1, 3, names.module);
  };
  const bool is_up = p.name.ends_with(".mlp.experts." + up), is_down = p.name.ends_with(".mlp.experts." + down);
  if (!is_up && !is_down) {
    auto stored = stored_whole(p);
    stored[0].name = named(p.name);
    stored[0].is_optional = p.kind == Parameter::Kind::buffer;
    return stored;
  }
  const std::string prefix = named(p.name.substr(0, p.name.size() - (is_up ? up : down).size()));
  const int64_t rows = is_up ? p.shape[1] / 2 : p.shape[1], cols = p.shape[2];
  std::vector<StoredTensor> stored;
  for (int64_t expert = 0; expert < p.shape[0]; ++expert) {
    const auto add = [&](const char* name, int64_t from) {
      stored.push_back({prefix + std::to_string(expert) + "." + name + ".weight", {rows, cols}, {{expert, from, 0}, {1, rows, cols}}});
    };
    add(is_up ? names.gate : names.down, 0);
    if (is_up) add(names.up, rows);
  }
  return stored;
}

}  // namespace

std::vector<StoredTensor> stored_by_expert(const Parameter& p) { return stored_by_expert(p, {"mlp", "gate_proj", "up_proj", "down_proj"}); }
std::vector<StoredTensor> stored_as_mixtral(const Parameter& p) { return stored_by_expert(p, {"block_sparse_moe", "w1", "w3", "w2"}); }

}  // namespace ingot::models

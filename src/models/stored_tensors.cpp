#include "models/stored_tensors.h"

#include <map>

#include "models/adapters.h"
#include "models/family.h"
#include "models/model.h"

namespace ingot::models {

using layers::Parameter;

std::vector<StoredPiece> stored_pieces(const ModelConfig& config, const Parameter& parameter) {
  const auto& family = family_named(config.family);
  return family.stored ? family.stored(config, parameter) : stored_whole(parameter);
}

at::Tensor place_in(const at::Tensor& stored, const StoredPiece& piece) { return piece.place ? piece.place(stored) : stored; }

at::Tensor part_of(const at::Tensor& whole, const StoredPiece& piece) { return piece.part ? piece.part(whole) : whole.view(piece.shape); }

at::Tensor StoredTensor::assemble(const std::function<at::Tensor(const Parameter&)>& value_of) const {
  const auto& first = sources.front();
  if (sources.size() == 1 && !first.piece.place) return part_of(value_of(*first.parameter), first.piece);
  at::Tensor stored;
  for (const auto& [parameter, piece] : sources) {
    const auto value = value_of(*parameter);
    if (!stored.defined()) stored = at::empty(shape, value.options());
    place_in(stored, piece).copy_(part_of(value, piece));
  }
  return stored;
}

std::vector<StoredTensor> stored_tensors(const Model& model) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, size_t> by_name;
  for (const auto& p : model.parameters().all()) {
    if (is_adapter(p->name)) continue;
    for (auto& piece : stored_pieces(model.config(), *p)) {
      const auto [found, is_new] = by_name.emplace(piece.name, tensors.size());
      if (is_new) tensors.push_back({piece.name, piece.shape, {}});
      tensors[found->second].sources.push_back({p.get(), std::move(piece)});
    }
  }
  return tensors;
}

std::vector<StoredPiece> stored_whole(const Parameter& p) { return {{p.name, p.shape}}; }

namespace {

// How a family names a layer's mixture, and the matrices of an expert.
struct ExpertNames {
  const char *module, *gate, *up, *down;
};

std::vector<StoredPiece> stored_by_expert(const Parameter& p, const ExpertNames& names) {
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
  std::vector<StoredPiece> stored;
  for (int64_t expert = 0; expert < p.shape[0]; ++expert) {
    const auto add = [&](const char* name, int64_t from) {
      const auto part = [=](const at::Tensor& whole) { return whole[expert].narrow(0, from, rows); };
      stored.push_back({prefix + std::to_string(expert) + "." + name + ".weight", {rows, cols}, part});
    };
    add(is_up ? names.gate : names.down, 0);
    if (is_up) add(names.up, rows);
  }
  return stored;
}

}  // namespace

std::vector<StoredPiece> stored_by_expert(const ModelConfig&, const Parameter& p) {
  return stored_by_expert(p, {"mlp", "gate_proj", "up_proj", "down_proj"});
}
std::vector<StoredPiece> stored_as_mixtral(const ModelConfig&, const Parameter& p) {
  return stored_by_expert(p, {"block_sparse_moe", "w1", "w3", "w2"});
}

}  // namespace ingot::models

// Phi-3 and Phi-4: Llama's blocks, whose folders keep q, k and v in one matrix, and gate and up in another.
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: the phi3 family has no such biases");
  return std::vector<LayerParts>(1);
}

// The first files named longrope otherwise.
json with_longrope_named(json document) {
  for (const char* place : {"rope_scaling", "rope_parameters"})
    for (const char* field : {"type", "rope_type"})
      if (const auto rope = document.find(place); rope != document.end() && rope->is_object())
        if (const auto type = rope->find(field); type != rope->end() && (*type == "su" || *type == "yarn")) *type = "longrope";
  return document;
}

ModelConfig from_hugging_face(const json& original) {
  const auto document = with_longrope_named(original);
  const HuggingFaceFields fields(document);
  for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attention_dropout"})
    if (fields.number(dropout, 0) != 0) throw base::ModelError("{}: {} is not 0, which is not supported", fields.origin(), dropout);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "phi3";
  c.norm_eps = fields.number("rms_norm_eps", 1e-5);  // transformers' default
  fields.read_window_of_all_layers(c);
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  if (c.attention_bias) throw base::ConfigError("model.attention_bias = true: phi3 has no such thing in Hugging Face's form");
  if (c.rope_scaling != "none" && c.rope_scaling != "longrope")
    throw base::ConfigError("model.rope_scaling = {}: phi3 has longrope alone in Hugging Face's form", c.rope_scaling);
  auto full = c;
  const auto window = take_window_of_all_layers(full);
  auto document = llama_like_to_hugging_face(full);
  document["model_type"] = "phi3";
  document["architectures"] = {"Phi3ForCausalLM"};
  for (const char* unknown : {"attention_bias", "mlp_bias"}) document.erase(unknown);
  for (const char* dropout : {"resid_pdrop", "embd_pdrop"}) document[dropout] = 0.0;
  document["original_max_position_embeddings"] = c.rope_scaling == "longrope" ? c.rope_original_positions : c.max_positions;
  document["sliding_window"] = window;
  return document;
}

// A parameter's rows within the matrix that it shares.
struct Shared {
  const char* matrix;
  int64_t from, rows;
};

std::vector<StoredPiece> stored(const ModelConfig& c, const layers::Parameter& p) {
  const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d;
  const std::map<std::string, Shared> shared = {{"q_proj", {"qkv_proj", 0, q + 2 * kv}},
                                                {"k_proj", {"qkv_proj", q, q + 2 * kv}},
                                                {"v_proj", {"qkv_proj", q + kv, q + 2 * kv}},
                                                {"gate_proj", {"gate_up_proj", 0, 2 * c.ffn}},
                                                {"up_proj", {"gate_up_proj", c.ffn, 2 * c.ffn}}};
  const std::string suffix = ".weight";
  if (!p.name.ends_with(suffix)) return stored_whole(p);
  const auto path = p.name.substr(0, p.name.size() - suffix.size());
  const auto dot = path.rfind('.');
  const auto found = dot == std::string::npos ? shared.end() : shared.find(path.substr(dot + 1));
  if (found == shared.end()) return stored_whole(p);
  const auto& [matrix, from, rows] = found->second;
  return {{.name = path.substr(0, dot + 1) + matrix + suffix,
           .shape = {rows, p.shape[1]},
           .part = [](const at::Tensor& whole) { return whole; },
           .place = [from = from, own = p.shape[0]](const at::Tensor& all) { return all.narrow(0, from, own); }}};
}

}  // namespace

Family phi3_family() {
  return {.name = "phi3",
          .hugging_face_type = "phi3",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored};
}

}  // namespace ingot::models

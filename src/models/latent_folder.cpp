#include "models/latent_folder.h"

#include "models/config.h"

namespace ingot::models {

using layers::Parameter;

namespace {

// `rows` of the folder's tensor as [groups, rows of a group]: in each, `pairs` pairs of neighbours behind `before` other rows, or the other
// rows alone. The same of a parameter, where the pairs' firsts, then their seconds, come before the rest.
struct Turned {
  int64_t groups, before, pairs, from_parameter;

  StoredPiece rotating(const Parameter& p) const {
    return {p.name, p.shape,
            [*this, at = from_parameter](const at::Tensor& x) {
              return grouped(x).narrow(1, at, 2 * pairs).unflatten(1, {2, pairs});
            },
            [*this](const at::Tensor& x) {
              return grouped(x).narrow(1, before, 2 * pairs).unflatten(1, {pairs, 2}).transpose(1, 2);
            }};
  }
  StoredPiece plain(const Parameter& p) const {
    return {p.name, p.shape, [*this](const at::Tensor& x) { return grouped(x).narrow(1, from_parameter == 0 ? 2 * pairs : 0, before); },
            [*this](const at::Tensor& x) { return grouped(x).narrow(1, 0, before); }};
  }
  at::Tensor grouped(const at::Tensor& x) const { return x.unflatten(0, {groups, before + 2 * pairs}); }
};

bool is_query(const Parameter& p) { return p.name.ends_with(".q_b_proj.weight") || p.name.ends_with(".self_attn.q_proj.weight"); }

}  // namespace

bool is_turned(const Parameter& p) { return is_query(p) || p.name.find(".kv_a_proj_with_mqa.") != std::string::npos; }

std::vector<StoredPiece> stored_turned(const ModelConfig& c, const Parameter& p) {
  const int64_t pairs = c.rope_head_dim / 2;
  const Turned turned =
      is_query(p) ? Turned{c.heads, c.resolved_head_dim() - c.rope_head_dim, pairs, 0} : Turned{1, c.kv_rank, pairs, c.kv_rank};
  return {turned.rotating(p), turned.plain(p)};
}

void name_correction_bias(std::vector<StoredPiece>& pieces) {
  auto& first = pieces.front();
  const auto at = first.name.find(".balancing_biases");
  if (at == std::string::npos) return;
  first.name.replace(at, std::string::npos, ".e_score_correction_bias");
  first.is_optional = false;
}

}  // namespace ingot::models

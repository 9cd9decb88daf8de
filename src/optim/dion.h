// Dion (Ahn et al., arXiv 2504.05295) on hidden matrices and each matrix of a stack: the directions of a low rank in which the momentum is
// largest, by one step of power iteration from those of the step before; what they leave stays in the momentum.
//
//   B  = M + G                                                 M, G, B [rows, cols]
//   P  = orthonormal columns that span those of B Q            [rows, rank], Q [cols, rank] as the step before left it
//   R  = B^T P                                                 [cols, rank]
//   M <- B - (1 - momentum) P R^T
//   Q <- R with each column divided by its norm                one of rounding alone stays as it was, and adds nothing below
//   W <- W - lr weight_decay W - lr rms_match sqrt(rows cols / rank) P Q^T
//
// A column of R counts as rounding below 1e-6 of the norm of R (1e-12 in fp64, 2^-7 / sqrt(rows) with moments in bf16), as where B has a
// lower rank: an expert that few tokens came to. The last factor gives an update the RMS of AdamW's at any rank, and is Muon's at full
// rank. Where matrices are cut, B Q and R are summed over the ranks with a part and nothing else travels: rank (rows + cols) numbers for
// each matrix.
#pragma once

#include "optim/update_rule.h"

namespace ingot::optim {

class Dion : public UpdateRule {
 public:
  explicit Dion(const OptimizerConfig& config) : config_(config) {}
  std::string_view name() const override { return "dion"; }
  std::string_view predicted_as() const override { return "dion"; }
  bool takes(const layers::Parameter& parameter) const override { return parameter.kind == layers::Parameter::Kind::matrix; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  std::vector<MatrixState> matrix_states(const layers::Parameter& parameter) const override;
  void prepare(const RuleShare& share, const Team& team) override;
  void update(const Update& update) override;

  /// Of the updates of a matrix [rows, cols]: optimizer.rank_fraction of the smaller, at least 1.
  static int64_t rank_of(const OptimizerConfig& config, int64_t rows, int64_t cols);

 private:
  void begin_bases() const;
  void update_group(const OwnersShare& group, const Update& update) const;

  OptimizerConfig config_;
  std::vector<OwnersShare> groups_;
  StateHome* home_ = nullptr;
};

}  // namespace ingot::optim

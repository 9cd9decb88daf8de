// Muon (K. Jordan 2024; scaled to AdamW's size as in arXiv 2502.16982) on hidden matrices and each matrix of a stack: momentum,
// then the nearest orthogonal matrix by Newton-Schulz iteration.
//
// Matrices that are cut over ranks are brought together, orthogonalised, and sent back (parallel/matrix_exchange.h).
#pragma once

#include "optim/newton_schulz.h"
#include "optim/update_rule.h"
#include "parallel/matrix_exchange.h"

namespace ingot::optim {

class Muon : public UpdateRule {
 public:
  explicit Muon(const OptimizerConfig& config) : config_(config) {}
  std::string_view name() const override { return "muon"; }
  bool takes(const layers::Parameter& parameter) const override { return parameter.kind == layers::Parameter::Kind::matrix; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void prepare(const RuleShare& share, const Team& team) override;
  void update(const Update& update) override;

 private:
  /// Slots whose matrices one process group orthogonalises.
  struct Matrices {
    std::vector<Slot*> slots;
    std::unique_ptr<parallel::MatrixExchange> exchange;  // null: every matrix is whole
  };
  Iterates iterates_of(const layers::ParameterList& parameters, const Team& team) const;
  void orthogonalise(const Matrices& group, std::vector<at::Tensor>& directions) const;

  OptimizerConfig config_;
  Iterates iterates_ = Iterates::own;
  std::vector<Matrices> groups_;
};

}  // namespace ingot::optim

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
  explicit Muon(const OptimizerConfig& config) : config_(config), quintics_(quintics_of(config)) {}
  std::string_view name() const override { return "muon"; }
  std::string_view predicted_as() const override { return "muon"; }
  bool takes(const layers::Parameter& parameter) const override { return parameter.kind == layers::Parameter::Kind::matrix; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void prepare(const RuleShare& share, const Team& team) override;
  void update(const Update& update) override;

 protected:
  /// What one process group orthogonalises.
  struct Matrices : OwnersShare {
    std::unique_ptr<parallel::MatrixExchange> exchange;  // of the group
  };
  /// By which factor the orthogonal direction of each slot, [its size], is applied, besides the learning rate: here to AdamW's size. May
  /// change directions. Collective over the group.
  virtual std::vector<double> scale(const Matrices& matrices, std::vector<at::Tensor>& directions) const;
  const OptimizerConfig& config() const { return config_; }

 private:
  Iterates iterates_of(const layers::ParameterList& parameters, const Team& team) const;
  void orthogonalise(const Matrices& group, std::vector<at::Tensor>& directions) const;

  OptimizerConfig config_;
  Quintics quintics_;
  Iterates iterates_ = Iterates::own;
  std::vector<Matrices> groups_;
  StateHome* home_ = nullptr;
};

}  // namespace ingot::optim

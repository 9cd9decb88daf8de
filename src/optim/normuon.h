// NorMuon (Li et al., arXiv 2510.05491): Muon, and then every row of a direction, which is one neuron's, divided by the root of a running
// mean of its squares, so that all neurons move about as far:
//
//   v <- beta2 v + (1 - beta2) mean over columns of O^2     v [rows], O [rows, cols] Muon's direction
//   O^ = O / (sqrt(v) + eps)
//   W <- W - lr weight_decay W - lr rms_match sqrt(rows cols) / |O^|_F O^
#pragma once

#include "optim/muon.h"

namespace ingot::optim {

class NorMuon : public Muon {
 public:
  explicit NorMuon(const OptimizerConfig& config) : Muon(config) {}
  std::string_view name() const override { return "normuon"; }
  std::vector<MatrixState> matrix_states(const layers::Parameter& parameter) const override {
    return {{"row_second_moment", {parameter.shape[parameter.shape.size() - 2]}}};
  }

 protected:
  std::vector<double> scale(const Matrices& matrices, std::vector<at::Tensor>& directions) const override;
};

}  // namespace ingot::optim

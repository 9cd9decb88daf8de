// Distributed Muon's traffic: a matrix whose elements several ranks own is brought together where it is orthogonalised, and
// nothing else moves. No rank ever holds more than its own slices and the split matrices that it works on.
//
// A matrix may be owned in pieces by any number of ranks (ZeRO's slices end anywhere; tensor parallelism cuts rows or columns).
// All pieces travel in one all_to_all that is under way before the first orthogonalisation begins. Either every owner of a
// split matrix works on it and keeps its slices (the same bits everywhere; nothing has to be sent back), or, with `spread`, all
// matrices are dealt out so that ranks have equal work, and the results' pieces travel home in a second all_to_all.
//
// An owner of s elements of a matrix with k owners sends s (k - 1) elements; with `spread` s, unless the matrix is its own to
// work on, and the worker as many back.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "parallel/shard.h"

namespace ingot::parallel {

class MatrixExchange {
 public:
  /// Elements [rows, cols] of one matrix in the slice of one of this rank's shards.
  struct Place {
    size_t shard = 0;
    int64_t offset = 0, row_stride = 0, col_stride = 0;
  };
  /// Where the others cannot be asked, on a counting device: the parameters of the exchange, and who owns what of them.
  struct Known {
    std::vector<const layers::Parameter*> parameters;
    OwnersOf slices_of;
  };
  /// `shards`: of matrices (or stacks of them), by this rank; `group`: all ranks that own elements of the same parameters.
  /// `cost_of`: work on a matrix [rows, cols], by which it is dealt out. `result_dtype`: all that results need to be sent back in, if not
  /// their own. Collective. Shards and group must outlive it.
  using CostOf = std::function<double(int64_t rows, int64_t cols)>;
  MatrixExchange(const layers::ParameterList& parameters, std::vector<const Shard*> shards, comm::Group& group, bool spread,
                 const CostOf& cost_of, std::optional<at::ScalarType> result_dtype = std::nullopt, const Known& known = {});

  /// Sends pieces of `slices` (one for each shard, [its size]) on their way. They must stay until finish().
  void start(const std::vector<at::Tensor>& slices);
  /// The matrices [rows, cols] that lie whole in the slices and are this rank's to work on, as views.
  std::vector<at::Tensor> whole() const;
  /// The matrices that had to be brought together; waits for them. In the same order on all owners.
  std::vector<at::Tensor> gathered();
  /// Writes what became of them into the slices; results as returned by gathered(), those of whole() are the caller's to write.
  void finish(const std::vector<at::Tensor>& results);

 private:
  struct Piece {
    int64_t parameter = 0, matrix = 0;  // which of the list, which of its stack
    tensor::Range rows{}, cols{};
    int owner = 0;
    Place place{};  // of this rank's
    int64_t elements() const { return rows.size() * cols.size(); }
  };
  struct Matrix {
    int64_t rows = 0, cols = 0;
    std::vector<Piece> pieces;                  // by owner: all of them where this rank works on it, at least its own elsewhere
    std::vector<std::pair<int, int64_t>> held;  // owner, elements; of all owners
    std::vector<int> workers;
    double cost = 0;
    bool has_worker(int rank) const;
    bool is_whole_on(int rank) const;
  };
  template <class Add>
  static void add_pieces(const std::vector<tensor::Region>& regions, Piece piece, const Add& add);
  using Matrices = std::map<std::pair<int64_t, int64_t>, Matrix>;  // by parameter, and place in its stack
  std::vector<Piece> own_pieces(const layers::ParameterList& parameters) const;
  std::vector<Piece> everyones_pieces(const std::vector<Piece>& own) const;
  void add_known_holders(const layers::ParameterList& parameters, const Known& known, Matrices& matrices) const;
  void add_known_pieces(const layers::ParameterList& parameters, const Known& known, Matrices& matrices) const;
  void assign_workers(bool spread, std::vector<Matrix*> order) const;
  at::Tensor view(const Place& place, const tensor::Range& rows, const tensor::Range& cols) const;

  std::vector<const Shard*> shards_;
  comm::Group& group_;
  std::vector<Matrix> matrices_;  // in the same order on all ranks
  bool returns_ = false;
  at::TensorOptions options_, result_options_;

  std::vector<at::Tensor> slices_;
  at::Tensor sent_, received_;
  comm::Work work_;
};

}  // namespace ingot::parallel

#include "parallel/matrix_exchange.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

namespace ingot::parallel {
namespace {

constexpr int64_t kNumbers = 6;  // that describe a piece to the others

at::Tensor box_of(const at::Tensor& matrix, const tensor::Range& rows, const tensor::Range& cols) {
  return matrix.narrow(0, rows.begin, rows.size()).narrow(1, cols.begin, cols.size());
}

// What one rank sends to, or receives from, the others: pieces side by side, rank after rank.
class Packing {
 public:
  explicit Packing(int ranks) : counts_(static_cast<size_t>(ranks), 0), views_(static_cast<size_t>(ranks)) {}
  void add(int rank, at::Tensor view) {
    counts_[static_cast<size_t>(rank)] += view.numel();
    views_[static_cast<size_t>(rank)].push_back(std::move(view));
  }
  const std::vector<int64_t>& counts() const { return counts_; }
  at::Tensor buffer(const at::TensorOptions& options) const {
    return at::empty({std::accumulate(counts_.begin(), counts_.end(), int64_t{0})}, options);
  }
  void pack(const at::Tensor& buffer) const {
    visit(buffer, [](const at::Tensor& part, const at::Tensor& view) { part.copy_(view); });
  }
  void unpack(const at::Tensor& buffer) const {
    visit(buffer, [](const at::Tensor& part, const at::Tensor& view) { view.copy_(part); });
  }

 private:
  template <class Function>
  void visit(const at::Tensor& buffer, const Function& function) const {
    int64_t at = 0;
    for (const auto& list : views_) {
      for (const auto& view : list) {
        function(buffer.narrow(0, at, view.numel()).view(view.sizes()), view);
        at += view.numel();
      }
    }
  }
  std::vector<int64_t> counts_;
  std::vector<std::vector<at::Tensor>> views_;
};

std::unordered_map<const layers::Parameter*, int64_t> numbers_of(const layers::ParameterList& parameters) {
  std::unordered_map<const layers::Parameter*, int64_t> numbers;
  for (const auto& p : parameters.all()) numbers.emplace(p.get(), static_cast<int64_t>(numbers.size()));
  return numbers;
}

// visit(place in its stack, elements) for each matrix of which the slice has some.
template <class Visit>
void for_each_overlap(const layers::Parameter& p, const OwnedSlice& slice, const Visit& visit) {
  const auto local = tensor::local_shape(p.shape, *slice.part);
  const size_t dims = local.size();
  const int64_t one = local[dims - 2] * local[dims - 1];
  if (one == 0) return;  // of a matrix with fewer heads than ranks
  const auto place_of = [&](int64_t m) {
    if (slice.part->empty()) return m;
    for (const auto& range : slice.part->front()) {
      if (m < range.size()) return range.begin + m;
      m -= range.size();
    }
    return m;
  };
  for (int64_t m = slice.range.begin / one; m * one < slice.range.end; ++m)
    visit(dims == 3 ? place_of(m) : 0, std::min(slice.range.end, (m + 1) * one) - std::max(slice.range.begin, m * one));
}

}  // namespace

bool MatrixExchange::Matrix::has_worker(int rank) const { return std::find(workers.begin(), workers.end(), rank) != workers.end(); }

// Only when it is one view: the slices of two boxes of a matrix that one rank holds are gathered like any others.
bool MatrixExchange::Matrix::is_whole_on(int rank) const {
  return pieces.size() == 1 && pieces[0].owner == rank && pieces[0].elements() == rows * cols;
}

MatrixExchange::MatrixExchange(const layers::ParameterList& parameters, std::vector<const Shard*> shards, comm::Group& group, bool spread,
                               const CostOf& cost_of, std::optional<at::ScalarType> result_dtype, const Known& known)
    : shards_(std::move(shards)), group_(group) {
  for (const auto& p : parameters.all())
    if (p->is_trained()) options_ = p->value.options().dtype(p->wide_type()).requires_grad(false);
  result_options_ = result_dtype ? options_.dtype(*result_dtype) : options_;
  returns_ = spread;
  const auto own = own_pieces(parameters);
  const bool is_known = group_.size() > 1 && known.slices_of;
  Matrices by_place;
  for (auto& piece : group_.size() == 1 || is_known ? own : everyones_pieces(own))
    by_place[{piece.parameter, piece.matrix}].pieces.push_back(piece);
  for (auto& [place, matrix] : by_place)
    for (const auto& piece : matrix.pieces) matrix.held.emplace_back(piece.owner, piece.elements());
  if (is_known) add_known_holders(parameters, known, by_place);
  for (auto& [place, matrix] : by_place) {
    const auto& shape = parameters.all()[static_cast<size_t>(place.first)]->shape;
    matrix.rows = shape[shape.size() - 2];
    matrix.cols = shape.back();
    matrix.cost = cost_of(matrix.rows, matrix.cols);
  }
  std::vector<Matrix*> order;
  for (auto& [place, matrix] : by_place) order.push_back(&matrix);
  assign_workers(spread, order);
  if (is_known) add_known_pieces(parameters, known, by_place);
  for (auto& [place, matrix] : by_place) matrices_.push_back(std::move(matrix));
}

// One piece for each matrix of the stack that a region touches.
template <class Add>
void MatrixExchange::add_pieces(const std::vector<tensor::Region>& regions, Piece piece, const Add& add) {
  for (const auto& region : regions) {
    const size_t dims = region.box.extent.size();
    const int64_t stacked = dims == 3 ? region.box.extent[0] : 1;
    for (int64_t m = 0; m < stacked; ++m) {
      piece.matrix = dims == 3 ? region.box.offset[0] + m : 0;
      piece.rows = {region.box.offset[dims - 2], region.box.offset[dims - 2] + region.box.extent[dims - 2]};
      piece.cols = {region.box.offset[dims - 1], region.box.offset[dims - 1] + region.box.extent[dims - 1]};
      piece.place.offset = region.offset + (dims == 3 ? m * region.strides[0] : 0);
      piece.place.row_stride = region.strides[dims - 2];
      piece.place.col_stride = region.strides[dims - 1];
      add(piece);
    }
  }
}

std::vector<MatrixExchange::Piece> MatrixExchange::own_pieces(const layers::ParameterList& parameters) const {
  const auto index = numbers_of(parameters);
  std::vector<Piece> pieces;
  for (size_t s = 0; s < shards_.size(); ++s)
    add_pieces(shards_[s]->regions(), {.parameter = index.at(shards_[s]->parameter), .owner = group_.rank(), .place = {.shard = s}},
               [&](const Piece& piece) { pieces.push_back(piece); });
  return pieces;
}

// Of a thousand ranks, how much they have of each matrix is soon counted; where it lies matters only where this rank works on it.
void MatrixExchange::add_known_holders(const layers::ParameterList& parameters, const Known& known, Matrices& matrices) const {
  const auto index = numbers_of(parameters);
  for (const auto* p : known.parameters) {
    for (const auto& slice : known.slices_of(*p)) {
      if (slice.owner == group_.rank()) continue;
      for_each_overlap(*p, slice, [&](int64_t matrix, int64_t elements) {
        matrices[{index.at(p), matrix}].held.emplace_back(slice.owner, elements);
      });
    }
  }
}

void MatrixExchange::add_known_pieces(const layers::ParameterList& parameters, const Known& known, Matrices& matrices) const {
  const auto index = numbers_of(parameters);
  for (const auto* p : known.parameters) {
    const auto first = matrices.lower_bound({index.at(p), 0}), last = matrices.lower_bound({index.at(p) + 1, 0});
    const auto is_worked_on = [&](const auto& entry) { return entry.second.has_worker(group_.rank()); };
    if (std::none_of(first, last, is_worked_on)) continue;
    for (const auto& slice : known.slices_of(*p)) {
      if (slice.owner == group_.rank()) continue;
      bool touches = false;
      for_each_overlap(*p, slice, [&](int64_t m, int64_t) {
        touches = touches || matrices.at({index.at(p), m}).has_worker(group_.rank());
      });
      if (!touches) continue;
      add_pieces(tensor::regions_of(p->shape, *slice.part, slice.range.begin, slice.range.end),
                 {.parameter = index.at(p), .owner = slice.owner}, [&](const Piece& piece) {
                   auto& matrix = matrices.at({piece.parameter, piece.matrix});
                   if (matrix.has_worker(group_.rank())) matrix.pieces.push_back(piece);
                 });
    }
    for (auto matrix = first; matrix != last; ++matrix) {
      auto& pieces = matrix->second.pieces;
      std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.owner < b.owner; });
    }
  }
}

std::vector<MatrixExchange::Piece> MatrixExchange::everyones_pieces(const std::vector<Piece>& own) const {
  const auto count = at::full({1}, static_cast<int64_t>(own.size()), at::kLong);
  const auto counts = at::empty({group_.size()}, at::kLong);
  group_.all_gather(counts, count);
  const int64_t largest = std::max<int64_t>(1, counts.max().item<int64_t>());
  const auto mine = at::zeros({largest, kNumbers}, at::kLong);
  for (size_t i = 0; i < own.size(); ++i) {
    auto* row = mine.data_ptr<int64_t>() + static_cast<int64_t>(i) * kNumbers;
    const auto& p = own[i];
    row[0] = p.parameter, row[1] = p.matrix, row[2] = p.rows.begin, row[3] = p.rows.end, row[4] = p.cols.begin, row[5] = p.cols.end;
  }
  const auto all = at::empty({group_.size() * largest, kNumbers}, at::kLong);
  group_.all_gather(all, mine);
  std::vector<Piece> pieces;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) {
      pieces.insert(pieces.end(), own.begin(), own.end());
      continue;
    }
    for (int64_t i = 0; i < counts[rank].item<int64_t>(); ++i) {
      const auto* row = all.data_ptr<int64_t>() + (rank * largest + i) * kNumbers;
      pieces.push_back({.parameter = row[0], .matrix = row[1], .rows = {row[2], row[3]}, .cols = {row[4], row[5]}, .owner = rank});
    }
  }
  return pieces;
}

// All ranks come to the same answer, as all see the same pieces.
void MatrixExchange::assign_workers(bool spread, std::vector<Matrix*> order) const {
  if (!spread) {
    for (auto* matrix : order) {
      std::set<int> owners;
      for (const auto& [owner, elements] : matrix->held) owners.insert(owner);
      matrix->workers.assign(owners.begin(), owners.end());
    }
    return;
  }
  double total = 0;
  for (const auto* matrix : order) total += matrix->cost;
  std::stable_sort(order.begin(), order.end(), [](const Matrix* a, const Matrix* b) { return a->cost > b->cost; });
  std::vector<double> load(static_cast<size_t>(group_.size()), 0);
  const double fair = total / group_.size();
  for (auto* matrix : order) {
    std::vector<int64_t> held(load.size(), 0);
    for (const auto& [owner, elements] : matrix->held) held[static_cast<size_t>(owner)] += elements;
    // Where most of it is, unless that rank has its share already.
    auto worker = static_cast<size_t>(std::max_element(held.begin(), held.end()) - held.begin());
    if (load[worker] + matrix->cost > fair) worker = static_cast<size_t>(std::min_element(load.begin(), load.end()) - load.begin());
    load[worker] += matrix->cost;
    matrix->workers = {static_cast<int>(worker)};
  }
}

at::Tensor MatrixExchange::view(const Place& place, const tensor::Range& rows, const tensor::Range& cols) const {
  const auto& slice = slices_[place.shard];
  return slice.as_strided({rows.size(), cols.size()}, {place.row_stride, place.col_stride}, slice.storage_offset() + place.offset);
}

void MatrixExchange::start(const std::vector<at::Tensor>& slices) {
  slices_ = slices;
  if (group_.size() == 1) return;
  Packing outgoing(group_.size());
  std::vector<int64_t> incoming(static_cast<size_t>(group_.size()), 0);
  for (const auto& matrix : matrices_) {
    for (const auto& piece : matrix.pieces) {
      for (const int worker : matrix.workers) {
        if (worker == piece.owner) continue;
        if (piece.owner == group_.rank()) outgoing.add(worker, view(piece.place, piece.rows, piece.cols));
        else if (worker == group_.rank()) incoming[static_cast<size_t>(piece.owner)] += piece.elements();
      }
    }
  }
  sent_ = outgoing.buffer(options_);
  outgoing.pack(sent_);
  received_ = at::empty({std::accumulate(incoming.begin(), incoming.end(), int64_t{0})}, options_);
  work_ = group_.start_all_to_all(received_, incoming, sent_, outgoing.counts());
}

std::vector<at::Tensor> MatrixExchange::whole() const {
  std::vector<at::Tensor> views;
  for (const auto& matrix : matrices_)
    if (matrix.is_whole_on(group_.rank()) && matrix.has_worker(group_.rank()))
      views.push_back(view(matrix.pieces[0].place, matrix.pieces[0].rows, matrix.pieces[0].cols));
  return views;
}

std::vector<at::Tensor> MatrixExchange::gathered() {
  if (group_.size() > 1) work_.wait();
  const int me = group_.rank();
  std::vector<at::Tensor> matrices;
  Packing arrived(group_.size());
  for (const auto& matrix : matrices_) {
    if (!matrix.has_worker(me) || matrix.is_whole_on(me)) continue;
    matrices.push_back(at::empty({matrix.rows, matrix.cols}, options_));
    for (const auto& piece : matrix.pieces) {
      const auto target = box_of(matrices.back(), piece.rows, piece.cols);
      if (piece.owner == me) target.copy_(view(piece.place, piece.rows, piece.cols));
      else arrived.add(piece.owner, target);
    }
  }
  if (received_.defined()) arrived.unpack(received_);
  sent_.reset(), received_.reset();
  return matrices;
}

void MatrixExchange::finish(const std::vector<at::Tensor>& results) {
  const int me = group_.rank();
  size_t next = 0;
  Packing outgoing(group_.size()), incoming(group_.size());
  for (const auto& matrix : matrices_) {
    const bool is_mine = matrix.has_worker(me) && !matrix.is_whole_on(me);
    const at::Tensor result = is_mine ? results[next++] : at::Tensor();
    for (const auto& piece : matrix.pieces) {
      if (piece.owner == me && is_mine) view(piece.place, piece.rows, piece.cols).copy_(box_of(result, piece.rows, piece.cols));
      else if (piece.owner == me && !matrix.has_worker(me)) incoming.add(matrix.workers[0], view(piece.place, piece.rows, piece.cols));
      else if (is_mine && returns_ && piece.owner != me) outgoing.add(piece.owner, box_of(result, piece.rows, piece.cols));
    }
  }
  if (returns_ && group_.size() > 1) {
    const auto out = outgoing.buffer(result_options_), in = incoming.buffer(result_options_);
    outgoing.pack(out);
    group_.start_all_to_all(in, incoming.counts(), out, outgoing.counts()).wait();
    incoming.unpack(in);
  }
  slices_.clear();
}

}  // namespace ingot::parallel

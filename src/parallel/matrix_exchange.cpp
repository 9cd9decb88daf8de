#include "parallel/matrix_exchange.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "device/virtual_device.h"

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

}  // namespace

bool MatrixExchange::Matrix::has_worker(int rank) const { return std::find(workers.begin(), workers.end(), rank) != workers.end(); }

// Only when it is one view: the slices of two boxes of a matrix that one rank holds are gathered like any others.
bool MatrixExchange::Matrix::is_whole_on(int rank) const {
  return pieces.size() == 1 && pieces[0].owner == rank && pieces[0].elements() == rows * cols;
}

MatrixExchange::MatrixExchange(const layers::ParameterList& parameters, std::vector<const Shard*> shards, comm::Group& group, bool spread,
                               const CostOf& cost_of, std::optional<at::ScalarType> result_dtype)
    : shards_(std::move(shards)), group_(group) {
  for (const auto& p : parameters.all())
    if (p->is_trained()) options_ = p->value.options().dtype(p->wide_type()).requires_grad(false);
  result_options_ = result_dtype ? options_.dtype(*result_dtype) : options_;
  if (device::is_counting(options_.device())) spread = false;
  returns_ = spread;
  std::map<std::pair<int64_t, int64_t>, Matrix> by_place;
  for (auto& piece : everyones_pieces(own_pieces(parameters))) {
    const auto& shape = parameters.all()[static_cast<size_t>(piece.parameter)]->shape;
    auto& matrix = by_place[{piece.parameter, piece.matrix}];
    matrix.rows = shape[shape.size() - 2];
    matrix.cols = shape.back();
    matrix.cost = cost_of(matrix.rows, matrix.cols);
    matrix.pieces.push_back(piece);
  }
  for (auto& [place, matrix] : by_place) matrices_.push_back(std::move(matrix));
  assign_workers(spread);
}

std::vector<MatrixExchange::Piece> MatrixExchange::own_pieces(const layers::ParameterList& parameters) const {
  std::map<const layers::Parameter*, int64_t> index;
  for (const auto& p : parameters.all()) index.emplace(p.get(), static_cast<int64_t>(index.size()));
  std::vector<Piece> pieces;
  for (size_t s = 0; s < shards_.size(); ++s) {
    const auto& shape = shards_[s]->parameter->shape;
    const size_t dims = shape.size();
    for (const auto& region : shards_[s]->regions()) {
      // One piece for each matrix of the stack that the region touches.
      const int64_t stacked = dims == 3 ? region.box.extent[0] : 1;
      for (int64_t m = 0; m < stacked; ++m) {
        Piece piece{.parameter = index.at(shards_[s]->parameter), .matrix = dims == 3 ? region.box.offset[0] + m : 0};
        piece.rows = {region.box.offset[dims - 2], region.box.offset[dims - 2] + region.box.extent[dims - 2]};
        piece.cols = {region.box.offset[dims - 1], region.box.offset[dims - 1] + region.box.extent[dims - 1]};
        piece.owner = group_.rank();
        piece.place = {s, region.offset + (dims == 3 ? m * region.strides[0] : 0), region.strides[dims - 2], region.strides[dims - 1]};
        pieces.push_back(piece);
      }
    }
  }
  return pieces;
}

std::vector<MatrixExchange::Piece> MatrixExchange::everyones_pieces(const std::vector<Piece>& own) const {
  // On a counting device nobody answers: each rank then works on the matrices that it owns elements of, and nothing is sent.
  if (group_.size() == 1 || device::is_counting(options_.device())) return own;
  const auto device = options_.device();
  auto count = at::full({1}, static_cast<int64_t>(own.size()), at::TensorOptions().dtype(at::kLong).device(device));
  auto counts = at::empty({group_.size()}, count.options());
  group_.all_gather(counts, count);
  const auto host_counts = counts.cpu();
  const int64_t largest = std::max<int64_t>(1, host_counts.max().item<int64_t>());
  auto mine = at::zeros({largest, kNumbers}, at::kLong);
  for (size_t i = 0; i < own.size(); ++i) {
    auto* row = mine.data_ptr<int64_t>() + static_cast<int64_t>(i) * kNumbers;
    const auto& p = own[i];
    row[0] = p.parameter, row[1] = p.matrix, row[2] = p.rows.begin, row[3] = p.rows.end, row[4] = p.cols.begin, row[5] = p.cols.end;
  }
  auto all = at::empty({group_.size() * largest, kNumbers}, counts.options());
  group_.all_gather(all, mine.to(device));
  all = all.cpu();
  std::vector<Piece> pieces;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) {
      pieces.insert(pieces.end(), own.begin(), own.end());
      continue;
    }
    for (int64_t i = 0; i < host_counts[rank].item<int64_t>(); ++i) {
      const auto* row = all.data_ptr<int64_t>() + (rank * largest + i) * kNumbers;
      pieces.push_back({.parameter = row[0], .matrix = row[1], .rows = {row[2], row[3]}, .cols = {row[4], row[5]}, .owner = rank});
    }
  }
  return pieces;
}

// All ranks come to the same answer, as all see the same pieces.
void MatrixExchange::assign_workers(bool spread) {
  if (!spread) {
    for (auto& matrix : matrices_) {
      std::set<int> owners;
      for (const auto& piece : matrix.pieces) owners.insert(piece.owner);
      matrix.workers.assign(owners.begin(), owners.end());
    }
    return;
  }
  std::vector<Matrix*> order;
  double total = 0;
  for (auto& matrix : matrices_) {
    order.push_back(&matrix);
    total += matrix.cost;
  }
  std::stable_sort(order.begin(), order.end(), [](const Matrix* a, const Matrix* b) { return a->cost > b->cost; });
  std::vector<double> load(static_cast<size_t>(group_.size()), 0);
  const double fair = total / group_.size();
  for (auto* matrix : order) {
    std::vector<int64_t> held(load.size(), 0);
    for (const auto& piece : matrix->pieces) held[static_cast<size_t>(piece.owner)] += piece.elements();
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

#include <cmath>
#include <numeric>

#include "device/device.h"
#include "device/virtual_device.h"
#include "parallel/expert/axis.h"

namespace ingot::parallel {
namespace {

// Where rows go and come from. Rows leave in the order of their experts, once for each slice; they arrive rank by rank, each
// rank's in the order of the experts that are here.
class Exchange final : public layers::ExpertExchange {
 public:
  /// `counts`: this rank's rows for each expert of the model.
  Exchange(const std::vector<int64_t>& counts, const ExpertAxis& axis, at::Device device) : axis_(axis) {
    const int64_t ranks = axis.group->size(), owners = ranks / axis.slices, here = static_cast<int64_t>(counts.size()) / owners;
    // Every rank sends every other how many of its rows go to each expert there.
    std::vector<int64_t> sent_counts;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const auto first = counts.begin() + rank / axis.slices * here;
      sent_counts.insert(sent_counts.end(), first, first + here);
    }
    leaving_ = sums(sent_counts, here);
    const auto sent = at::tensor(sent_counts, at::kLong).view({ranks, here});
    const auto arrived = at::empty_like(sent);
    const std::vector<int64_t> even(static_cast<size_t>(ranks), 1);
    axis.group->all_to_all(arrived, even, sent, even);
    std::vector<int64_t> received(arrived.data_ptr<int64_t>(), arrived.data_ptr<int64_t>() + arrived.numel());
    if (const double load = device::expert_load(device); load != 1) {
      // This rank's own rows are what they are: others send the rest of `load` times the mean.
      const double share = (load * static_cast<double>(ranks) - 1) / static_cast<double>(ranks - 1);
      for (size_t i = 0; i < received.size(); ++i)
        if (static_cast<int64_t>(i) / here != axis.group->rank())
          received[i] = static_cast<int64_t>(std::ceil(static_cast<double>(received[i]) * share - 1e-9));
    }
    arriving_ = sums(received, here);
    // From rank by rank to expert by expert.
    std::vector<int64_t> begins, order;
    int64_t at = 0;
    for (const int64_t count : received) {
      begins.push_back(at);
      at += count;
    }
    for (int64_t expert = 0; expert < here; ++expert) {
      counts_.push_back(0);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const auto cell = static_cast<size_t>(rank * here + expert);
        for (int64_t i = 0; i < received[cell]; ++i) order.push_back(begins[cell] + i);
        counts_.back() += received[cell];
      }
    }
    order_ = device::to_device(at::tensor(order, at::kLong), device);
  }

  /// Rows that are here for each expert that is here.
  const std::vector<int64_t>& counts() const override { return counts_; }

  /// [own rows, …] in the order of their experts -> [rows here, …] in the order of the experts here.
  at::Tensor dispatch(const at::Tensor& rows) const override {
    auto sent = rows;
    if (axis_.slices > 1) {  // slices of one expert are neighbours: their copies lie side by side, rank after rank
      std::vector<at::Tensor> copies;
      for_each_owner(
          [&](int64_t at, int64_t count) { copies.insert(copies.end(), static_cast<size_t>(axis_.slices), rows.narrow(0, at, count)); });
      sent = device::cat(copies);
    }
    return pass(sent.contiguous(), leaving_, arriving_).index_select(0, order_);
  }

  /// The other way round: results of the slices are added up.
  at::Tensor combine(const at::Tensor& rows) const override {
    auto sent = at::empty_like(rows);
    sent.index_copy_(0, order_, rows);
    const auto received = pass(sent, arriving_, leaving_);
    if (axis_.slices == 1) return received;
    std::vector<at::Tensor> sums;
    for_each_owner([&](int64_t at, int64_t count) {
      auto sizes = received.sizes().vec();
      sizes[0] = count;
      sizes.insert(sizes.begin(), axis_.slices);
      sums.push_back(received.narrow(0, at * axis_.slices, count * axis_.slices).view(sizes).sum(0));
    });
    return device::cat(sums);
  }

 private:
  // Where the rows for each expert's owners (all slices of it) begin, and how many there are.
  template <class Function>
  void for_each_owner(const Function& function) const {
    int64_t at = 0;
    for (size_t rank = 0; rank < leaving_.size(); rank += static_cast<size_t>(axis_.slices)) {
      function(at, leaving_[rank]);
      at += leaving_[rank];
    }
  }
  static std::vector<int64_t> sums(const std::vector<int64_t>& cells, int64_t width) {
    std::vector<int64_t> rows;
    for (auto at = cells.begin(); at != cells.end(); at += width) rows.push_back(std::accumulate(at, at + width, int64_t{0}));
    return rows;
  }
  at::Tensor pass(const at::Tensor& rows, const std::vector<int64_t>& leaving, const std::vector<int64_t>& arriving) const {
    auto sizes = rows.sizes().vec();
    sizes[0] = std::accumulate(arriving.begin(), arriving.end(), int64_t{0});
    auto received = at::empty(sizes, rows.options());
    axis_.group->all_to_all(received, arriving, rows, leaving);
    return received;
  }

  ExpertAxis axis_;
  std::vector<int64_t> leaving_, arriving_, counts_;
  at::Tensor order_;
};

}  // namespace

layers::StartExpertExchange ExpertAxis::exchange() const {
  if (!is_on()) return {};
  return [axis = *this](const std::vector<int64_t>& counts, at::Device device) { return std::make_shared<Exchange>(counts, axis, device); };
}

}  // namespace ingot::parallel

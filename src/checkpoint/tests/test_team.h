// Ranks as threads, for tests of what ranks do together.
#pragma once

#include <barrier>
#include <thread>

#include "checkpoint/ranks/team.h"
#include "checkpoint/tests/test_support.h"

namespace ingot::checkpoint {

// Texts pass through an array between two rendezvous.
struct Desk {
  explicit Desk(int size) : texts(static_cast<size_t>(size)), sent(static_cast<size_t>(size)), barrier(size) {}
  std::vector<std::string> texts;
  std::vector<std::pair<const std::byte*, std::vector<int64_t>>> sent;
  std::barrier<> barrier;
};

class ThreadTeam : public Team {
 public:
  ThreadTeam(Desk& desk, int rank) : desk_(desk), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(desk_.texts.size()); }
  std::vector<std::string> gather(const std::string& own) const override {
    desk_.texts[static_cast<size_t>(rank_)] = own;
    desk_.barrier.arrive_and_wait();
    const auto all = rank_ == 0 ? desk_.texts : std::vector<std::string>();
    desk_.barrier.arrive_and_wait();
    return all;
  }
  std::string broadcast(const std::string& text) const override {
    if (rank_ == 0) desk_.texts[0] = text;
    desk_.barrier.arrive_and_wait();
    const auto same = desk_.texts[0];
    desk_.barrier.arrive_and_wait();
    return same;
  }
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override {
    desk_.sent[static_cast<size_t>(rank_)] = {send, send_bytes};
    desk_.barrier.arrive_and_wait();
    for (size_t from = 0; from < desk_.sent.size(); ++from) {
      const auto& [data, bytes] = desk_.sent[from];
      int64_t before = 0;
      for (int to = 0; to < rank_; ++to) before += bytes[static_cast<size_t>(to)];
      EXPECT_EQ(bytes[static_cast<size_t>(rank_)], receive_bytes[from]);
      std::copy_n(data + before, receive_bytes[from], receive);
      receive += receive_bytes[from];
    }
    desk_.barrier.arrive_and_wait();
  }

 private:
  Desk& desk_;
  int rank_;
};

/// The boxes of a tensor that a rank holds where all kinds are mixed: of three tensors one is whole on all ranks, one is cut by rows, and
/// one is cut flat, as ZeRO does. The elements of each box are one run of the tensor's.
inline std::vector<tensor::Box> mixed_boxes(const tensor::LogicalTensor& tensor, size_t number, int rank, int size) {
  const auto& shape = tensor.shape;
  const int64_t count = tensor::element_count(shape);
  if (number % 3 == 0 || count < size) return {tensor::whole(shape)};
  if (number % 3 == 2) return tensor::boxes_of_flat_slice(shape, count * rank / size, count * (rank + 1) / size);
  tensor::Box rows = tensor::whole(shape);
  rows.offset[0] = shape[0] * rank / size;
  rows.extent[0] = shape[0] * (rank + 1) / size - rows.offset[0];
  return {rows};
}

inline std::vector<SaveItem> mixed_items(const Sample& sample, int rank, int size) {
  std::vector<SaveItem> items;
  for (size_t number = 0; number < sample.tensors().size(); ++number) {
    const auto& [tensor, bytes] = sample.tensors()[number];
    for (auto& box : mixed_boxes(tensor, number, rank, size)) {
      const int64_t at = first_element(tensor::whole(tensor.shape), box) * tensor::size_bytes(tensor.dtype);
      items.push_back({tensor, std::move(box), reinterpret_cast<const std::byte*>(bytes.data()) + at});
    }
  }
  return items;
}

/// For mixed_items: all kinds, small, with what can be cut nowhere.
inline Sample mixed_sample(uint64_t salt) {
  using tensor::DType;
  Sample sample(salt);
  sample.add("embedding", DType::bf16, {40, 32})
      .add("layers.0.weight", DType::fp32, {50, 32})
      .add("layers.0.moments", DType::fp32, {50, 33});
  sample.add("empty", DType::fp16, {0, 4}).add("layers.1.weight", DType::int8, {70, 9}).add("layers.1.moments", DType::fp64, {101});
  return sample.add("scalar", DType::int64, {}), sample;
}

// What each of `size` ranks threw, "" for those that returned.
inline std::vector<std::string> run_team(int size, const std::function<void(const Team&)>& body) {
  Desk desk(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(ThreadTeam(desk, rank));
      } catch (const std::exception& failure) {
        errors[static_cast<size_t>(rank)] = failure.what();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace ingot::checkpoint

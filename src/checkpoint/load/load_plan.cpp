#include "checkpoint/load/load_plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "checkpoint/ranks/balance.h"
#include "checkpoint/format/coding.h"

namespace ingot::checkpoint {

std::string encode(const Wants& wants) {
  Encoder out;
  out.text(wants.machine);
  out.number(static_cast<int64_t>(wants.wants.size()));
  for (const auto& want : wants.wants) {
    out.number(want.tensor);
    put(out, want.box);
  }
  return std::move(out.bytes);
}

Wants decode_wants(std::string_view bytes, const Metadata& metadata, const std::string& origin) {
  Decoder in(bytes, origin, "list of wanted tensors");
  Wants wants;
  wants.machine = in.text();
  wants.wants.resize(in.count(1));
  for (auto& want : wants.wants) {
    const int64_t tensor = in.number();
    if (static_cast<uint64_t>(tensor) >= metadata.tensors.size()) in.fail("names a tensor that does not exist");
    want.tensor = static_cast<uint32_t>(tensor);
    const auto& shape = metadata.tensors[want.tensor].tensor.shape;
    take(in, shape.size(), want.box);
    if (!tensor::is_inside(want.box, shape)) in.fail("has a box outside its tensor");
  }
  in.finish();
  return wants;
}

namespace {

// Parts what ranks of the reader's machine read themselves from each of the reads.
void share_caches(const std::vector<Wants>& wants, std::vector<ReadTask>& reads) {
  const size_t count = reads.size();
  for (size_t i = 0; i < count; ++i) {
    const auto& machine = wants[reads[i].reader].machine;
    if (machine.empty()) continue;
    std::vector<Delivery> left;
    // Deliveries lie rank by rank.
    for (size_t from = 0, to; from < reads[i].deliveries.size(); from = to) {
      const uint32_t rank = reads[i].deliveries[from].rank;
      int64_t bytes = 0;
      for (to = from; to < reads[i].deliveries.size() && reads[i].deliveries[to].rank == rank; ++to) bytes += reads[i].deliveries[to].bytes;
      const auto begin = reads[i].deliveries.begin() + static_cast<std::ptrdiff_t>(from),
                 end = begin + static_cast<std::ptrdiff_t>(to - from);
      if (rank != reads[i].reader && wants[rank].machine == machine && 2 * bytes >= reads[i].bytes) {
        reads[i].is_shared = true;
        reads.push_back({reads[i].tensor, reads[i].piece, rank, reads[i].bytes, true, true, {begin, end}});
      } else {
        left.insert(left.end(), begin, end);
      }
    }
    reads[i].deliveries = std::move(left);
  }
}

}  // namespace

LoadPlan plan_load(const Metadata& metadata, const std::vector<Wants>& wants, int64_t batch_bytes, const Readers& readers) {
  // Wants of each tensor, so that the boxes of its pieces are put in order once.
  struct Wanting {
    uint32_t rank, want;
  };
  std::vector<std::vector<Wanting>> by_tensor(metadata.tensors.size());
  for (uint32_t rank = 0; rank < wants.size(); ++rank)
    for (uint32_t want = 0; want < wants[rank].wants.size(); ++want) by_tensor[wants[rank].wants[want].tensor].push_back({rank, want});

  std::vector<ReadTask> reads;
  for (uint32_t t = 0; t < metadata.tensors.size(); ++t) {
    if (by_tensor[t].empty()) continue;
    const auto& record = metadata.tensors[t];
    const int64_t element_bytes = tensor::size_bytes(record.tensor.dtype);
    std::vector<Box> boxes;
    boxes.reserve(record.pieces.size());
    for (const auto& piece : record.pieces) boxes.push_back(piece.box);
    const BoxIndex index(boxes);
    std::vector<std::vector<Delivery>> of_piece(record.pieces.size());
    for (const auto& [rank, want] : by_tensor[t]) {
      const auto& box = wants[rank].wants[want].box;
      for (const size_t piece : index.touching(boxes, box)) {
        Delivery delivery{rank, want, {}, 0};
        tensor::intersect(boxes[piece], box, delivery.common);
        delivery.bytes = tensor::element_count(delivery.common.extent) * element_bytes;
        of_piece[piece].push_back(std::move(delivery));
      }
    }
    for (uint32_t piece = 0; piece < of_piece.size(); ++piece)
      if (!of_piece[piece].empty())
        reads.push_back({t, piece, 0, tensor::element_count(boxes[piece].extent) * element_bytes, false, false, std::move(of_piece[piece])});
  }

  std::vector<Task> tasks;
  std::vector<uint32_t> ranks;
  for (const auto& read : reads) {
    const auto begin = static_cast<uint32_t>(ranks.size());
    if (!readers.empty()) {
      const auto& able = readers.at(metadata.tensors[read.tensor].pieces[read.piece].file);
      ranks.insert(ranks.end(), able.begin(), able.end());
    } else {
      for (const auto& delivery : read.deliveries)
        if (ranks.size() == begin || ranks.back() != delivery.rank) ranks.push_back(delivery.rank);
    }
    tasks.push_back({read.bytes, begin, static_cast<uint32_t>(ranks.size())});
  }
  const auto chosen = deal_out(tasks, ranks, wants.size());
  for (size_t i = 0; i < reads.size(); ++i) reads[i].reader = ranks[chosen[i]];
  if (readers.empty()) share_caches(wants, reads);

  std::vector<uint32_t> order(reads.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto place_of = [&](uint32_t i) -> const PieceRecord& { return metadata.tensors[reads[i].tensor].pieces[reads[i].piece]; };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const auto &x = place_of(a), &y = place_of(b);
    return x.file != y.file ? x.file < y.file : x.offset != y.offset ? x.offset < y.offset : a < b;
  });
  LoadPlan plan;
  std::vector<int64_t> begun(wants.size(), 0);
  for (const uint32_t i : order) {
    const auto round = static_cast<size_t>(begun[reads[i].reader] / std::max<int64_t>(1, batch_bytes));
    begun[reads[i].reader] += reads[i].bytes;
    if (plan.rounds.size() <= round) plan.rounds.resize(round + 1);
    plan.rounds[round].push_back(std::move(reads[i]));
  }
  return plan;
}

}  // namespace ingot::checkpoint

#include "checkpoint/load/load.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "base/error.h"
#include "checkpoint/format/coding.h"
#include "checkpoint/load/load_plan.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

constexpr int64_t kLeastBatchBytes = int64_t{64} << 20;

// The same on all ranks, which plan by it.
LoadOptions complete(LoadOptions options) {
  const auto reading = options.storage ? options.storage->reading() : Reading();
  if (options.threads < 1) options.threads = reading.at_once;
  if (options.batch_bytes < 1) options.batch_bytes = std::max(kLeastBatchBytes, reading.request_bytes * reading.at_once);
  return options;
}

// A piece that this rank reads, and where it comes to lie: where it is wanted, if it is wanted there in one run, else in memory of its own.
struct OwnRead {
  const ReadTask* task = nullptr;
  size_t round = 0;
  Box box;  // of what was read
  std::unique_ptr<std::byte[]> memory;
  std::byte* data = nullptr;
};

// Memory that is written before it is read; kept for the next time.
class Scratch {
 public:
  std::byte* of_size(int64_t bytes) {
    if (bytes > size_) {
      memory_.reset(new std::byte[static_cast<size_t>(bytes)]);
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  int64_t size_ = 0;
};

// Threads that read this rank's pieces in order, no further ahead than they are told.
class ReadAhead {
 public:
  ReadAhead(const Reader& reader, std::vector<OwnRead>& reads, size_t rounds, int threads)
      : reader_(reader), reads_(reads), left_(rounds, 0) {
    for (const auto& read : reads_) ++left_[read.round];
    const auto count = std::min(reads_.size(), static_cast<size_t>(std::max(1, threads)));
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
  }
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// Waits until this rank's reads of a round are done; those of the next one go on.
  void wait(size_t round) {
    std::unique_lock lock(mutex_);
    allowed_ = round + 1;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_[round] == 0; });
  }
  /// What went wrong first; empty when nothing did.
  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopped_ || next_ == reads_.size() || reads_[next_].round <= allowed_; });
      if (stopped_ || next_ == reads_.size()) return;
      OwnRead& read = reads_[next_++];
      lock.unlock();
      std::string failure;
      try {
        one(read);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      if (failure_.empty()) failure_ = failure;
      if (--left_[read.round] == 0) changed_.notify_all();
    }
  }

  void one(OwnRead& read) const {
    const auto& task = *read.task;
    const auto& record = reader_.metadata().tensors[task.tensor];
    const int64_t element_bytes = tensor::size_bytes(record.tensor.dtype);
    if (!read.data) {
      read.memory.reset(new std::byte[static_cast<size_t>(tensor::element_count(read.box.extent) * element_bytes)]);
      read.data = read.memory.get();
    }
    if (read.box == record.pieces[task.piece].box) reader_.read_piece(task.tensor, task.piece, read.data, task.is_shared);
    else reader_.read(record.tensor.name, read.box, read.data);
  }

  const Reader& reader_;
  std::vector<OwnRead>& reads_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<size_t> left_;  // of each round
  size_t next_ = 0, allowed_ = 0;
  bool stopped_ = false;
  std::string failure_;
  std::vector<std::thread> threads_;
};

void put(Encoder& out, const LoadPhases& p) {
  for (const double value : {p.plan_s, p.read_s, p.exchange_s, p.total_s}) out.fixed(value);
  for (const int64_t value : {p.wanted_bytes, p.read_bytes, p.cached_bytes, p.sent_bytes, p.received_bytes}) out.number(value);
}

void take(Decoder& in, LoadPhases& p) {
  for (double* value : {&p.plan_s, &p.read_s, &p.exchange_s, &p.total_s}) *value = in.fixed<double>();
  for (int64_t* value : {&p.wanted_bytes, &p.read_bytes, &p.cached_bytes, &p.sent_bytes, &p.received_bytes}) *value = in.number();
}

// One load, as one rank sees it.
class Load {
 public:
  Load(const Reader& reader, const Readers& readers, const std::vector<LoadItem>& items, const LoadOptions& options, const Team& team)
      : reader_(reader),
        readers_(readers),
        metadata_(reader.metadata()),
        items_(items),
        options_(options),
        team_(team),
        rank_(static_cast<uint32_t>(team.rank())) {}

  LoadReport run() {
    const auto start = Clock::now();
    find_out_what_all_want();
    plan_ = plan_load(metadata_, wants_, options_.batch_bytes, readers_);
    collect_own_reads();
    phases_.plan_s = seconds_since(start);
    const int64_t read_before = reader_.counters().read_bytes;
    std::string failure;
    {
      ReadAhead ahead(reader_, reads_, plan_.rounds.size(), options_.threads);
      for (size_t round = 0; round < plan_.rounds.size(); ++round) {
        const auto waiting = Clock::now();
        ahead.wait(round);
        phases_.read_s += seconds_since(waiting);
        failure = ahead.failure();
        if (failure.empty()) keep_own_parts(round);
        exchange(round, failure.empty());
        forget(round);
      }
    }
    for (const auto& read : reads_)
      if (read.task->is_cached) phases_.cached_bytes += tensor::element_count(read.box.extent) * element_bytes(*read.task);
    phases_.read_bytes = reader_.counters().read_bytes - read_before - phases_.cached_bytes;
    phases_.total_s = seconds_since(start);
    return finish(failure);
  }

 private:
  void find_out_what_all_want() {
    Wants own;
    if (!options_.storage || options_.storage->is_cached()) own.machine = options_.machine;
    std::string fault;
    try {
      for (const auto& item : items_) own.wants.push_back({want_of(item)});
    } catch (const CheckpointError& error) {
      fault = error.what();
    }
    const auto all = gather_everywhere(team_, [&] {
      if (!fault.empty()) throw CheckpointError("{}", fault);
      return team_.size() == 1 ? std::string() : encode(own);
    });
    if (all.size() > 1) {
      for (size_t rank = 0; rank < all.size(); ++rank)
        wants_.push_back(decode_wants(all[rank], metadata_, fmt::format("what rank {} wants", rank)));
      // What arrives is put where this rank's items are.
      if (wants_[rank_] != own)
        throw CheckpointError("rank 0 says that rank {} wants something else than it does; the message was damaged", rank_);
    } else {
      wants_.push_back(std::move(own));
    }
  }

  Wants::Want want_of(const LoadItem& item) {
    const auto& tensor = reader_.tensor(item.name);
    if (!tensor::is_inside(item.box, tensor.shape))
      throw CheckpointError("{}: the box at {} of {} is outside tensor '{}' of shape {}", reader_.path().string(),
                            tensor::to_string(item.box.offset), tensor::to_string(item.box.extent), item.name,
                            tensor::to_string(tensor.shape));
    phases_.wanted_bytes += tensor::element_count(item.box.extent) * tensor::size_bytes(tensor.dtype);
    return {reader_.place_of(item.name), item.box};
  }

  int64_t element_bytes(const ReadTask& task) const { return tensor::size_bytes(metadata_.tensors[task.tensor].tensor.dtype); }

  void collect_own_reads() {
    for (size_t round = 0; round < plan_.rounds.size(); ++round)
      for (const auto& task : plan_.rounds[round]) {
        if (task.reader != rank_) continue;
        const auto& piece = metadata_.tensors[task.tensor].pieces[task.piece].box;
        OwnRead read{&task, round, piece, {}, nullptr};
        if (!options_.verify && task.deliveries.size() == 1) read.box = task.deliveries[0].common;
        for (const auto& delivery : task.deliveries) {
          if (delivery.rank != rank_ || read.box != delivery.common) continue;
          const auto& item = items_[delivery.want];
          const int64_t place = contiguous_offset(item.box, delivery.common);
          if (place >= 0) read.data = item.data + place * element_bytes(task);
          if (place >= 0) break;
        }
        reads_.push_back(std::move(read));
      }
    std::vector<size_t> first(plan_.rounds.size() + 1, 0);
    for (const auto& read : reads_) ++first[read.round + 1];
    for (size_t round = 1; round < first.size(); ++round) first[round] += first[round - 1];
    first_read_ = std::move(first);
  }

  template <class Visit>
  void for_reads(size_t round, Visit&& visit) {
    for (size_t i = first_read_[round]; i < first_read_[round + 1]; ++i) visit(reads_[i]);
  }

  void keep_own_parts(size_t round) {
    for_reads(round, [&](OwnRead& read) {
      for (const auto& delivery : read.task->deliveries) {
        if (delivery.rank != rank_) continue;
        const auto& item = items_[delivery.want];
        const int64_t place = contiguous_offset(item.box, delivery.common);
        if (read.box == delivery.common && place >= 0 && read.data == item.data + place * element_bytes(*read.task)) continue;  // is there
        copy_box(read.data, read.box, item.data, item.box, delivery.common, element_bytes(*read.task));
      }
    });
  }

  void exchange(size_t round, bool has_data) {
    const auto ranks = static_cast<size_t>(team_.size());
    std::vector<int64_t> leaving(ranks, 0), arriving(ranks, 0);
    bool any = false;
    for (const auto& task : plan_.rounds[round])
      for (const auto& delivery : task.deliveries) {
        if (delivery.rank == task.reader) continue;
        any = true;
        if (task.reader == rank_) leaving[delivery.rank] += delivery.bytes;
        if (delivery.rank == rank_) arriving[task.reader] += delivery.bytes;
      }
    if (!any) return;  // all ranks know that
    const auto start = Clock::now();
    const auto sum = [](const std::vector<int64_t>& counts) {
      int64_t total = 0;
      for (const int64_t count : counts) total += count;
      return total;
    };
    std::byte *out = leaving_.of_size(sum(leaving)), *in = arriving_.of_size(sum(arriving));
    if (has_data) pack(round, leaving, out);
    team_.all_to_all(out, leaving, in, arriving);
    unpack(round, arriving, in);
    phases_.sent_bytes += sum(leaving);
    phases_.received_bytes += sum(arriving);
    phases_.exchange_s += seconds_since(start);
  }

  void pack(size_t round, const std::vector<int64_t>& leaving, std::byte* out) {
    std::vector<std::byte*> next;
    for (const int64_t bytes : leaving) {
      next.push_back(out);
      out += bytes;
    }
    for_reads(round, [&](OwnRead& read) {
      for (const auto& delivery : read.task->deliveries) {
        if (delivery.rank == rank_) continue;
        copy_box(read.data, read.box, next[delivery.rank], delivery.common, delivery.common, element_bytes(*read.task));
        next[delivery.rank] += delivery.bytes;
      }
    });
  }

  void unpack(size_t round, const std::vector<int64_t>& arriving, const std::byte* in) {
    std::vector<const std::byte*> next;
    for (const int64_t bytes : arriving) {
      next.push_back(in);
      in += bytes;
    }
    for (const auto& task : plan_.rounds[round]) {
      if (task.reader == rank_) continue;
      for (const auto& delivery : task.deliveries) {
        if (delivery.rank != rank_) continue;
        const auto& item = items_[delivery.want];
        copy_box(next[task.reader], delivery.common, item.data, item.box, delivery.common, element_bytes(task));
        next[task.reader] += delivery.bytes;
      }
    }
  }

  void forget(size_t round) {
    for_reads(round, [](OwnRead& read) { read.memory.reset(); });
  }

  LoadReport finish(const std::string& failure) {
    LoadReport report{phases_, {}};
    const auto gathered = on_each(team_, [&] {
      if (!failure.empty()) throw CheckpointError("{}", failure);
      Encoder out;
      put(out, phases_);
      return std::move(out.bytes);
    });
    on_first(team_, [&] {
      for (const auto& text : gathered()) {
        Decoder in(text, "a rank", "report");
        take(in, report.ranks.emplace_back());
      }
      return std::string();
    });
    return report;
  }

  const Reader& reader_;
  const Readers& readers_;
  const Metadata& metadata_;
  const std::vector<LoadItem>& items_;
  const LoadOptions& options_;
  const Team& team_;
  uint32_t rank_;
  std::vector<Wants> wants_;
  LoadPlan plan_;
  std::vector<OwnRead> reads_;
  std::vector<size_t> first_read_;  // of each round
  LoadPhases phases_;
  Scratch leaving_, arriving_;
};

}  // namespace

TeamReader::TeamReader(const fs::path& path, const LoadOptions& options) : options_(complete(options)) {
  const Storage& storage = options_.storage ? *options_.storage : local_storage();
  const auto bytes = on_first(team(), [&] { return read_metadata(path, storage); });
  for_all(team(), [&] {
    // Rank 0 looks at every file; the others at those that they read.
    reader_ = std::make_unique<Reader>(path, bytes, ReaderOptions{options_.verify, team().rank() == 0, options_.storage});
  });
}

TeamReader::TeamReader(const HostCopy& copy, const LoadOptions& options) : options_(complete(options)), readers_(copy.readers) {
  for_all(team(), [&] {
    reader_ = std::make_unique<Reader>(copy.path, copy.metadata, ReaderOptions{options_.verify, false, options_.storage, copy.files});
  });
}

std::string TeamReader::extra(const std::string& name) const {
  if (readers_.empty()) return on_first(team(), [&] { return reader_->extra(name); });
  int from = 0;
  for (const auto& extra : metadata().extras)
    if (extra.name == name) from = static_cast<int>(readers_.at(extra.file).front());
  const auto gathered = on_each(team(), [&] { return team().rank() == from ? reader_->extra(name) : std::string(); });
  return on_first(team(), [&] { return gathered()[static_cast<size_t>(from)]; });
}

LoadReport TeamReader::load(const std::vector<LoadItem>& items) const { return Load(*reader_, readers_, items, options_, team()).run(); }

}  // namespace ingot::checkpoint

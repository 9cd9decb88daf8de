#include "checkpoint/save/writer.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/format/coding.h"
#include "checkpoint/format/nonfinite.h"
#include "checkpoint/save/data_writer.h"
#include "checkpoint/save/shared_folder.h"

namespace ingot::checkpoint {

using base::CheckpointError;
using tensor::LogicalTensor;

namespace {

class Stopwatch {
 public:
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Ranks that share processors leave start() before the copies of the first of them want these.
constexpr std::chrono::milliseconds kHeadStart(10);

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

struct Place {
  const std::byte* data;
  bool is_on_device;
};

// The items cut into pieces, sorted by tensor and with tensors in the order of their names; `sources` says where each part lies.
Inventory take_inventory(const std::vector<SaveItem>& items, const SaveOptions& options, bool has_extras, std::vector<Place>* sources) {
  Inventory inventory;
  inventory.has_extras = has_extras;
  std::map<std::string_view, const tensor::LogicalTensor*> tensors;
  for (const SaveItem& item : items) {
    if (item.is_on_device && !options.copy) throw CheckpointError("tensor '{}' lies on a device that nobody copies from", item.tensor.name);
    const auto* other = tensors.try_emplace(item.tensor.name, &item.tensor).first->second;
    if (*other != item.tensor)
      throw CheckpointError("tensor '{}' is given twice, as {} {} and as {} {}", item.tensor.name, tensor::name_of(other->dtype),
                            tensor::to_string(other->shape), tensor::name_of(item.tensor.dtype), tensor::to_string(item.tensor.shape));
    if (!tensor::is_inside(item.box, item.tensor.shape))
      throw CheckpointError("tensor '{}' of shape {} is given a part outside of it", item.tensor.name,
                            tensor::to_string(item.tensor.shape));
  }
  std::map<std::string_view, uint32_t> numbers;
  for (const auto& [name, tensor] : tensors) {
    numbers.emplace(name, static_cast<uint32_t>(inventory.tensors.size()));
    inventory.tensors.push_back(*tensor);
  }
  for (const SaveItem& item : items) {
    const int64_t element_bytes = tensor::size_bytes(item.tensor.dtype);
    const uint32_t number = numbers.at(item.tensor.name);
    const std::byte* data = item.data;
    for (Box& box : cut(item.box, std::max<int64_t>(1, options.piece_limit_bytes / element_bytes))) {
      const int64_t bytes = tensor::element_count(box.extent) * element_bytes;
      inventory.parts.push_back({number, std::move(box)});
      if (sources) sources->push_back({data, item.is_on_device});
      data += bytes;
    }
  }
  return inventory;
}

void put(Encoder& out, const SavePhases& p) {
  for (const double value : {p.plan_s, p.copy_s, p.stall_s, p.hash_s, p.write_s, p.sync_s, p.commit_s, p.total_s}) out.fixed(value);
  out.number(p.bytes);
}

void take(Decoder& in, SavePhases& p) {
  for (double* value : {&p.plan_s, &p.copy_s, &p.stall_s, &p.hash_s, &p.write_s, &p.sync_s, &p.commit_s, &p.total_s})
    *value = in.fixed<double>();
  p.bytes = in.number();
}

// Checksums of the pieces of files whose blocks come in file order.
class PieceHashes {
 public:
  using TensorOf = std::function<const LogicalTensor&(size_t piece)>;  // pieces are counted over all files
  PieceHashes(const std::vector<FileImage>& images, TensorOf tensor_of, bool refuse_nonfinite, int64_t step)
      : images_(images), tensor_of_(std::move(tensor_of)), refuse_nonfinite_(refuse_nonfinite), step_(step) {}

  void add(const Snapshot::Block& block) {
    Stopwatch watch;
    if (block.file != file_) file_ = block.file, piece_ = 0;
    const auto& pieces = images_[file_].pieces;
    const int64_t end = block.offset + block.size_bytes;
    for (; piece_ < pieces.size() && pieces[piece_].offset < end; ++piece_) {
      const auto& p = pieces[piece_];
      const int64_t from = std::max(block.offset, p.offset), to = std::min(end, p.offset + p.size_bytes);
      const std::byte* data = block.data + (from - block.offset);
      const bool begins = from == p.offset, ends = to == p.offset + p.size_bytes;
      const auto& tensor = tensor_of_(digests_.size());
      if (refuse_nonfinite_ && has_nonfinite(tensor.dtype, data, to - from))
        throw base::NumericError("{} has NaN or Inf; the checkpoint of step {} is not written and the last good one stays", tensor.name,
                                 step_);
      if (begins && ends) {
        digests_.push_back(digest_of(data, to - from));
        continue;
      }
      if (begins) hasher_ = Hasher();
      hasher_.add(data, to - from);
      if (!ends) break;  // goes on in the next block
      digests_.push_back(hasher_.digest());
    }
    seconds_ += watch.lap();
  }
  const std::vector<Digest>& digests() const { return digests_; }
  double seconds() const { return seconds_; }

 private:
  const std::vector<FileImage>& images_;
  TensorOf tensor_of_;
  bool refuse_nonfinite_;
  int64_t step_;
  size_t file_ = SIZE_MAX, piece_ = 0;
  Hasher hasher_;
  std::vector<Digest> digests_;
  double seconds_ = 0;
};

}  // namespace

struct Saver::Job {
  int64_t step = 0;
  Extras extras;
  std::shared_ptr<void> keep;
  std::chrono::steady_clock::time_point begun = std::chrono::steady_clock::now();
  SaveReport report;   // the background's
  double stall_s = 0;  // guarded by Saver::mutex_
  std::unique_ptr<Snapshot> snapshot;
};

SaveItem whole_item(tensor::LogicalTensor tensor, const void* data) {
  tensor::Box box = tensor::whole(tensor.shape);
  return {std::move(tensor), std::move(box), static_cast<const std::byte*>(data)};
}

Saver::Saver(const fs::path& folder, const SaveOptions& options)
    : Saver(std::make_unique<SharedFolder>(folder, options.storage ? *options.storage : local_storage(),
                                           options.team ? *options.team : alone(), options.retention, options.grace_s),
            options) {}

Saver::Saver(std::unique_ptr<Destination> destination, SaveOptions options)
    : destination_(std::move(destination)),
      options_(std::move(options)),
      staging_(options_.staging_bytes, options_.block_bytes, options_.allocate) {
  copier_ = std::thread([this] { run_copies(); });
  writer_ = std::thread([this] { run_saves(); });
}

Saver::~Saver() {
  wait();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  copier_.join();
  writer_.join();
}

void Saver::plan(const std::vector<SaveItem>& items, bool has_extras, bool& planned) {
  const Team& calling = options_.calling_team ? *options_.calling_team : team();
  if (!options_.calling_team) wait();
  const int own_rank = calling.rank(), ranks = calling.size();
  Inventory inventory;
  Digest fingerprint;
  // What throws here on one rank must reach all of them.
  std::string fault;
  try {
    inventory = take_inventory(items, options_, has_extras, nullptr);
    Encoder key;
    key.bytes = encode(inventory);
    key.number(own_rank);
    key.number(ranks);
    key.number(options_.file_limit_bytes);
    fingerprint = digest_of(key.bytes.data(), static_cast<int64_t>(key.bytes.size()));
  } catch (const CheckpointError& failure) {
    fault = failure.what();
  }
  const bool same = fault.empty() && has_plan_ && fingerprint == fingerprint_;
  planned = !calling.all(same);
  if (!planned) return;
  wait();  // saves under way use the old one
  has_plan_ = false;
  const auto parts = on_each(calling, [&] {
    if (!fault.empty()) throw CheckpointError("{}", fault);
    return ranks == 1 ? std::string() : encode(inventory);
  });
  std::vector<std::string> shares;
  on_first(calling, [&] {
    std::vector<Inventory> inventories;
    for (size_t rank = 0; rank < parts().size(); ++rank)
      inventories.push_back(ranks == 1 ? inventory : decode_inventory(parts()[rank], fmt::format("what rank {} holds", rank)));
    plan_ = plan_save(inventories, {options_.file_limit_bytes});
    written_.metadata = std::move(plan_->metadata);
    for (const auto& share : plan_->shares) shares.push_back(encode(share));
    return std::string();
  });
  share_ = decode_share(calling.scatter(shares), "the plan of rank 0");
  check_fits(share_, inventory, "the plan of rank 0");
  inventory_ = std::move(inventory);
  fingerprint_ = fingerprint;
  has_plan_ = true;
}

std::vector<FileImage> Saver::images_of(const std::vector<SaveItem>& items) const {
  std::vector<Place> sources;
  take_inventory(items, options_, false, &sources);
  std::vector<FileImage> images;
  for (const int64_t bytes : share_.file_bytes) images.push_back({bytes, {}});
  for (const auto& placed : share_.parts) {
    const auto& part = inventory_.parts[placed.part];
    const int64_t bytes = tensor::element_count(part.box.extent) * tensor::size_bytes(inventory_.tensors[part.tensor].dtype);
    images[placed.file - share_.first_file].pieces.push_back(
        {placed.offset, bytes, sources[placed.part].data, sources[placed.part].is_on_device});
  }
  return images;
}

void Saver::prepare(const std::vector<SaveItem>& items, bool has_extras) {
  bool planned = false;
  plan(items, has_extras, planned);
  staging_.reserve(own_bytes());
}

int64_t Saver::own_bytes() const { return std::accumulate(share_.file_bytes.begin(), share_.file_bytes.end(), int64_t{0}); }

void Saver::start(int64_t step, const std::vector<SaveItem>& items, Extras extras, std::shared_ptr<void> keep) {
  if (step < 0) throw CheckpointError("a checkpoint of step {} cannot be saved: the step is negative", step);
  auto job = std::make_shared<Job>();
  job->step = step;
  job->extras = std::move(extras);
  job->keep = std::move(keep);
  Stopwatch watch;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return jobs_.size() < static_cast<size_t>(std::max(1, options_.in_flight)); });
  }
  plan(items, !job->extras.empty(), job->report.planned);
  job->report.phases.plan_s = watch.lap();
  job->report.step = step;
  job->report.path = destination_->path_of(step);
  job->snapshot = std::make_unique<Snapshot>(images_of(items), staging_, options_.copy);
  job->stall_s = seconds_since(job->begun);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    to_copy_.push_back(std::move(job));
    due_ = std::chrono::steady_clock::now() + kHeadStart;
    hurried_ = false;
  }
  changed_.notify_all();
}

void Saver::wait_copied() {
  std::deque<std::shared_ptr<Job>> jobs;
  {
    const std::lock_guard lock(mutex_);
    jobs = jobs_;
  }
  hurry();
  for (const auto& job : jobs) {
    Stopwatch watch;
    job->snapshot->wait_copied();
    const std::lock_guard lock(mutex_);
    job->stall_s += watch.lap();
    job->keep.reset();
  }
}

std::vector<SaveOutcome> Saver::finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

bool Saver::is_busy() const {
  const std::lock_guard lock(mutex_);
  return !jobs_.empty();
}

void Saver::wait() {
  hurry();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return jobs_.empty(); });
}

void Saver::give_head_start(std::unique_lock<std::mutex>& lock) {
  while (!closing_ && !hurried_ && std::chrono::steady_clock::now() < due_) changed_.wait_until(lock, due_);
}

void Saver::hurry() {
  {
    const std::lock_guard lock(mutex_);
    hurried_ = true;
  }
  changed_.notify_all();
}

void Saver::run_copies() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !to_copy_.empty(); });
    if (to_copy_.empty()) return;
    give_head_start(lock);
    const auto job = to_copy_.front();
    to_copy_.pop_front();
    lock.unlock();
    job->snapshot->copy();
    lock.lock();
  }
}

void Saver::run_saves() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    if (jobs_.size() == 1) give_head_start(lock);
    const auto job = jobs_.front();
    lock.unlock();
    std::string failure;
    bool team_is_lost = false;
    try {
      save(*job);
    } catch (const base::CommError& error) {
      failure = error.what();
      team_is_lost = true;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    job->snapshot->cancel();
    job->snapshot->wait_copied();
    lock.lock();
    job->report.phases.stall_s = job->stall_s;
    finished_.push_back({job->report, failure, team_is_lost});
    // A job that the copier still holds keeps its snapshot, not the data that it was given.
    job->keep.reset();
    jobs_.pop_front();
    changed_.notify_all();
  }
}

std::string Saver::write_part(Job& job, const fs::path& folder) {
  auto& phases = job.report.phases;
  const auto& images = job.snapshot->files();
  Stopwatch watch;
  std::unique_ptr<BlockSink> sink;
  size_t file = images.size();
  PieceHashes hashes(
      images, [&](size_t piece) -> const LogicalTensor& { return inventory_.tensors[inventory_.parts[share_.parts[piece].part].tensor]; },
      options_.refuse_nonfinite, job.step);
  // Blocks that are on their way to the file, but not hashed: that waits while the caller waits for copies, which need the same cores.
  std::deque<Snapshot::Block> unhashed;
  std::set<size_t> half_done;  // written or hashed, not both
  const auto done_one_of_two = [&](size_t number) {
    if (half_done.insert(number).second) return;
    half_done.erase(number);
    job.snapshot->release(number);
  };
  const auto hash_next = [&] {
    hashes.add(unhashed.front());
    done_one_of_two(unhashed.front().number);
    unhashed.pop_front();
  };
  const auto close = [&] {
    while (const auto ticket = sink->finished(true)) done_one_of_two(*ticket);
    phases.write_s += watch.lap();
    sink->close(images[file].size_bytes);
    sink.reset();
    phases.sync_s += watch.lap();
  };
  while (true) {
    // Copying may wait for memory that is being written.
    while (!job.snapshot->is_next_ready()) {
      if (!unhashed.empty() && !job.snapshot->is_awaited()) {
        hash_next();
      } else if (const auto ticket = sink ? sink->finished(true) : std::nullopt) {
        done_one_of_two(*ticket);
      } else if (!unhashed.empty()) {
        hash_next();
      } else {
        break;
      }
    }
    const auto block = job.snapshot->next();
    if (!block) break;
    if (block->file != file) {
      if (sink) close();
      file = block->file;
      const auto name = destination_->name_of_file(job.report.id, share_.first_file + static_cast<uint32_t>(file));
      sink = destination_->storage().create_blocks(folder / name, images[file].size_bytes);
    }
    if (block->offset == 0) {
      const auto header = data_header(job.report.id, job.step, share_.first_file + static_cast<uint32_t>(file));
      std::copy(header.begin(), header.end(), const_cast<std::byte*>(block->data));
    }
    const int64_t padded = (block->size_bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    sink->write(block->offset, block->data, padded, block->number);
    unhashed.push_back(*block);
    if (!job.snapshot->is_awaited())
      while (!unhashed.empty()) hash_next();
    while (const auto ticket = sink->finished(false)) done_one_of_two(*ticket);
  }
  if (const auto failure = job.snapshot->failure(); !failure.empty()) throw CheckpointError("cannot copy what is to be saved: {}", failure);
  while (!unhashed.empty()) hash_next();
  if (sink) close();
  const auto& digests = hashes.digests();
  phases.hash_s = hashes.seconds();
  for (const auto& image : images) phases.bytes += image.size_bytes;

  Encoder out;
  for (const auto& digest : digests) out.digest(digest);
  out.number(static_cast<int64_t>(job.extras.size()));
  if (share_.extras_file >= 0) {
    const auto number = static_cast<uint32_t>(share_.extras_file);
    DataWriter writer(destination_->storage(), folder, job.report.id, job.step, number, destination_->name_of_file(job.report.id, number));
    for (const auto& [name, content] : job.extras) {
      const auto record = writer.add_extra(name, content);
      out.text(name);
      out.number(record.offset);
      out.number(record.size_bytes);
      out.digest(record.digest);
    }
    const auto record = writer.finish();
    out.number(record.size_bytes);
    phases.bytes += record.size_bytes;
    phases.sync_s += watch.lap();
  }
  phases.copy_s = job.snapshot->copied_s();
  {
    const std::lock_guard lock(mutex_);
    phases.stall_s = job.stall_s;
  }
  put(out, phases);
  return std::move(out.bytes);
}

Written& Saver::collect(Job& job, const std::vector<std::string>& parts) {
  auto& metadata = written_.metadata;
  metadata.id = job.report.id;
  metadata.step = job.step;
  metadata.extras.clear();
  written_.writers.assign(metadata.files.size(), 0);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const std::string origin = fmt::format("the report of rank {}", rank);
    Decoder in(parts[rank], origin, "report");
    for (const auto& place : plan_->places[rank]) metadata.tensors[place.tensor].pieces[place.piece].digest = in.digest();
    const auto extras = in.count(18);
    const auto& share = plan_->shares[rank];
    if (extras > 0 && share.extras_file < 0) in.fail("has extras that were not announced");
    for (size_t i = 0; i < extras; ++i) {
      ExtraRecord record;
      record.name = in.text();
      record.file = static_cast<uint32_t>(share.extras_file);
      record.offset = in.number();
      record.size_bytes = in.number();
      record.digest = in.digest();
      metadata.extras.push_back(std::move(record));
    }
    if (share.extras_file >= 0) metadata.files[static_cast<size_t>(share.extras_file)].size_bytes = in.number();
    take(in, job.report.ranks.emplace_back());
    in.finish();
    for (size_t file = 0; file < share.file_bytes.size(); ++file) written_.writers[share.first_file + file] = static_cast<uint32_t>(rank);
    if (share.extras_file >= 0) written_.writers[static_cast<size_t>(share.extras_file)] = static_cast<uint32_t>(rank);
  }
  std::sort(metadata.extras.begin(), metadata.extras.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < metadata.extras.size(); ++i)
    if (metadata.extras[i - 1].name == metadata.extras[i].name)
      throw CheckpointError("extra '{}' is given by two ranks", metadata.extras[i].name);
  for (uint32_t file = 0; file < metadata.files.size(); ++file) {
    metadata.files[file].name = destination_->name_of_file(job.report.id, file);
    job.report.data_bytes += metadata.files[file].size_bytes;
  }
  validate(metadata, "this save");  // what ranks report is not believed
  return written_;
}

void Saver::save(Job& job) {
  Stopwatch watch;
  try {
    const auto place = destination_->begin(job.step, options_.id);
    job.report.id = place.id;
    const auto parts = on_each(team(), [&] { return write_part(job, place.folder); });
    watch.lap();
    destination_->commit([&]() -> Written& { return collect(job, parts()); });
  } catch (...) {
    destination_->abandon();
    throw;
  }
  job.report.metadata_bytes = written_.metadata_bytes;
  job.report.phases.commit_s = watch.lap();
  job.report.phases.total_s = seconds_since(job.begun);
  destination_->clean();
  job.report.clean_s = watch.lap();
}

SaveReport save(const fs::path& folder, int64_t step, const std::vector<SaveItem>& items, const Extras& extras,
                const SaveOptions& options) {
  Saver saver(folder, options);
  saver.start(step, items, extras);
  saver.wait_copied();
  saver.wait();
  auto outcome = std::move(saver.finished().at(0));
  if (!outcome.failure.empty()) throw CheckpointError("{}", outcome.failure);
  return std::move(outcome.report);
}

}  // namespace ingot::checkpoint

#include "device/memory.h"

#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/environment.h"
#include "base/error.h"
#include "base/text.h"
#include "device/state.h"
#include "device/stream.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

constexpr size_t kRounding = 512;
constexpr int kPoison = 0xff;  // NaN in every floating-point type

// Which parts of an address range are free: best fit, neighbours are merged.
class AddressRange {
 public:
  explicit AddressRange(size_t size) { add(0, size); }

  /// The begin of `size` bytes that are the caller's from now on; nothing when there is no room.
  std::optional<size_t> take(size_t size) {
    const std::lock_guard lock(mutex_);
    const auto fit = by_size_.lower_bound({size, 0});
    if (fit == by_size_.end()) return std::nullopt;
    const auto [free, begin] = *fit;
    by_size_.erase(fit);
    by_begin_.erase(begin);
    if (free > size) add(begin + size, free - size);
    return begin;
  }

  void give_back(size_t begin, size_t size) {
    const std::lock_guard lock(mutex_);
    auto next = by_begin_.upper_bound(begin);
    if (next != by_begin_.end() && begin + size == next->first) {
      size += next->second;
      next = remove(next);
    }
    if (next != by_begin_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        remove(before);
      }
    }
    add(begin, size);
  }

 private:
  using ByBegin = std::map<size_t, size_t>;
  void add(size_t begin, size_t size) {
    by_begin_[begin] = size;
    by_size_.insert({size, begin});
  }
  ByBegin::iterator remove(ByBegin::iterator at) {
    by_size_.erase({at->second, at->first});
    return by_begin_.erase(at);
  }

  std::mutex mutex_;
  ByBegin by_begin_;
  std::set<std::pair<size_t, size_t>> by_size_;
};

// One piece of memory mapped twice: tensors show the address of the mapping that nobody may touch, kernels use the other.
class EmulatedMemory {
 public:
  static EmulatedMemory& get() {
    static auto& memory = *new EmulatedMemory;
    return memory;
  }
  void* take(size_t size) {
    const auto begin = range_.take(size);
    if (!begin) throw base::Error(fmt::format("an emulated device has no {} bytes left", size));
    const std::lock_guard lock(mutex_);
    if (const size_t end = *begin + size; end > touched_) {
      std::memset(usable_ + touched_, kPoison, end - touched_);
      touched_ = end;
    }
    return shown_ + *begin;
  }
  void give_back(void* shown, size_t size) { range_.give_back(static_cast<size_t>(static_cast<char*>(shown) - shown_), size); }
  void* host_address(void* shown) const { return shown ? static_cast<char*>(shown) + (usable_ - shown_) : nullptr; }

 private:
  static constexpr size_t kSize = size_t{1} << 36;  // of addresses; memory is taken as it is written

  EmulatedMemory() : range_(kSize) {
    const int file = ::memfd_create("ingot-emulated-device", MFD_CLOEXEC);
    if (file < 0 || ::ftruncate(file, static_cast<off_t>(kSize)) != 0)
      throw base::Error(fmt::format("cannot make the memory of an emulated device: {}", std::strerror(errno)));
    const auto map = [&](int protection) {
      void* at = ::mmap(nullptr, kSize, protection, MAP_SHARED | MAP_NORESERVE, file, 0);
      if (at == MAP_FAILED) throw base::Error(fmt::format("cannot map the memory of an emulated device: {}", std::strerror(errno)));
      return static_cast<char*>(at);
    };
    shown_ = map(PROT_NONE);
    usable_ = map(PROT_READ | PROT_WRITE);
    ::close(file);
  }

  AddressRange range_;
  std::mutex mutex_;
  size_t touched_ = 0;  // what lies behind it was never taken
  char *shown_ = nullptr, *usable_ = nullptr;
};

// Addresses that no processor has: whoever touches one dies.
constexpr size_t kMadeUp = size_t{1} << 52;
AddressRange& made_up_addresses() {
  static auto& range = *new AddressRange(size_t{1} << 60);
  return range;
}

struct Block {
  c10::DeviceIndex device;
  void* address;
  size_t bytes;
  std::shared_ptr<TraceWriter> writer;  // that saw its allocation
  int64_t number = 0;                   // there
  at::Tensor contents;                  // of a counting device, one-dimensional, as far as they are known
  std::vector<c10::Stream> streams;     // of an emulated device: that allocated it, and that use it besides
  std::shared_ptr<CapturedWork> work;   // for which it was allocated; null: for work that is done once
};

size_t rounded(size_t bytes) { return (bytes + kRounding - 1) / kRounding * kRounding; }

// Nobody else gets the memory of work that will be done again. In between it is NaN.
void keep_for_work(const Block& block) {
  const size_t bytes = rounded(block.bytes);
  const auto poison = [address = block.address, bytes] { std::memset(EmulatedMemory::get().host_address(address), kPoison, bytes); };
  const auto& stream = block.streams.front();
  if (capture_of(stream) == block.work) enqueue(stream, poison);
  const std::shared_ptr<void> memory(block.address, [poison, bytes, device = block.device](void* address) {
    const std::shared_ptr<void> given_back(address, [poison, bytes](void* begin) {
      poison();
      EmulatedMemory::get().give_back(begin, bytes);
    });
    const c10::Stream users(c10::Stream::DEFAULT, {kVirtual, device});
    if (!is_idle(users)) enqueue(users, [given_back] {});
  });
  const std::lock_guard lock(block.work->mutex);
  block.work->memory.push_back(memory);
}

// When every stream has come so far nobody can read the memory any more, and whoever does reads NaN.
void free_emulated(const Block& block) {
  auto& state = state_of(block.device);
  const size_t bytes = rounded(block.bytes);
  state.freed_bytes += static_cast<int64_t>(bytes);
  const std::shared_ptr<void> memory(block.address, [&state, bytes](void* address) {
    auto& all = EmulatedMemory::get();
    std::memset(all.host_address(address), kPoison, bytes);
    all.give_back(address, bytes);
    state.freed_bytes -= static_cast<int64_t>(bytes);
  });
  for (const auto& stream : block.streams)
    if (!is_idle(stream)) enqueue(stream, [memory] {});
}

void free_block(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  auto& state = state_of(block->device);
  if (block->writer) block->writer->release(block->number, static_cast<int64_t>(block->bytes));
  else if (state.writer) state.writer->release(-1, static_cast<int64_t>(block->bytes));
  state.allocated_bytes -= static_cast<int64_t>(block->bytes);
  if (state.is_counting) made_up_addresses().give_back(reinterpret_cast<size_t>(block->address) - kMadeUp, rounded(block->bytes));
  else block->work ? keep_for_work(*block) : free_emulated(*block);
}

// As a GPU's allocator says it.
void check_room(const DeviceState& state, c10::Device device, size_t bytes) {
  const int64_t all = emulated_memory_bytes(), taken = state.allocated_bytes;
  TORCH_CHECK_WITH(OutOfMemoryError, all == 0 || taken + static_cast<int64_t>(bytes) <= all, device.str(), " has ", base::format_bytes(all),
                   ", of which ", base::format_bytes(taken), " are allocated, and ", base::format_bytes(static_cast<int64_t>(bytes)),
                   " more were asked for");
}

class VirtualAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const auto index = current_index();
    const c10::Device device(kVirtual, index);
    if (bytes == 0) return {nullptr, nullptr, &c10::detail::deleteNothing, device};
    auto& state = state_of(index);
    auto block = std::make_unique<Block>(index, nullptr, bytes, state.writer);
    if (state.is_counting) {
      const auto begin = made_up_addresses().take(rounded(bytes));
      if (!begin) throw base::Error(fmt::format("a counting device has no address left for {} bytes", bytes));
      block->address = reinterpret_cast<void*>(kMadeUp + *begin);
    } else {
      get_on(current_stream(device));
      check_room(state, device, bytes);
      block->address = EmulatedMemory::get().take(rounded(bytes));
      block->streams.push_back(current_stream(device));
      block->work = capture_of(current_stream(device));
    }
    const int64_t now = state.allocated_bytes += static_cast<int64_t>(bytes);
    int64_t peak = state.peak_bytes;
    while (peak < now && !state.peak_bytes.compare_exchange_weak(peak, now)) {
    }
    ++state.allocations;
    if (block->writer) block->number = block->writer->allocation(static_cast<int64_t>(bytes));
    void* address = block->address;
    return {address, block.release(), &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    if (state_of(current_index()).is_counting) return;
    const auto& memory = EmulatedMemory::get();
    std::memcpy(memory.host_address(to), memory.host_address(const_cast<void*>(from)), bytes);
  }
};

Block* block_of(const at::Tensor& tensor) { return static_cast<Block*>(tensor.storage().data_ptr().get_context()); }

}  // namespace

int64_t emulated_memory_bytes() {
  static const int64_t bytes = [] {
    const auto& asked = base::environment().emulated_memory_mib;
    if (asked.empty()) return int64_t{0};
    const auto mib = base::parse_integer(asked);
    if (!mib || *mib < 1 || *mib > int64_t{1} << 30)
      throw base::ConfigError("INGOT_EMULATED_MEMORY_MIB is '{}': it takes a number of MiB", asked);
    return *mib << 20;
  }();
  return bytes;
}

c10::Allocator* virtual_allocator() {
  static auto& allocator = *new VirtualAllocator;
  return &allocator;
}

void* host_address(void* shown) { return EmulatedMemory::get().host_address(shown); }

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return tensor;
}

c10::Storage shadow_of(const c10::Storage& storage, c10::DispatchKey key) {
  const bool is_host = key == c10::DispatchKey::CPU;
  const auto type = is_host ? at::kCPU : at::kMeta;
  void* address = is_host ? host_address(storage.mutable_data()) : nullptr;
  return {c10::Storage::use_byte_size_t(), storage.nbytes(), c10::DataPtr(address, type), c10::GetAllocator(type), /*resizable=*/true};
}

at::Tensor shadow_of(const at::Tensor& tensor, c10::DispatchKey key) { return tensor_over(shadow_of(tensor.storage(), key), key, tensor); }

at::Tensor host_view(const at::Tensor& tensor) {
  TORCH_CHECK(is_emulated(tensor.device()), "only an emulated device's memory can be seen as the host's, not that of ", tensor.device());
  run_until(end_of(current_stream(tensor.device())));
  auto storage = shadow_of(tensor.storage(), c10::DispatchKey::CPU);
  auto owner = std::make_unique<c10::Storage>(tensor.storage());
  void* address = storage.mutable_data();
  storage.set_data_ptr(c10::DataPtr(
      address, owner.release(), [](void* held) { delete static_cast<c10::Storage*>(held); }, at::kCPU));
  return tensor_over(std::move(storage), c10::DispatchKey::CPU, tensor);
}

void record_use(const c10::DataPtr& memory, const c10::Stream& stream) {
  auto* block = static_cast<Block*>(memory.get_context());
  if (!block || memory.get_deleter() != &free_block || state_of(block->device).is_counting) return;
  if (std::find(block->streams.begin(), block->streams.end(), stream) == block->streams.end()) block->streams.push_back(stream);
}

void declare_contents(const at::Tensor& tensor, const at::Tensor& host) {
  if (!is_counting(tensor) || tensor.numel() == 0) return;
  TORCH_CHECK(tensor.is_contiguous() && host.numel() == tensor.numel(), "contents of shape ", host.sizes(), " for a tensor of shape ",
              tensor.sizes());
  auto* block = block_of(tensor);
  const int64_t all = static_cast<int64_t>(block->bytes) / tensor.element_size();
  if (!block->contents.defined() || block->contents.scalar_type() != tensor.scalar_type() || block->contents.numel() != all)
    block->contents = at::zeros({all}, tensor.options().device(at::kCPU));
  block->contents.narrow(0, tensor.storage_offset(), tensor.numel()).copy_(host.reshape(-1));
}

std::optional<at::Tensor> contents_of(const at::Tensor& tensor) {
  if (!is_counting(tensor) || tensor.numel() == 0) return std::nullopt;
  const auto* block = block_of(tensor);
  if (!block || !block->contents.defined() || block->contents.scalar_type() != tensor.scalar_type()) return std::nullopt;
  return block->contents.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void forget_contents(const at::Tensor& tensor) {
  if (auto* block = is_counting(tensor) && tensor.has_storage() ? block_of(tensor) : nullptr) block->contents.reset();
}

}  // namespace ingot::device

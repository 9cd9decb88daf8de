#include "checkpoint/storage/posix_source.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

constexpr int64_t kDirectBytes = int64_t{1} << 19;  // less is better read with what lies around it
constexpr int64_t kBlockBytes = int64_t{1} << 20;   // of one direct read, without its ragged ends

// Memory of this thread that direct reads go to: they need aligned memory, and tensors lie where they lie.
char* block_of_this_thread() {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  thread_local std::unique_ptr<char, Free> block(static_cast<char*>(std::aligned_alloc(kBlockAlignment, kBlockBytes + 2 * kBlockAlignment)));
  return block.get();
}

int64_t aligned_down(int64_t bytes) { return bytes / kBlockAlignment * kBlockAlignment; }
int64_t aligned_up(int64_t bytes) { return aligned_down(bytes + kBlockAlignment - 1); }

}  // namespace

PosixSource::PosixSource(CallHook* hook, const fs::path& file) : file_(hook, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK) {
  struct stat status {};
  must(hook, Call::status, file, [&] { return ::fstat(file_.number(), &status); });
  if (!S_ISREG(status.st_mode)) throw CheckpointError("{} is not a regular file", file.string());
  size_bytes_ = status.st_size;
}

PosixSource::~PosixSource() {
  if (mapped_) ::munmap(mapped_, static_cast<size_t>(size_bytes_));
  if (direct_ >= 0) ::close(direct_);
}

bool PosixSource::can_read_directly() const {
  std::call_once(first_, [&] {
    mapped_ = ::mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ, MAP_SHARED, file_.number(), 0);
    if (mapped_ == MAP_FAILED) mapped_ = nullptr;
    // By the open file, as its name may have gone to another one meanwhile.
    if (mapped_) direct_ = ::open(fmt::format("/proc/self/fd/{}", file_.number()).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  });
  return direct_ >= 0;
}

void PosixSource::read_at(int64_t offset, void* destination, int64_t size_bytes) const {
  char* next = static_cast<char*>(destination);
  // All of it at once: what the kernel reads ahead of its own accord is for one reader, and many share this descriptor.
  if (size_bytes >= kDirectBytes) ::posix_fadvise(file_.number(), offset, size_bytes, POSIX_FADV_WILLNEED);
  while (size_bytes > 0) {
    const ssize_t got = attempt(file_.hook(), Call::read, file_.path(), static_cast<size_t>(size_bytes),
                                [&](size_t allowed) { return ::pread(file_.number(), next, allowed, offset); });
    if (got < 0) throw call_failure(Call::read, file_.path(), errno);
    if (got == 0)
      throw CheckpointError("{} ends at byte {}, {} bytes too early; it was truncated", file_.path().string(), offset, size_bytes);
    next += got;
    offset += got;
    size_bytes -= got;
  }
}

void PosixSource::read_past_cache(int64_t offset, void* destination, int64_t size_bytes) const {
  char* next = static_cast<char*>(destination);
  while (size_bytes > 0) {
    const int64_t part_bytes = std::min(size_bytes, kBlockBytes);
    const bool is_read = part_bytes >= kDirectBytes && can_read_directly() && !is_cached(offset, part_bytes) &&
                         read_directly(offset, next, part_bytes);
    if (!is_read) read_at(offset, next, part_bytes);
    next += part_bytes;
    offset += part_bytes;
    size_bytes -= part_bytes;
  }
}

// All of it; a kernel that does not tell says yes.
bool PosixSource::is_cached(int64_t offset, int64_t size_bytes) const {
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE), begin = offset / page_bytes * page_bytes;
  if (offset + size_bytes > size_bytes_) return false;
  std::vector<unsigned char> pages(static_cast<size_t>((offset + size_bytes - begin + page_bytes - 1) / page_bytes));
  if (::mincore(static_cast<char*>(mapped_) + begin, static_cast<size_t>(offset + size_bytes - begin), pages.data()) != 0) return false;
  return std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
}

// False when the file system turns out not to do it, or does it in parts that are no longer aligned.
bool PosixSource::read_directly(int64_t offset, char* destination, int64_t size_bytes) const {
  char* block = block_of_this_thread();
  if (!block) return false;
  const int64_t begin = aligned_down(offset), end = aligned_up(offset + size_bytes);
  int64_t done = 0;
  while (begin + done < offset + size_bytes) {
    const ssize_t got = attempt(file_.hook(), Call::read, file_.path(), static_cast<size_t>(end - begin - done),
                                [&](size_t allowed) { return ::pread(direct_, block + done, allowed, begin + done); });
    if (got < 0 && errno != EINVAL) throw call_failure(Call::read, file_.path(), errno);
    if (got <= 0) return false;
    done += got;
    if (done % kBlockAlignment != 0 && begin + done < offset + size_bytes) return false;
  }
  std::memcpy(destination, block + (offset - begin), static_cast<size_t>(size_bytes));
  return true;
}

}  // namespace ingot::checkpoint

#include "data/join_datasets.h"

#include <algorithm>

#include "base/concatenate_files.h"
#include "base/error.h"
#include "data/dataset_files.h"

namespace ingot::data {
namespace {

using namespace dataset_files;

std::string with_suffix(const fs::path& prefix, const char* suffix) { return prefix.string() + suffix; }

struct Counts {
  int64_t tokens = 0, sequences = 0, documents = 0;
};

// What the index of a part says; its bytes are in the order in which they are joined.
class PartIndex {
 public:
  PartIndex(const fs::path& prefix, TokenType type) : file_(with_suffix(prefix, ".idx")) {
    const auto* at = file_.data();
    if (file_.size_bytes() >= kIndexHeaderBytes && std::memcmp(at, kIndexMagic.data(), kIndexMagic.size()) == 0 &&
        load<uint8_t>(at + 17, 0) == static_cast<uint8_t>(type)) {
      counts_.sequences = load<int64_t>(at + 18, 0);
      counts_.documents = load<int64_t>(at + 26, 0) - 1;
      const auto payload = file_.size_bytes() - kIndexHeaderBytes;
      is_whole_ = counts_.sequences >= 0 && counts_.documents >= 0 && counts_.sequences <= payload / 12 &&
                  counts_.documents < payload / 8 && payload == 12 * counts_.sequences + 8 * (counts_.documents + 1);
    }
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(with_suffix(prefix, ".bin"), error));
    for (int64_t s = 0; is_whole_ && s < counts_.sequences; ++s) counts_.tokens += load<int32_t>(lengths(), s);
    if (error || !is_whole_ || bytes != counts_.tokens * size_bytes(type))
      throw base::DataError("{0}.bin and {0}.idx are damaged, or do not belong together: delete both and make them again", prefix.string());
  }
  const Counts& counts() const { return counts_; }
  const std::byte* lengths() const { return file_.data() + kIndexHeaderBytes; }
  int64_t document(int64_t number) const { return load<int64_t>(lengths() + 12 * counts_.sequences, number); }

 private:
  base::MappedFile file_;
  Counts counts_;
  bool is_whole_ = false;
};

// Bits of masks behind one another; those of parts that have none are set.
class MaskWriter {
 public:
  explicit MaskWriter(const fs::path& path) : file_(path) { file_.put(kMaskMagic); }

  void add(const fs::path& prefix, int64_t tokens) {
    if (!fs::exists(with_suffix(prefix, ".mask"))) {
      for (int64_t done = 0; done < tokens; done += 8) add_bits(0xff, std::min<int64_t>(8, tokens - done));
      return;
    }
    const base::MappedFile mask(with_suffix(prefix, ".mask"));
    const auto begin = static_cast<int64_t>(kMaskMagic.size());
    if (mask.size_bytes() != begin + (tokens + 7) / 8)
      throw base::DataError("{} is damaged: delete it and make it again", mask.path().string());
    for (int64_t done = 0; done < tokens; done += 8)
      add_bits(std::to_integer<unsigned>(mask.data()[begin + done / 8]), std::min<int64_t>(8, tokens - done));
  }
  void close() {
    if (count_ > 0) file_.put(static_cast<uint8_t>(bits_));
    file_.close_durably();
  }

 private:
  void add_bits(unsigned bits, int64_t count) {
    bits_ |= (bits & ((1u << count) - 1)) << count_;
    count_ += count;
    if (count_ < 8) return;
    file_.put(static_cast<uint8_t>(bits_));
    bits_ >>= 8;
    count_ -= 8;
  }

  BufferedFile file_;
  unsigned bits_ = 0;  // the last ones, fewer than eight
  int64_t count_ = 0;
};

void join_indexes(const std::vector<fs::path>& parts, const fs::path& prefix, TokenType type) {
  Counts total;
  BufferedFile lengths(aside(prefix, ".lengths")), documents(aside(prefix, ".documents"));
  documents.put(int64_t{0});
  for (const auto& part : parts) {
    const PartIndex index(part, type);
    lengths.file.write(index.lengths(), 4 * index.counts().sequences);
    for (int64_t d = 1; d <= index.counts().documents; ++d) documents.put(total.sequences + index.document(d));
    total.sequences += index.counts().sequences;
    total.documents += index.counts().documents;
  }
  lengths.close();
  documents.close();
  write_index(prefix, type, total.sequences, total.documents);
}

bool join_masks(const std::vector<fs::path>& parts, const fs::path& prefix, TokenType type) {
  if (std::none_of(parts.begin(), parts.end(), [](const auto& part) { return fs::exists(with_suffix(part, ".mask")); })) return false;
  MaskWriter mask(aside(prefix, ".mask"));
  for (const auto& part : parts) mask.add(part, static_cast<int64_t>(fs::file_size(with_suffix(part, ".bin"))) / size_bytes(type));
  mask.close();
  return true;
}

struct RemoveSideFiles {
  const fs::path& prefix;
  ~RemoveSideFiles() {
    std::error_code ignored;
    for (const auto* suffix : {".bin", ".lengths", ".documents", ".mask", ".idx"}) fs::remove(aside(prefix, suffix), ignored);
  }
};

}  // namespace

void join_datasets(const std::vector<fs::path>& parts, const fs::path& prefix, TokenType type) {
  const RemoveSideFiles remove_at_end{prefix};
  join_indexes(parts, prefix, type);
  const bool has_mask = join_masks(parts, prefix, type);
  std::vector<fs::path> bins;
  for (const auto& part : parts) bins.emplace_back(with_suffix(part, ".bin"));
  base::concatenate_files(bins, aside(prefix, ".bin"));
  publish(prefix, ".tmp", has_mask, prefix);
}

}  // namespace ingot::data

#include "data/indexed_dataset.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "data/dataset_files.h"

namespace ingot::data {
namespace {

using base::DataError;
using namespace dataset_files;

bool is_token_type(uint8_t code) { return (code >= 1 && code <= 5) || code == 8; }

// The error of an index that contradicts itself; all of them have the same way out.
template <class... Args>
DataError broken(const fs::path& prefix, fmt::format_string<Args...> what, Args&&... args) {
  return DataError("{}.idx: {}; the file is damaged or from another tool: make it again with 'ingot data tokenize'", prefix.string(),
                   fmt::format(what, std::forward<Args>(args)...));
}

// The same of the entry at this byte of the index.
template <class... Args>
DataError broken_at(const fs::path& prefix, int64_t offset, fmt::format_string<Args...> what, Args&&... args) {
  return broken(prefix, "byte {}: {}", offset, fmt::format(what, std::forward<Args>(args)...));
}

// Widens stored ids; false when one is negative or beyond int32.
template <class Stored>
bool widen(const std::byte* from, std::span<int32_t> out) {
  bool good = true;
  for (size_t i = 0; i < out.size(); ++i) {
    const auto value = load<Stored>(from, static_cast<int64_t>(i));
    if constexpr (std::is_signed_v<Stored>) good &= value >= 0;
    if constexpr (sizeof(Stored) == 8) good &= value <= std::numeric_limits<int32_t>::max();
    out[i] = static_cast<int32_t>(value);
  }
  return good;
}

bool widen(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::uint8: return widen<uint8_t>(from, out);
    case TokenType::int8: return widen<int8_t>(from, out);
    case TokenType::int16: return widen<int16_t>(from, out);
    case TokenType::int64: return widen<int64_t>(from, out);
    case TokenType::uint16: return widen<uint16_t>(from, out);
    case TokenType::int32: break;
  }
  return widen<int32_t>(from, out);
}

// By the first bytes of an index.
TokenType token_type_of(const fs::path& prefix, std::span<const std::byte> header) {
  if (static_cast<int64_t>(header.size()) < kIndexHeaderBytes || std::memcmp(header.data(), kIndexMagic.data(), kIndexMagic.size()) != 0)
    throw DataError("{}.idx is not a Megatron index (it does not begin with MMIDIDX): make one with 'ingot data tokenize'",
                    prefix.string());
  if (const auto version = load<uint64_t>(header.data() + 9, 0); version != 1)
    throw DataError("{}.idx has version {} of Megatron's index; only version 1 is known", prefix.string(), version);
  const auto code = load<uint8_t>(header.data() + 17, 0);
  if (!is_token_type(code)) throw broken(prefix, "dtype code {} is not one of the integer types 1 to 5 and 8", code);
  return static_cast<TokenType>(code);
}

}  // namespace

std::string_view name_of(TokenType type) {
  switch (type) {
    case TokenType::uint8: return "uint8";
    case TokenType::int8: return "int8";
    case TokenType::int16: return "int16";
    case TokenType::int64: return "int64";
    case TokenType::uint16: return "uint16";
    case TokenType::int32: break;
  }
  return "int32";
}

int64_t size_bytes(TokenType type) {
  switch (type) {
    case TokenType::uint8:
    case TokenType::int8: return 1;
    case TokenType::int16:
    case TokenType::uint16: return 2;
    case TokenType::int64: return 8;
    case TokenType::int32: break;
  }
  return 4;
}

TokenType token_type_for(int64_t vocab_size) { return vocab_size < 65500 ? TokenType::uint16 : TokenType::int32; }

fs::path dataset_prefix(const fs::path& path) {
  const auto extension = path.extension();
  return extension == ".bin" || extension == ".idx" ? fs::path(path).replace_extension() : path;
}

void check_is_there(const fs::path& path) {
  for (const char* suffix : {".idx", ".bin"}) {
    const auto name = dataset_prefix(path).string() + suffix;
    if (is_url(name)) static_cast<void>(remote_files().open(name));
    else const base::MappedFile file(name);
  }
}

int64_t tokens_in(const fs::path& path) {
  const auto prefix = dataset_prefix(path);
  const auto index = prefix.string() + ".idx", bin = prefix.string() + ".bin";
  if (!is_url(index)) {
    const auto type = token_type_of(prefix, base::MappedFile(index).bytes());
    return base::MappedFile(bin).size_bytes() / size_bytes(type);
  }
  const auto remote = remote_files().open(index);
  std::vector<std::byte> header(static_cast<size_t>(std::min(remote->size_bytes(), kIndexHeaderBytes)));
  remote->read_at(0, header.data(), static_cast<int64_t>(header.size()));
  const auto type = token_type_of(prefix, header);
  return remote_files().open(bin)->size_bytes() / size_bytes(type);
}

bool has_index(const fs::path& path) {
  const auto name = dataset_prefix(path).string() + ".idx";
  return is_url(name) || fs::exists(name);
}

static fs::path local_copy(const std::string& name, const CacheOptions& options) {
  return is_url(name) ? CachedFile(BlockCache::of(options), name).local_copy() : fs::path(name);
}

IndexedDataset::IndexedDataset(const fs::path& path, const CacheOptions& cache)
    : prefix_(dataset_prefix(path)), index_(local_copy(prefix_.string() + ".idx", cache)) {
  const auto bin = prefix_.string() + ".bin";
  if (is_url(bin)) remote_tokens_ = std::make_unique<CachedFile>(BlockCache::of(cache), bin);
  else tokens_file_.emplace(bin);
  const std::byte* at = index_.data();
  type_ = token_type_of(prefix_, index_.bytes());
  const auto sequences = load<uint64_t>(at + 18, 0), entries = load<uint64_t>(at + 26, 0);
  const auto payload = static_cast<uint64_t>(index_.size_bytes() - kIndexHeaderBytes);
  if (sequences > payload / 12 || entries > (payload - 12 * sequences) / 8)
    throw broken(prefix_, "{} sequences and {} document entries need more than its {} bytes", sequences, entries, index_.size_bytes());
  // Multimodal writers append one mode byte per sequence; they do not matter to text.
  if (const uint64_t rest = payload - 12 * sequences - 8 * entries; rest != 0 && rest != sequences)
    throw broken(prefix_, "{} bytes follow the {} sequences and {} document entries", rest, sequences, entries);
  if (entries == 0) throw broken(prefix_, "it has no document entries");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(entries) - 1;
  lengths_ = at + kIndexHeaderBytes;
  pointers_ = lengths_ + 4 * sequences_;
  doc_index_ = pointers_ + 8 * sequences_;
  tokens_ = tokens_bytes() / data::size_bytes(type_);
  check_ends();
  const auto mask = prefix_.string() + ".mask";
  std::error_code none;
  if (is_url(mask) ? !remote_files().is_there(mask) : !fs::exists(mask, none)) return;
  mask_.emplace(local_copy(mask, cache));
  if (mask_->size_bytes() != static_cast<int64_t>(kMaskMagic.size()) + (tokens_ + 7) / 8 ||
      std::memcmp(mask_->data(), kMaskMagic.data(), kMaskMagic.size()) != 0)
    throw DataError("{} is not the mask of {} tokens: make both again with 'ingot data tokenize --chat', or delete it to learn every token",
                    mask, tokens_);
}

bool IndexedDataset::is_learned(int64_t position) const {
  if (!mask_) return true;
  const auto byte = std::to_integer<unsigned>(mask_->data()[static_cast<int64_t>(kMaskMagic.size()) + position / 8]);
  return (byte >> (position % 8) & 1) != 0;
}

// Where the bytes of the tokens of a sequence begin, as they must in this file whatever the other entries say.
int64_t IndexedDataset::sequence_begin_byte(int64_t sequence) const {
  const auto pointer = load<int64_t>(pointers_, sequence);
  if (pointer < 0 || pointer > tokens_bytes() || pointer % data::size_bytes(type_) != 0 || (sequence == 0 && pointer != 0))
    throw broken_at(prefix_, offset_of(pointers_ + 8 * sequence), "sequence {} begins at byte {} of {}, in tokens of {}", sequence, pointer,
                    tokens_bytes(), data::size_bytes(type_));
  return pointer;
}

int64_t IndexedDataset::sequence_end_byte(int64_t sequence) const {
  const auto length = load<int32_t>(lengths_, sequence);
  if (length < 0) throw broken_at(prefix_, offset_of(lengths_ + 4 * sequence), "sequence {} has length {}", sequence, length);
  return sequence_begin_byte(sequence) + length * data::size_bytes(type_);
}

int64_t IndexedDataset::first_sequence(int64_t document) const {
  const auto entry = load<int64_t>(doc_index_, document);
  if (entry < 0 || entry > sequences_ || (document == 0 && entry != 0))
    throw broken_at(prefix_, offset_of(doc_index_ + 8 * document), "document {} begins at sequence {} of {}", document, entry, sequences_);
  return entry;
}

void IndexedDataset::check_ends() const {
  first_sequence(0);
  if (const auto last = load<int64_t>(doc_index_, documents_); last != sequences_)
    throw broken_at(prefix_, offset_of(doc_index_ + 8 * documents_), "the documents end at sequence {} of {}", last, sequences_);
  if (sequences_ > 0) sequence_begin_byte(0);
  const int64_t described = sequences_ == 0 ? 0 : sequence_end_byte(sequences_ - 1);
  if (described != tokens_bytes())
    throw DataError("{0}.bin has {1} bytes, but {0}.idx describes {2}: the two files do not belong together or one is cut short",
                    prefix_.string(), tokens_bytes(), described);
}

void IndexedDataset::check_whole_index() const {
  constexpr int64_t kReleasedEntries = int64_t{1} << 20;
  const auto release_after = [&](int64_t entry) {
    if (entry % kReleasedEntries == kReleasedEntries - 1) index_.release_pages();
  };
  for (int64_t s = 0; s < sequences_; ++s) sequence_begin(s), release_after(s);
  for (int64_t d = 0; d <= documents_; ++d) document_begin(d), release_after(d);
}

int64_t IndexedDataset::sequence_begin(int64_t sequence) const {
  if (sequence < 0 || sequence > sequences_) throw DataError("{}: there is no sequence {} of {}", prefix_.string(), sequence, sequences_);
  if (sequence == sequences_) return tokens_;
  const int64_t begin = sequence_begin_byte(sequence);
  // Sequences lie back to back, as every known writer leaves them.
  if (sequence > 0 && sequence_end_byte(sequence - 1) != begin)
    throw broken_at(prefix_, offset_of(pointers_ + 8 * sequence), "sequence {} begins at byte {} where {} was due", sequence, begin,
                    sequence_end_byte(sequence - 1));
  return begin / data::size_bytes(type_);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  if (document < 0 || document > documents_) throw DataError("{}: there is no document {} of {}", prefix_.string(), document, documents_);
  const int64_t sequence = first_sequence(document), begin = sequence_begin(sequence);
  const int64_t previous = document == 0 ? 0 : first_sequence(document - 1);
  const int64_t previous_byte = previous == sequences_ ? tokens_bytes() : sequence_begin_byte(previous);
  if (sequence < previous || begin < previous_byte / data::size_bytes(type_))
    throw broken_at(prefix_, offset_of(doc_index_ + 8 * document), "document {} begins at sequence {}, before document {} at sequence {}",
                    document, sequence, document - 1, previous);
  return begin;
}

int64_t IndexedDataset::document_at(int64_t position) const {
  if (position < 0 || position >= tokens_) throw DataError("{}: there is no token {} of {}", prefix_.string(), position, tokens_);
  // Without a look at the neighbours, each in pages of its own.
  const auto is_behind = [&](int64_t document) {
    const int64_t sequence = document == documents_ ? sequences_ : first_sequence(document);
    return position < (sequence == sequences_ ? tokens_ : sequence_begin_byte(sequence) / data::size_bytes(type_));
  };
  // The last document that begins at or before `position`: from where it would be if all were of one length, in growing steps, then by
  // halves. In a large index that touches a few pages where halves alone touch two for each.
  const auto guess = static_cast<int64_t>(static_cast<__int128>(position) * documents_ / tokens_);
  int64_t low = 0, high = documents_, step = 64;
  if (is_behind(guess)) {
    for (high = guess; high - step > 0 && is_behind(high - step); step *= 4) high -= step;
    low = std::max<int64_t>(0, high - step);
  } else {
    for (low = guess; low + step < documents_ && !is_behind(low + step); step *= 4) low += step;
    high = std::min(documents_, low + step);
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (is_behind(middle) ? high : low) = middle;
  }
  if (document_begin(low) > position || document_begin(low + 1) <= position)
    throw broken_at(prefix_, offset_of(doc_index_ + 8 * low), "documents around {} do not lie in the order of their tokens", low);
  return low;
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (first < 0 || count > tokens_ || first > tokens_ - count)
    throw DataError("{}: tokens {} to {} were asked for, but it has {}", prefix_.string(), first, first + count, tokens_);
  const int64_t width = data::size_bytes(type_);
  std::vector<std::byte> fetched(remote_tokens_ ? static_cast<size_t>(count * width) : 0);
  if (remote_tokens_) remote_tokens_->read(first * width, fetched);
  constexpr int64_t kPageBytes = 4096;
  if (reads_are_random_ && count * width > kPageBytes) tokens_file_->read_ahead(first * width, (first + count) * width);
  if (!widen(type_, remote_tokens_ ? fetched.data() : tokens_file_->data() + first * width, out))
    throw DataError("{}.bin has an id that is negative or beyond 2^31 between tokens {} and {}", prefix_.string(), first, first + count);
}

void IndexedDataset::expect_random_reads() {
  index_.expect_random_reads();
  if (tokens_file_) tokens_file_->expect_random_reads(), reads_are_random_ = true;
}

void IndexedDataset::read_ahead(int64_t first, int64_t count) const {
  const int64_t width = data::size_bytes(type_);
  if (remote_tokens_) remote_tokens_->read_ahead(std::max<int64_t>(0, first) * width, (first + count) * width);
}

void IndexedDataset::read_targets(int64_t first, std::span<int32_t> out) const {
  read(first, out);
  if (!mask_) return;
  for (size_t i = 0; i < out.size(); ++i)
    if (!is_learned(first + static_cast<int64_t>(i))) out[i] = kIgnoredTarget;
}

namespace {

constexpr int64_t kMaxSequenceTokens = int64_t{1} << 30;  // lengths are int32: a longer document becomes several sequences

template <class Stored>
void narrow(std::span<const int32_t> tokens, std::string& out) {
  const size_t old = out.size();
  out.resize(old + tokens.size() * sizeof(Stored));
  char* to = out.data() + old;
  for (const int32_t token : tokens) {
    const auto stored = static_cast<Stored>(token);
    std::memcpy(to, &stored, sizeof(Stored));
    to += sizeof(Stored);
  }
}

int64_t largest_id(TokenType type) {
  switch (type) {
    case TokenType::uint8: return 255;
    case TokenType::int8: return 127;
    case TokenType::int16: return 32767;
    case TokenType::uint16: return 65535;
    default: return std::numeric_limits<int32_t>::max();
  }
}

}  // namespace

struct IndexedDatasetWriter::BufferedFile : dataset_files::BufferedFile {
  using dataset_files::BufferedFile::BufferedFile;
};

IndexedDatasetWriter::IndexedDatasetWriter(const fs::path& prefix, TokenType type) : prefix_(dataset_prefix(prefix)), type_(type) {
  if (prefix_.has_parent_path()) base::make_directories(prefix_.parent_path());
  bin_ = std::make_unique<BufferedFile>(aside(prefix_, ".bin"));
  lengths_ = std::make_unique<BufferedFile>(aside(prefix_, ".lengths"));
  doc_index_ = std::make_unique<BufferedFile>(aside(prefix_, ".documents"));
  doc_index_->put(int64_t{0});
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (!finished_) remove_side_files();
}

void IndexedDatasetWriter::remove_side_files() {
  bin_.reset();
  lengths_.reset();
  doc_index_.reset();
  mask_.reset();
  std::error_code ignored;
  for (const auto* suffix : {".bin", ".lengths", ".documents", ".mask", ".idx"}) fs::remove(aside(prefix_, suffix), ignored);
}

void IndexedDatasetWriter::mark(int64_t count, bool learned) {
  if (!mask_) {
    if (learned) return;
    mask_ = std::make_unique<BufferedFile>(aside(prefix_, ".mask"));
    mask_->put(kMaskMagic);
    for (int64_t byte = 0; byte < tokens_ / 8; ++byte) mask_->put(uint8_t{0xff});
    mask_byte_ = static_cast<uint8_t>((1 << (tokens_ % 8)) - 1);
  }
  for (int64_t position = tokens_; position < tokens_ + count; ++position) {
    if (learned) mask_byte_ = static_cast<uint8_t>(mask_byte_ | 1 << (position % 8));
    if (position % 8 != 7) continue;
    mask_->put(mask_byte_);
    mask_byte_ = 0;
  }
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens, bool learned) {
  mark(static_cast<int64_t>(tokens.size()), learned);
  const int64_t largest = largest_id(type_);
  for (const int32_t token : tokens) {
    if (token < 0 || token > largest) throw DataError("{}.bin: token id {} does not fit {}", prefix_.string(), token, name_of(type_));
  }
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min<size_t>(tokens.size(), static_cast<size_t>(kMaxSequenceTokens - sequence_tokens_)));
    switch (size_bytes(type_)) {
      case 1: narrow<uint8_t>(part, bin_->pending); break;
      case 2: narrow<uint16_t>(part, bin_->pending); break;
      case 8: narrow<int64_t>(part, bin_->pending); break;
      default: narrow<int32_t>(part, bin_->pending);
    }
    sequence_tokens_ += static_cast<int64_t>(part.size());
    tokens_ += static_cast<int64_t>(part.size());
    if (sequence_tokens_ == kMaxSequenceTokens) end_sequence();
    bin_->flush_if_full();
    tokens = tokens.subspan(part.size());
  }
}

void IndexedDatasetWriter::end_sequence() {
  lengths_->put(static_cast<int32_t>(sequence_tokens_));
  sequence_tokens_ = 0;
  ++sequences_;
}

void IndexedDatasetWriter::end_document() {
  end_sequence();
  doc_index_->put(sequences_);
  ++documents_;
}

void IndexedDatasetWriter::finish() {
  if (finished_) return;
  if (sequence_tokens_ > 0) end_document();
  bin_->close_durably();
  lengths_->close();
  doc_index_->close();
  if (mask_ && tokens_ % 8 != 0) mask_->put(mask_byte_);
  if (mask_) mask_->close_durably();
  write_index();
  publish(prefix_, ".tmp", mask_ != nullptr, prefix_);
  remove_side_files();
  finished_ = true;
}

void IndexedDatasetWriter::write_index() { dataset_files::write_index(prefix_, type_, sequences_, documents_); }

}  // namespace ingot::data

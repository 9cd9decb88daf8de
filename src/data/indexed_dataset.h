// Token files in Megatron's indexed format: PREFIX.bin holds token ids back to back, PREFIX.idx says where each sequence
// begins and which sequences form a document (docs/data-formats.md, byte by byte). Seen from here a dataset is one stream
// of tokens cut into documents.
//
// An IndexedDataset maps both files. Opening costs the same for any number of documents: it checks the header, the sizes, and the first and
// the last entry; every other entry of the index is checked when it is used, and all of them by check_whole_index(). It may be read by any
// number of threads. Of files with a URL the index is copied first, and tokens are read in blocks (remote/block_cache.h). A writer belongs
// to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/files.h"
#include "data/remote/block_cache.h"

namespace ingot::data {

namespace fs = base::fs;

/// Where there is nothing to predict.
inline constexpr int32_t kIgnoredTarget = -100;

/// Megatron's dtype codes; floating-point ones (6 and 7) hold no tokens and are refused.
enum class TokenType : uint8_t { uint8 = 1, int8 = 2, int16 = 3, int32 = 4, int64 = 5, uint16 = 8 };

std::string_view name_of(TokenType type);
int64_t size_bytes(TokenType type);
/// The narrowest type that other readers expect for a vocabulary: uint16 up to 65,500 entries as Megatron has it, else int32.
TokenType token_type_for(int64_t vocab_size);

/// "corpus" for "corpus", "corpus.bin" and "corpus.idx": users name any of the three.
fs::path dataset_prefix(const fs::path& path);

/// Throws the error of a dataset whose files cannot be opened, without a look into them: an index may be large.
void check_is_there(const fs::path& path);
/// Of a dataset, by the size of its .bin and the beginning of its index. Throws FileError and DataError.
int64_t tokens_in(const fs::path& path);
/// Whether the index is there; of a URL true, unasked.
bool has_index(const fs::path& path);

class IndexedDataset {
 public:
  /// Throws DataError naming the file and what is wrong with it; FileError or ObjectStoreError when a file cannot be opened. `cache`: of
  /// files with a URL.
  explicit IndexedDataset(const fs::path& path, const CacheOptions& cache = {});

  const fs::path& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  int64_t tokens() const { return tokens_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }

  /// What is read are rows in random order: of local files no more than them. Before others read.
  void expect_random_reads();

  /// Throws the DataError of the first entry of the index that contradicts the others. O(sequences + documents).
  void check_whole_index() const;

  /// Position in the token stream at which a sequence begins; `sequence` may be sequences(), the end of the stream. Throws DataError where
  /// the index does not let it begin at the end of the one before.
  int64_t sequence_begin(int64_t sequence) const;
  /// Position at which a document begins; `document` may be documents(). Empty documents begin where the next one does. Never before the
  /// document in front of it: where the index says so, DataError.
  int64_t document_begin(int64_t document) const;
  int64_t document_tokens(int64_t document) const { return document_begin(document + 1) - document_begin(document); }
  /// The document that holds the token at `position` in [0, tokens()). O(log documents).
  int64_t document_at(int64_t position) const;

  /// Copies tokens [first, first + out.size()) of the stream. Throws DataError when an id does not fit int32 or is negative.
  void read(int64_t first, std::span<int32_t> out) const;
  /// The same with kIgnoredTarget in place of tokens that PREFIX.mask, where there is one, says not to learn: prompts.
  void read_targets(int64_t first, std::span<int32_t> out) const;
  /// Tokens [first, first + count), which clipped to the stream are asked for and not waited for; nothing to do for local files.
  void read_ahead(int64_t first, int64_t count) const;
  bool is_remote() const { return remote_tokens_ != nullptr; }
  bool has_mask() const { return mask_.has_value(); }
  bool is_learned(int64_t position) const;
  /// What was read of the files no longer counts as this process's memory, which would grow with the data otherwise.
  void release_pages() const {
    index_.release_pages();
    if (tokens_file_) tokens_file_->release_pages();
    if (mask_) mask_->release_pages();
  }

 private:
  void check_ends() const;
  int64_t first_sequence(int64_t document) const;
  int64_t sequence_begin_byte(int64_t sequence) const;
  int64_t sequence_end_byte(int64_t sequence) const;
  int64_t offset_of(const std::byte* entry) const { return entry - index_.data(); }
  int64_t tokens_bytes() const { return remote_tokens_ ? remote_tokens_->size_bytes() : tokens_file_->size_bytes(); }

  fs::path prefix_;
  base::MappedFile index_;
  std::optional<base::MappedFile> tokens_file_;  // or
  std::unique_ptr<CachedFile> remote_tokens_;
  std::optional<base::MappedFile> mask_;  // a bit for each token, from the lowest on, behind eight bytes of its own
  TokenType type_ = TokenType::int32;
  bool reads_are_random_ = false;
  int64_t tokens_ = 0, sequences_ = 0, documents_ = 0;
  const std::byte* lengths_ = nullptr;    // int32 [sequences], unaligned
  const std::byte* pointers_ = nullptr;   // int64 [sequences], byte offsets into the .bin, unaligned
  const std::byte* doc_index_ = nullptr;  // int64 [documents + 1], sequence numbers, unaligned
};

/// Writes a dataset of any size in constant memory. Nothing carries the final names before finish(), which makes the files
/// durable and renames the index last; a writer destroyed before that removes what it wrote.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const fs::path& prefix, TokenType type);
  IndexedDatasetWriter(const IndexedDatasetWriter&) = delete;
  IndexedDatasetWriter& operator=(const IndexedDatasetWriter&) = delete;
  ~IndexedDatasetWriter();

  /// Adds tokens to the present document. Throws DataError for an id that the token type cannot hold. The first ones that are not `learned`
  /// begin PREFIX.mask.
  void append(std::span<const int32_t> tokens, bool learned = true);
  void end_document();
  void add_document(std::span<const int32_t> tokens) {
    append(tokens);
    end_document();
  }
  /// Ends the last document if tokens are pending, then publishes both files.
  void finish();

  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }

 private:
  void end_sequence();
  void mark(int64_t count, bool learned);
  void write_index();
  void remove_side_files();

  fs::path prefix_;
  TokenType type_;
  struct BufferedFile;
  std::unique_ptr<BufferedFile> bin_, lengths_, doc_index_;  // the last two grow on disk, not in memory
  std::unique_ptr<BufferedFile> mask_;                       // null while all is learned
  uint8_t mask_byte_ = 0;                                    // of the last tokens, fewer than eight
  int64_t tokens_ = 0, sequences_ = 0, documents_ = 0, sequence_tokens_ = 0;
  bool finished_ = false;
};

}  // namespace ingot::data

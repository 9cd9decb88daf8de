#include "data/tokenize/tokenize.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "data/ordered_pipeline.h"
#include "data/remote/files.h"
#include "data/tokenize/encoded_block.h"
#include "data/tokenize/finished_dataset.h"
#include "data/tokenize/piece_folder.h"
#include "data/tokenize/text_hash.h"

namespace ingot::data {
namespace {

using base::DataError;

// A piece from its first block to its last.
struct PieceWork {
  std::unique_ptr<PieceClaim> claim;
  std::vector<PieceRecord::Source> sources;  // once it is read
};

struct ReadBlock {
  std::shared_ptr<PieceWork> work;
  TextBlock text;
  bool ends_piece = false;  // then there is no text
};

struct WrittenBlock {
  std::shared_ptr<PieceWork> work;
  EncodedBlock block;
  bool ends_piece = false;
};

// Takes pieces as long as there are free ones, and reads their blocks.
class PieceReader {
 public:
  PieceReader(const TokenizePlan& plan, PieceFolder& folder, std::mutex& mutex) : plan_(plan), folder_(folder), mutex_(mutex) {}

  bool next(ReadBlock& block) {
    if (!work_ && !begin()) return false;
    block.work = work_;
    if (reader_->next(block.text)) {
      const size_t number = reader_->range_number();
      hashes_[number].add(block.text.bytes);
      work_->sources[number].text_bytes += static_cast<int64_t>(block.text.bytes.size());
      return true;
    }
    end();
    block.ends_piece = true;
    return true;
  }

 private:
  bool begin() {
    auto work = std::make_shared<PieceWork>();
    {
      const std::lock_guard lock(mutex_);
      work->claim = folder_.claim_piece();
    }
    if (!work->claim) return false;
    auto ranges = plan_.ranges_of(plan_.pieces[work->claim->piece()]);
    for (const auto& range : ranges) work->sources.push_back({range.path.string(), "", range.begin, 0});
    hashes_ = std::vector<TextHash>(ranges.size());
    reader_ = std::make_unique<TextReader>(std::move(ranges), plan_.text);
    work_ = std::move(work);
    return true;
  }

  void end() {
    for (size_t i = 0; i < hashes_.size(); ++i) work_->sources[i].hash = hashes_[i].hex();
    for (const auto& range : plan_.pieces[work_->claim->piece()].ranges) {
      const auto& input = plan_.inputs[range.input];
      if (input.modified_ns != 0 && input_of(input.path) != input)
        throw DataError("{} was changed while it was read: call it again when nobody writes it", input.path.string());
    }
    work_.reset();
    reader_.reset();
  }

  const TokenizePlan& plan_;
  PieceFolder& folder_;
  std::mutex& mutex_;  // of the folder
  std::shared_ptr<PieceWork> work_;
  std::unique_ptr<TextReader> reader_;
  std::vector<TextHash> hashes_;
};

// Puts encoded blocks of a piece behind one another and ends documents where the text ended them.
class PieceWriter {
 public:
  PieceWriter(const SpecialTokens& special, const TokenizeOptions& options, TokenType type, const fs::path& prefix)
      : options_(options), special_(special), writer_(prefix, type) {}

  void add(const EncodedBlock& block) {
    auto rest = std::span<const int32_t>(block.tokens);
    for (const auto& part : block.parts) {
      if (part.tokens > 0 && !inside_) {
        inside_ = true;
        if (options_.prepend_bos) writer_.append({&special_.bos, 1});
      }
      writer_.append(rest.first(part.tokens), part.is_learned);
      if (part.is_learned) counts_.learned += static_cast<int64_t>(part.tokens);
      else has_mask_ = has_mask_ || part.tokens > 0;
      rest = rest.subspan(part.tokens);
      if (part.ends_document) end_document();
    }
    counts_.input_bytes += block.counts.bytes;
    counts_.bad_lines += block.counts.bad_lines;
    counts_.invalid_utf8 += block.counts.invalid_utf8;
    counts_.trim.add(block.trim);
    if (counts_.first_problem.empty()) counts_.first_problem = block.counts.first_problem;
    read_bytes_ += block.counts.read_bytes;
  }

  PieceRecord finish() {
    if (inside_) end_document();
    writer_.finish();
    counts_.documents = writer_.documents();
    counts_.tokens = writer_.tokens();
    return {counts_, has_mask_, {}};
  }
  int64_t read_bytes() const { return read_bytes_; }

 private:
  void end_document() {
    if (!inside_) {
      ++counts_.empty_documents;
      return;
    }
    if (options_.append_eos) writer_.append({&special_.eos, 1});
    writer_.end_document();
    inside_ = false;
  }

  const TokenizeOptions& options_;
  SpecialTokens special_;
  IndexedDatasetWriter writer_;
  TokenizeResult counts_;
  int64_t read_bytes_ = 0;
  bool inside_ = false, has_mask_ = false;  // inside: the present document has tokens
};

int threads_of(const TokenizeOptions& options) {
  constexpr int kMostThreads = 256;
  int sharers = 1;  // of this machine's cores: ranks of a launcher
  const auto& size = base::environment().local_size;
  std::from_chars(size.data(), size.data() + size.size(), sharers);
  return std::clamp(options.threads > 0 ? options.threads : base::usable_cores() / std::max(1, sharers), 1, kMostThreads);
}

TokenizeOptions checked(const Tokenizer& tokenizer, TokenizeOptions options) {
  if (options.chat_template) {
    options.append_eos = options.prepend_bos = false;  // the template writes them
    options.text.format = TextFormat::jsonl;
    options.text.whole_lines = true;
  }
  if (options.trim.most_tokens != 0 && (!options.chat_template || options.preferences || options.trim.most_tokens < 2))
    throw base::UsageError("--trim-to {}: it goes with --chat, not with --preferences, and is at least 2", options.trim.most_tokens);
  if (options.trim.open.empty() || options.trim.close.empty() || options.trim.open == options.trim.close)
    throw base::UsageError("--think-tags are two different texts, not '{}' and '{}'", options.trim.open, options.trim.close);
  if (options.append_eos && tokenizer.special().eos < 0)
    throw DataError(
        "{} has no end-of-sequence token to put after each document: name one in tokenizer_config.json or leave it out with --no-eos",
        tokenizer.path().string());
  if (options.prepend_bos && tokenizer.special().bos < 0) throw DataError("{} has no begin-of-sequence token", tokenizer.path().string());
  return options;
}

class Run {
 public:
  Run(const Tokenizer& tokenizer, const TokenizeOptions& options, const TokenizePlan& plan, const FinishedDataset& dataset,
      PieceFolder& folder, int64_t& own_pieces)
      : tokenizer_(tokenizer), options_(options), plan_(plan), dataset_(dataset), folder_(folder), own_pieces_(own_pieces) {}

  TokenizeResult run() {
    if (folder_.finished() > 0) base::log_info("{} of {} pieces are finished already", folder_.finished(), plan_.pieces.size());
    for (auto pause = kShortPause;; pause = std::min(2 * pause, kLongPause)) {
      const auto finished = folder_.finished();
      work();
      folder_.refresh();
      if (folder_.finished() > finished) pause = kShortPause;
      if (auto there = dataset_.find_own()) return *there;
      if (folder_.is_complete()) {
        if (const auto claim = folder_.claim_join()) {
          if (auto there = dataset_.find_own()) return *there;  // made between the two looks
          const auto made = dataset_.make(folder_, *claim);
          folder_.remove();
          return made;
        }
      }
      report(0);
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  static constexpr std::chrono::milliseconds kShortPause{50}, kLongPause{2000};

  void work() {
    const int threads = threads_of(options_);
    PieceReader reader(plan_, folder_, mutex_);
    std::unique_ptr<PieceWriter> writer;
    const auto bytes_of = [](const ReadBlock& block) { return static_cast<int64_t>(block.text.bytes.size()); };
    run_ordered<ReadBlock, WrittenBlock>(
        limits_of_blocks<ReadBlock>(threads, bytes_of), [&](ReadBlock& block) { return reader.next(block); },
        [&](ReadBlock block) {
          WrittenBlock done{std::move(block.work), {}, block.ends_piece};
          if (!block.ends_piece) done.block = encode(tokenizer_, block.text, options_);
          return done;
        },
        [&](WrittenBlock done) {
          auto& claim = *done.work->claim;
          claim.beat();
          if (!writer)
            writer = std::make_unique<PieceWriter>(tokenizer_.special(), options_, plan_.token_type,
                                                   folder_.aside(PieceFolder::name_of(claim.piece())));
          writer->add(done.block);
          if (done.ends_piece) finish(*done.work, *std::exchange(writer, nullptr));
          report(writer ? writer->read_bytes() : 0);
        });
  }

  void finish(const PieceWork& work, PieceWriter& writer) {
    auto record = writer.finish();
    record.sources = work.sources;
    const std::lock_guard lock(mutex_);
    folder_.finish(work.claim->piece(), record);
    ++own_pieces_;
  }

  void report(int64_t own_bytes) {
    int64_t done_bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      done_bytes = folder_.finished_bytes() + own_bytes;
    }
    if (!plan_.has_pipe) done_bytes = std::min(done_bytes, plan_.total_bytes);
    if (done_bytes <= reported_bytes_) return;
    reported_bytes_ = done_bytes;
    if (options_.progress) options_.progress(done_bytes, plan_.total_bytes);
  }

  const Tokenizer& tokenizer_;
  const TokenizeOptions& options_;
  const TokenizePlan& plan_;
  const FinishedDataset& dataset_;
  PieceFolder& folder_;
  std::mutex mutex_;  // of folder_
  int64_t& own_pieces_;
  int64_t reported_bytes_ = 0;
};

}  // namespace

void TrimCounts::add(const TrimCounts& later) {
  trimmed += later.trimmed, left_out += later.left_out;
  cut_tokens += later.cut_tokens, left_out_tokens += later.left_out_tokens;
  thoughts += later.thoughts, removed_thoughts += later.removed_thoughts;
  for (const auto& example : later.examples)
    if (examples.size() < kExamples) examples.push_back(example);
}

TokenizeResult tokenize(const Tokenizer& tokenizer, const TokenizeOptions& given) {
  const auto options = checked(tokenizer, given);
  if (is_url(options.output.string()))
    throw base::UsageError("{} is a URL: name a file on a disk, and copy what is written beside it", options.output.string());
  const auto plan = plan_of(tokenizer, options);
  const FinishedDataset dataset(options.output, plan, tokenizer);
  if (auto there = dataset.find(options.overwrite)) {
    there->was_there = true;
    if (PieceFolder::plan_in(options.output) == plan.made_from) {  // who joined them was killed before they were removed
      PieceFolder left(options.output, plan, options.overwrite, options.lease_s);
      if (const auto claim = left.claim_join()) left.remove();
    }
    return *there;
  }
  std::optional<PieceFolder> folder;
  std::optional<TokenizeResult> result;
  int64_t own_pieces = 0;
  try {
    folder.emplace(options.output, plan, options.overwrite, options.lease_s);
    result = dataset.find_own();  // by others, since
    if (!result) result = Run(tokenizer, options, plan, dataset, *folder, own_pieces).run();
    folder->remove();
  } catch (...) {  // perhaps because others have finished it, and the folder is gone
    result = dataset.find_own();
    if (!result && folder) folder->remove_if_idle();
    if (!result) throw;
  }
  result->own_pieces = own_pieces;
  return *result;
}

}  // namespace ingot::data

#include "data/tokenize/finished_dataset.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "data/dataset_files.h"
#include "data/join_datasets.h"

namespace ingot::data {

using Json = nlohmann::ordered_json;

namespace {

// Signs of life while another call goes on for long.
class Beats {
 public:
  explicit Beats(PieceClaim& claim)
      : thread_([this, &claim](std::stop_token stop) {
          std::unique_lock lock(mutex_);
          while (!stop.stop_requested()) {
            claim.beat();
            changed_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
          }
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;
};

}  // namespace

FinishedDataset::FinishedDataset(const fs::path& prefix, const TokenizePlan& plan, const Tokenizer& tokenizer)
    : prefix_(dataset_prefix(prefix)), plan_(plan), tokenizer_(tokenizer) {}

// Sizes by name: a file that was cut short since is no finished dataset.
Json FinishedDataset::files() const {
  Json files = Json::object();
  for (const auto* suffix : {".bin", ".idx", ".mask"}) {
    std::error_code none;
    if (const auto bytes = fs::file_size(named(suffix), none); !none) files[suffix] = static_cast<int64_t>(bytes);
  }
  return files;
}

TokenizeResult FinishedDataset::completed(TokenizeResult total) const {
  total.token_type = plan_.token_type;
  total.pieces = static_cast<int64_t>(plan_.pieces.size());
  return total;
}

std::optional<TokenizeResult> FinishedDataset::find(bool overwrite) const {
  const auto there = read_json_object(manifest());
  const auto made_from = there.is_object() ? there.value("made_from", Json()) : Json();
  if (made_from == plan_.made_from && !plan_.has_pipe && there.value("files", Json()) == files())
    if (const auto counts = counts_of(there)) return completed(*counts);
  std::error_code none;
  if (overwrite || !fs::exists(named(".idx"), none)) return std::nullopt;
  // Of a call that was killed between the index and the manifest.
  if (!plan_.has_pipe && PieceFolder::plan_in(prefix_) == plan_.made_from) return std::nullopt;
  const auto what = plan_.has_pipe ? "a pipe cannot be read again" : difference(made_from, plan_.made_from);
  throw base::UsageError("{} is there already, of other inputs or settings ({}): name another --output, or pass --overwrite", named(".idx"),
                         what.empty() ? "one of its files has another size" : what);
}

TokenizeResult FinishedDataset::make(PieceFolder& pieces, PieceClaim& claim) const {
  TokenizeResult total;
  Json records = Json::array();
  std::vector<fs::path> parts;
  bool has_mask = false;
  for (const auto& [piece, record] : pieces.records()) {
    add(record.counts, total);
    records.push_back(to_json(record));
    parts.push_back(pieces.prefix_of(piece));
    has_mask = has_mask || record.has_mask;
  }
  if (total.documents == 0) throw base::DataError("{} holds no text: nothing was written", plan_.inputs.front().path.string());
  auto whole = parts.front();
  if (parts.size() > 1) {
    whole = pieces.aside("join");
    const Beats beats(claim);
    join_datasets(parts, whole, plan_.token_type);
  }
  if (!fs::exists(whole.string() + ".bin")) throw base::FileError("{}.bin was removed by another process", whole.string());
  std::error_code ignored;
  fs::remove(manifest(), ignored);
  dataset_files::publish(whole, "", has_mask, prefix_);
  Json json = to_json(total);
  json["tokenizer"] = tokenizer_.path().string();
  json["files"] = files();
  json["made_from"] = plan_.made_from;
  json["pieces"] = std::move(records);
  write_json(manifest(), json);
  return completed(total);
}

}  // namespace ingot::data

#include "data/process/process.h"

#include <xxhash.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/ordered_pipeline.h"
#include "data/process/spool.h"
#include "data/process/step.h"
#include "data/process/text_parts.h"
#include "data/text_reader.h"

namespace ingot::data::process {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLevel = 3;                                // of zstd, of what is written in the end
constexpr int64_t kLongestDocument = int64_t{64} << 20;  // two are in flight (ordered_pipeline.h)

// What one worker gets, and what it makes of it.
struct Work {
  TextBlock text;  // of a source, or
  std::string spooled;
  int32_t source = 0;
  std::vector<Removal> removals;  // of the spooled documents, counted from the block's first one
};
struct Done {
  std::vector<Tally> tallies;  // of the pass' steps
  std::vector<ProcessResult::OfSource> sources;
  std::string block;
  int64_t documents = 0, text_bytes = 0;
  std::vector<Record> keys;  // documents counted from the block's first one
  ParsedBlock read;          // without its parts
  std::string first_bad_line;
  int64_t read_bytes = 0, empty_documents = 0;
};

// A search of the pass before, whose removals are taken out; filters; and a search that looks at what they leave.
struct Pass {
  const Search* before = nullptr;
  std::vector<const Filter*> filters;
  const Search* search = nullptr;
  std::vector<size_t> steps;  // of `before` and the filters, in this order
};

std::vector<Pass> passes_of(const std::vector<Step>& steps) {
  std::vector<Pass> passes(1);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].filter) {
      passes.back().filters.push_back(steps[i].filter.get());
      passes.back().steps.push_back(i);
      continue;
    }
    passes.back().search = steps[i].search.get();
    passes.push_back({.before = steps[i].search.get(), .filters = {}, .search = nullptr, .steps = {i}});
  }
  return passes;
}

// A folder that goes with what is in it.
class WorkFolder {
 public:
  explicit WorkFolder(base::fs::path path) : path_(std::move(path)) {
    // Of a process that was killed; the lock says that none is at work.
    if (base::fs::remove_all(path_) > 0) base::log_info("{} was left by a run that did not end; this one begins anew", path_.string());
    base::make_directories(path_);
  }
  ~WorkFolder() {
    std::error_code ignored;
    base::fs::remove_all(path_, ignored);
  }
  base::fs::path operator/(const std::string& name) const { return path_ / name; }
  const base::fs::path& path() const { return path_; }

 private:
  base::fs::path path_;
};

// The blocks of all sources, one behind another; a document never begins in one and ends in the next.
class SourceBlocks {
 public:
  explicit SourceBlocks(const Recipe& recipe) : recipe_(recipe) {
    for (const auto& source : recipe.sources) {
      TextOptions options;
      options.format = parse_text_format(source.format);
      options.split = parse_document_split(source.split);
      options.field = source.field;
      options.whole_lines = true;
      options.skip_bad = recipe.skip_bad;
      options_.push_back(options);
      readers_.push_back(std::make_unique<TextReader>(std::vector<base::fs::path>(source.files.begin(), source.files.end()), options));
      total_bytes_ += readers_.back()->total_bytes();
    }
  }
  bool next(Work& work) {
    for (; at_ < readers_.size(); ++at_) {
      if (!readers_[at_]->next(work.text)) continue;
      work.source = static_cast<int32_t>(at_);
      while (work.text.open_ended) {
        TextBlock more;
        if (!readers_[at_]->next(more)) break;
        work.text.bytes += more.bytes;
        work.text.read_bytes += more.read_bytes;
        work.text.open_ended = more.open_ended;
        if (static_cast<int64_t>(work.text.bytes.size()) > kLongestDocument)
          throw base::DataError("{}: a document is longer than {}: cut it with split = \"paragraph\" or \"line\"",
                                work.text.where(work.text.first_line), base::format_bytes(kLongestDocument));
      }
      work.text.open_ended = false;
      return true;
    }
    return false;
  }
  int64_t total_bytes() const { return total_bytes_; }
  const TextOptions& options_of(int32_t source) const { return options_[static_cast<size_t>(source)]; }

 private:
  const Recipe& recipe_;
  std::vector<TextOptions> options_;
  std::vector<std::unique_ptr<TextReader>> readers_;
  size_t at_ = 0;
  int64_t total_bytes_ = 0;
};

constexpr int64_t kMostMembers = 10'000;  // of a line: finding one among many takes long

int64_t colons_of(std::string_view line) { return std::count(line.begin(), line.end(), ':'); }

std::string what_is_wrong_with(const std::string& line) {
  try {
    Json unused = Json::parse(line);
  } catch (const Json::exception& error) {
    const std::string_view what = error.what();
    return "the line is no JSON: " + std::string(what.substr(std::min(what.find("] ") + 2, what.size())));
  }
  return "the line is no JSON";
}

// Documents of a block of a source. Lines of JSON keep what else they have.
std::vector<Document> documents_of(const Work& work, const TextOptions& options, Done& done) {
  done.read = parse_block(work.text, options);
  std::vector<Document> documents;
  for (auto& part : done.read.parts) {
    Document document{.text = {}, .members = {}, .source = work.source};
    if (!work.text.jsonl) {
      document.text = std::move(part.text);
    } else {
      const auto unusable = is_nested_too_deeply(part.text)             ? std::string("it is nested deeper than 200 values")
                            : colons_of(part.text) > kMostMembers * 100 ? fmt::format("it has more than {} members", kMostMembers)
                                                                        : std::string();
      auto line = unusable.empty() ? Json::parse(part.text, nullptr, false) : Json();
      const auto found = line.is_object() ? line.find(options.field) : line.end();
      if (!line.is_object() || found == line.end() || !found->is_string() || line.size() > kMostMembers) {
        const auto what = !unusable.empty()            ? unusable
                          : line.is_discarded()        ? what_is_wrong_with(part.text)
                          : !line.is_object()          ? "the line is no JSON object"
                          : line.size() > kMostMembers ? fmt::format("it has more than {} members", kMostMembers)
                          : found == line.end()        ? "it has no \"" + options.field + "\""
                                                       : "\"" + options.field + "\" is no text";
        const auto reason = work.text.where(part.line) + ": " + what;
        if (!options.skip_bad) throw base::DataError("{}; mend it, name another field, or set skip_bad = true", reason);
        if (done.first_bad_line.empty()) done.first_bad_line = reason;
        ++done.read.bad_lines;
        continue;
      }
      document.text = std::move(found->get_ref<std::string&>());
      line.erase(found);
      if (!line.empty()) document.members = std::move(line);
    }
    if (trimmed(document.text).empty()) ++done.empty_documents;
    else documents.push_back(std::move(document));
  }
  done.read.parts.clear();
  return documents;
}

std::string json_lines(const std::vector<Document>& documents) {
  std::string lines;
  for (const auto& document : documents) {
    Json line = {{"text", document.text}};
    if (document.members.is_object())
      for (const auto& [name, value] : document.members.items()) line[name == "text" ? "text_besides" : name] = value;
    lines += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  return lines;
}

std::string most_frequent(const Tally& tally) {
  const auto most = std::max_element(tally.removed.begin(), tally.removed.end(),
                                     [](const auto& a, const auto& b) { return a.second.documents < b.second.documents; });
  return most == tally.removed.end() ? "" : most->first;
}

class Run {
 public:
  Run(const Recipe& recipe, const ProcessOptions& options) : recipe_(recipe), options_(options) {
    for (const auto& step : recipe.steps) {
      steps_.push_back(make_step(step));
      result_.steps.push_back({steps_.back().name, step.kind, {}});
    }
    for (const auto& source : recipe.sources) result_.sources.push_back({.name = source.name});
    const int wished = options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency());
    threads_ = std::clamp(wished, 1, 256);
  }

  ProcessResult run() {
    SourceBlocks sources(recipe_);  // looks at every file first
    const base::fs::path folder = recipe_.folder;
    base::make_directories(folder);
    const auto lock = base::FileLock::try_take(folder / ".lock");
    if (!lock) throw base::UsageError("another process writes into {}", folder.string());
    for (const auto& entry : base::fs::directory_iterator(folder))
      if (const auto name = entry.path().filename().string();
          name == kReport || (name.starts_with("part-") && name.ends_with(".jsonl.zst")))
        throw base::UsageError("{} is there already: name another folder, or empty this one", entry.path().string());
    // A work folder that several share has one of its own for each that is written into.
    const auto whole = base::fs::absolute(folder).string();
    const auto own = fmt::format("ingot-work-{:016x}", XXH3_64bits(whole.data(), whole.size()));
    WorkFolder written(folder / ".unfinished"),
        work(recipe_.work_folder.empty() ? folder / ".work" : base::fs::path(recipe_.work_folder) / own);
    written_ = &written, work_ = &work;

    const auto passes = passes_of(steps_);
    std::unique_ptr<RemovalSorter> removals;
    for (size_t i = 0; i < passes.size(); ++i) removals = one_pass(passes[i], i, sources, std::move(removals));
    publish(folder);
    return std::move(result_);
  }

 private:
  static constexpr const char* kReport = "report.json";

  base::fs::path spool_of(size_t pass) const { return *work_ / ("documents." + std::to_string(pass)); }

  // Returns what the pass' search found.
  std::unique_ptr<RemovalSorter> one_pass(const Pass& pass, size_t number, SourceBlocks& sources, std::unique_ptr<RemovalSorter> removals) {
    const bool is_first = number == 0, is_last = pass.search == nullptr;
    std::optional<SpoolReader> spool;
    if (!is_first) spool.emplace(spool_of(number - 1));
    std::optional<RemovalSorter::Reader> going;
    std::optional<Removal> next;
    if (removals) {
      going.emplace(*removals);
      advance(*going, next);
    }
    int64_t read_documents = 0, read_bytes = 0, documents = 0;
    const auto produce = [&](Work& work) {
      if (is_first) return sources.next(work);
      int64_t count = 0;
      if (!spool->next(work.spooled, count)) return false;
      for (; next && next->place.document < read_documents + count; advance(*going, next)) {
        work.removals.push_back(*next);
        work.removals.back().place.document -= read_documents;
      }
      read_documents += count;
      return true;
    };
    const auto do_work = [&](Work work) { return worked(work, pass, is_first, is_last, sources); };

    RecordSorter keys(work_->path(), fmt::format("keys-{}", number), recipe_.memory_mib << 20);
    std::optional<SpoolWriter> kept;
    if (!is_last) kept.emplace(spool_of(number));
    const auto total = is_first ? sources.total_bytes() : spool->bytes();
    const auto title = is_first ? "reading" : "after " + result_.steps[pass.steps.front()].name;
    const auto consume = [&](Done done) {
      for (size_t i = 0; i < pass.steps.size(); ++i) result_.steps[pass.steps[i]].tally.add(done.tallies[i]);
      for (size_t i = 0; i < done.sources.size(); ++i) add(done.sources[i], result_.sources[i]);
      result_.empty_documents += done.empty_documents;
      result_.bad_lines += done.read.bad_lines;
      result_.invalid_utf8 += done.read.invalid_utf8;
      if (result_.first_invalid_utf8.empty() && done.read.invalid_utf8 > 0) result_.first_invalid_utf8 = done.read.first_problem;
      if (result_.first_bad_line.empty()) result_.first_bad_line = done.first_bad_line;
      for (auto& key : done.keys) {
        key.place.document += documents;
        keys.add(key);
      }
      documents += done.documents;
      if (done.documents > 0) {
        if (kept) kept->add(done.block, done.documents);
        else write(done);
      }
      read_bytes += done.read_bytes;
      if (options_.progress) options_.progress(title, std::min(read_bytes, total), total);
    };
    const auto bytes_of = [&](const Work& work) {
      return is_first ? static_cast<int64_t>(work.text.bytes.size()) : plain_bytes(work.spooled);
    };
    run_ordered<Work, Done>(limits_of_blocks<Work>(threads_, bytes_of), produce, do_work, consume);
    const int64_t spool_bytes = spool ? spool->bytes() : 0;
    spool.reset();
    if (!is_first) base::fs::remove(spool_of(number - 1));
    if (is_last) return nullptr;
    kept->close();
    auto found = std::make_unique<RemovalSorter>(work_->path(), fmt::format("removals-{}", number), (recipe_.memory_mib << 20) / 4);
    pass.search->find(keys, [&](const Removal& removal) { found->add(removal); });
    const auto on_disk = spool_bytes + kept->bytes() + keys.file_bytes() + (removals ? removals->file_bytes() : 0) + found->file_bytes();
    result_.work_bytes = std::max(result_.work_bytes, on_disk);
    return found;
  }

  static void advance(RemovalSorter::Reader& reader, std::optional<Removal>& next) {
    Removal removal;
    if (reader.next(removal)) next = removal;
    else next.reset();
  }

  Done worked(const Work& work, const Pass& pass, bool is_first, bool is_last, const SourceBlocks& sources) const {
    Done done;
    done.tallies.resize(pass.steps.size());
    done.sources.resize(result_.sources.size());
    auto documents = is_first ? documents_of(work, sources.options_of(work.source), done) : unpacked(work.spooled);
    done.read_bytes = is_first ? work.text.read_bytes : static_cast<int64_t>(work.spooled.size());
    if (is_first)
      for (const auto& document : documents) {
        auto& source = done.sources[static_cast<size_t>(document.source)];
        ++source.documents;
        source.bytes += static_cast<int64_t>(document.text.size());
      }
    std::vector<Document> kept;
    size_t removal = 0;
    for (size_t i = 0; i < documents.size(); ++i) {
      auto& document = documents[i];
      const size_t first = removal;
      while (removal < work.removals.size() && work.removals[removal].place.document == static_cast<int64_t>(i)) ++removal;
      if (!passes(document, pass, std::span(work.removals).subspan(first, removal - first), done.tallies)) continue;
      if (is_last) {
        auto& source = done.sources[static_cast<size_t>(document.source)];
        ++source.kept_documents;
        source.kept_bytes += static_cast<int64_t>(document.text.size());
      } else {
        pass.search->keys_of(document, static_cast<int64_t>(kept.size()), done.keys);
      }
      done.text_bytes += static_cast<int64_t>(document.text.size());
      kept.push_back(std::move(document));
    }
    done.documents = static_cast<int64_t>(kept.size());
    if (!kept.empty()) done.block = is_last ? compressed(json_lines(kept), kLevel) : packed(kept);
    return done;
  }

  static bool passes(Document& document, const Pass& pass, std::span<const Removal> removals, std::vector<Tally>& tallies) {
    auto tally = tallies.begin();
    const auto step = [&](const auto& apply) {
      auto& own = *tally++;
      ++own.documents;
      own.bytes += static_cast<int64_t>(document.text.size());
      if (!apply(own)) return false;
      ++own.kept_documents;
      own.kept_bytes += static_cast<int64_t>(document.text.size());
      return true;
    };
    if (pass.before && !step([&](Tally& own) { return removals.empty() || pass.before->take_out(document, removals, own); })) return false;
    return std::all_of(pass.filters.begin(), pass.filters.end(),
                       [&](const Filter* filter) { return step([&](Tally& own) { return filter->apply(document, own); }); });
  }

  static void add(const ProcessResult::OfSource& more, ProcessResult::OfSource& all) {
    all.documents += more.documents, all.bytes += more.bytes;
    all.kept_documents += more.kept_documents, all.kept_bytes += more.kept_bytes;
  }

  void write(const Done& done) {
    if (!part_ || part_bytes_ >= recipe_.shard_mib << 20) {
      if (part_) part_->sync(), part_->close();
      result_.files.push_back(fmt::format("part-{:05}.jsonl.zst", result_.files.size()));
      part_ = std::make_unique<base::OutputFile>(*written_ / result_.files.back());
      part_bytes_ = 0;
    }
    part_->write(done.block);
    part_bytes_ += done.text_bytes;
  }

  void publish(const base::fs::path& folder) {
    if (result_.files.empty()) {
      const auto last = std::find_if(result_.steps.begin(), result_.steps.end(),
                                     [](const auto& step) { return step.tally.documents > 0 && step.tally.kept_documents == 0; });
      throw base::DataError("no document is left, and nothing was written{}",
                            last == result_.steps.end() ? ""
                                                        : fmt::format(": {} removed the last {}, most of them because \"{}\"", last->name,
                                                                      last->tally.documents, most_frequent(last->tally)));
    }
    part_->sync(), part_->close();
    for (const auto& file : result_.files) base::fs::rename(*written_ / file, folder / file);
    base::write_file_atomically(folder / "report.md", to_markdown(result_));
    base::write_file_atomically(folder / kReport, to_json(result_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  const Recipe& recipe_;
  const ProcessOptions& options_;
  std::vector<Step> steps_;
  int threads_ = 1;
  ProcessResult result_;
  const WorkFolder *written_ = nullptr, *work_ = nullptr;
  std::unique_ptr<base::OutputFile> part_;
  int64_t part_bytes_ = 0;
};

std::string share_of(int64_t part, int64_t whole) {
  return whole > 0 ? fmt::format("{:.2f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole)) : "";
}

}  // namespace

ProcessResult process(const Recipe& recipe, const ProcessOptions& options) { return Run(recipe, options).run(); }

Json to_json(const ProcessResult& result) {
  Json sources = Json::array(), steps = Json::array();
  for (const auto& s : result.sources)
    sources.push_back({{"name", s.name},
                       {"documents", s.documents},
                       {"bytes", s.bytes},
                       {"kept_documents", s.kept_documents},
                       {"kept_bytes", s.kept_bytes}});
  for (const auto& s : result.steps) {
    Json removed = Json::object();
    for (const auto& [reason, of] : s.tally.removed)
      removed[reason] = {{"documents", of.documents}, {"bytes", of.bytes}, {"examples", of.examples}};
    steps.push_back({{"name", s.name},
                     {"kind", s.kind},
                     {"documents", s.tally.documents},
                     {"bytes", s.tally.bytes},
                     {"kept_documents", s.tally.kept_documents},
                     {"kept_bytes", s.tally.kept_bytes},
                     {"removed", removed},
                     {"changed", s.tally.counts}});
  }
  return {{"sources", sources},
          {"steps", steps},
          {"files", result.files},
          {"empty_documents", result.empty_documents},
          {"bad_lines", result.bad_lines},
          {"invalid_utf8", result.invalid_utf8},
          {"first_bad_line", result.first_bad_line},
          {"first_invalid_utf8", result.first_invalid_utf8},
          {"work_bytes", result.work_bytes}};
}

std::string to_markdown(const ProcessResult& result) {
  std::string text = "| source | documents | bytes | documents left | bytes left | share of the bytes |\n|---|---|---|---|---|---|\n";
  for (const auto& s : result.sources)
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", s.name, s.documents, s.bytes, s.kept_documents, s.kept_bytes,
                        share_of(s.kept_bytes, s.bytes));
  const std::pair<std::string, int64_t> lost[] = {
      {"documents without text", result.empty_documents},
      {"malformed lines, the first at " + result.first_bad_line, result.bad_lines},
      {"sequences that are not UTF-8, which became U+FFFD, the first at " + result.first_invalid_utf8, result.invalid_utf8}};
  for (const auto& [what, times] : lost)
    if (times > 0) text += fmt::format("\nLeft out or replaced: {} {}.\n", times, what);
  text += "\n| step | documents | documents removed | bytes removed | share of the bytes |\n|---|---|---|---|---|\n";
  for (const auto& s : result.steps)
    text += fmt::format("| {} | {} | {} | {} | {} |\n", s.name, s.tally.documents, s.tally.documents - s.tally.kept_documents,
                        s.tally.bytes - s.tally.kept_bytes, share_of(s.tally.bytes - s.tally.kept_bytes, s.tally.bytes));
  for (const auto& s : result.steps) {
    if (s.tally.removed.empty() && s.tally.counts.empty()) continue;
    text += fmt::format("\n## {}\n", s.name);
    for (const auto& [what, times] : s.tally.counts) text += fmt::format("\n- {}: {}\n", what, times);
    for (const auto& [reason, of] : s.tally.removed) {
      text += fmt::format("\n- {}: {} documents, {} bytes\n", reason, of.documents, of.bytes);
      for (auto example : of.examples) {
        std::replace(example.begin(), example.end(), '\n', ' ');
        text += "  > " + example + "\n";
      }
    }
  }
  return text;
}

}  // namespace ingot::data::process

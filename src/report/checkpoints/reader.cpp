#include "report/checkpoints/reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "report/page/html.h"
#include "report/run/lines.h"

namespace ingot::report {
namespace {

constexpr double kNone = SaveTimes::kUnknown;
// 65,536 ranks, whose lines have about 250 bytes per rank.
constexpr size_t kMaxLineBytes = size_t{1} << 24, kMaxRanks = size_t{1} << 16;
constexpr size_t kMaxTextBytes = 400;
// Nothing that took longer or holds more was measured, and larger numbers would not fit into a drawing.
constexpr double kMaxSeconds = 1e9, kMaxBytes = 1e18, kMaxGbPerS = 1e12;

enum class Value {
  step,
  bytes,
  total_s,
  stall_s,
  commit_s,
  plan_s,
  copy_s,
  hash_s,
  write_s,
  sync_s,
  read_s,
  exchange_s,
  wanted_bytes,
  read_bytes,
  received_bytes,
  count,
};
constexpr size_t kValues = static_cast<size_t>(Value::count);
constexpr std::array<std::string_view, kValues> kNames = {"step",   "bytes",      "total_s",      "stall_s",    "commit_s",
                                                          "plan_s", "copy_s",     "hash_s",       "write_s",    "sync_s",
                                                          "read_s", "exchange_s", "wanted_bytes", "read_bytes", "received_bytes"};

// The numbers of a line or of one rank in it.
struct Numbers {
  std::array<double, kValues> values;
  Numbers() { values.fill(kNone); }
  double operator[](Value value) const { return values[static_cast<size_t>(value)]; }
};

struct Line {
  std::string kind, where, path, failure;
  std::optional<bool> ok;
  Numbers own;
  std::vector<Numbers> ranks;
  bool odd = false;

  void clear() {
    for (auto* text : {&kind, &where, &path, &failure}) text->clear();
    ok.reset();
    own = Numbers();
    ranks.clear();
    odd = false;
  }
};

// Receives one line's JSON as events, so that no tree is built. Everything unknown is passed over.
class LineHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit LineHandler(Line& line) : line_(line) {}

  bool null() override { return take_other(); }
  bool boolean(bool value) override {
    if (depth_ == 1 && key_ == "ok") {
      line_.ok = value;
      return true;
    }
    return take_other();
  }
  bool number_integer(int64_t value) override { return take(static_cast<double>(value)); }
  bool number_unsigned(uint64_t value) override { return take(static_cast<double>(value)); }
  bool number_float(double value, const std::string&) override { return take(value); }
  bool string(std::string& value) override {
    auto* text = depth_ == 1 ? text_named(key_) : nullptr;
    if (!text) return take_other();
    *text = shortened(value, kMaxTextBytes);
    return true;
  }
  bool binary(nlohmann::json::binary_t&) override { return false; }
  bool start_object(size_t) override {
    if (in_ranks_ && depth_ == 2) in_rank_ = add_rank();
    else if (depth_ > 0) take_other();
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    if (depth_ == 2) in_rank_ = false;
    return true;
  }
  bool start_array(size_t) override {
    if (depth_ == 0) return false;
    if (depth_ == 1 && key_ == "ranks") {
      in_ranks_ = true;
      line_.ranks.clear();
    } else {
      take_other();
    }
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (depth_ == 1) in_ranks_ = false;
    return true;
  }
  bool key(std::string& name) override {
    if (depth_ == 1 || (depth_ == 3 && in_rank_)) key_ = name;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::string* text_named(std::string_view name) {
    if (name == "kind") return &line_.kind;
    if (name == "where") return &line_.where;
    if (name == "path") return &line_.path;
    if (name == "failure") return &line_.failure;
    return nullptr;
  }

  // Where the next value belongs; null when it belongs nowhere.
  Numbers* target() {
    if (depth_ == 1) return &line_.own;
    return depth_ == 3 && in_rank_ && !line_.ranks.empty() ? &line_.ranks.back() : nullptr;
  }

  // False when there are too many.
  bool add_rank() {
    const bool room = line_.ranks.size() < kMaxRanks;
    if (room) line_.ranks.emplace_back();
    else line_.odd = true;
    return room;
  }

  bool take_other() { return take(kNone); }

  // NaN for whatever is no number.
  bool take(double value) {
    if (depth_ == 0) return false;
    if (in_ranks_ && depth_ == 2) {
      add_rank();  // no rank, but those after it keep their number
      line_.odd = true;
      return true;
    }
    auto* numbers = target();
    if (!numbers) return true;
    const auto found = std::find(kNames.begin(), kNames.end(), key_);
    if (found == kNames.end()) {
      if (depth_ == 1 && (key_ == "ok" || key_ == "ranks" || text_named(key_))) line_.odd = true;
      return true;
    }
    const bool is_seconds = found->ends_with("_s");
    if (!(value >= 0 && value <= (is_seconds ? kMaxSeconds : kMaxBytes))) line_.odd = true;
    else numbers->values[static_cast<size_t>(found - kNames.begin())] = value;
    return true;
  }

  Line& line_;
  std::string key_;
  int64_t depth_ = 0;
  bool in_ranks_ = false, in_rank_ = false;
};

// Sums to NaN only when both are.
double sum(double a, double b) { return std::isnan(a) ? b : std::isnan(b) ? a : a + b; }

// The first of those whose two phases together took longest; -1 when nobody's are known.
int64_t slowest_of(const std::vector<Numbers>& ranks, Value one, Value other) {
  int64_t slowest = -1;
  double longest_s = -1;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const double seconds = sum(ranks[rank][one], ranks[rank][other]);
    if (!(seconds > longest_s)) continue;
    longest_s = seconds;
    slowest = static_cast<int64_t>(rank);
  }
  return slowest;
}

double sum_of(const std::vector<Numbers>& ranks, Value value) {
  double total = kNone;
  for (const auto& rank : ranks) total = sum(total, rank[value]);
  return total;
}

double rate(double bytes, double seconds) {
  const double gb_per_s = bytes / seconds / 1e9;
  return bytes > 0 && seconds > 0 && gb_per_s <= kMaxGbPerS ? gb_per_s : kNone;
}

float slower(float a, float b) { return std::isnan(a) ? b : std::isnan(b) ? a : std::min(a, b); }

void add_rows(std::vector<float>& rates, const std::vector<float>& others) {
  rates.resize(std::max(rates.size(), others.size()), std::numeric_limits<float>::quiet_NaN());
  for (size_t row = 0; row < others.size(); ++row) rates[row] = slower(rates[row], others[row]);
}

void join(SaveStretch& stretch, const SaveStretch& next) {
  stretch.last_step = next.last_step;
  stretch.saves += next.saves;
  stretch.failed += next.failed;
  if (stretch.failure.empty()) stretch.failure = next.failure;
  stretch.after_load = stretch.after_load || next.after_load;
  const auto weight = [](const SaveTimes& save) { return std::isnan(save.step) ? -2 : std::isnan(save.total_s) ? -1 : save.total_s; };
  if (weight(next.slowest) > weight(stretch.slowest)) stretch.slowest = next.slowest;
  add_rows(stretch.gb_per_s, next.gb_per_s);
}

// Of each run of `count` neighbours one.
std::vector<SaveStretch> joined_by(const std::vector<SaveStretch>& stretches, size_t count) {
  std::vector<SaveStretch> out;
  for (size_t i = 0; i < stretches.size(); ++i) {
    if (i % count == 0) out.push_back(stretches[i]);
    else join(out.back(), stretches[i]);
  }
  return out;
}

SaveTimes save_times(const Line& line) {
  SaveTimes out{.step = line.own[Value::step],
                .bytes = line.own[Value::bytes],
                .total_s = line.own[Value::total_s],
                .stall_s = line.own[Value::stall_s],
                .commit_s = line.own[Value::commit_s],
                .ranks = static_cast<int64_t>(line.ranks.size()),
                .slowest_rank = slowest_of(line.ranks, Value::write_s, Value::sync_s)};
  if (out.slowest_rank < 0) return out;
  const auto& rank = line.ranks[static_cast<size_t>(out.slowest_rank)];
  out.plan_s = rank[Value::plan_s];
  out.copy_s = rank[Value::copy_s];
  out.hash_s = rank[Value::hash_s];
  out.write_s = rank[Value::write_s];
  out.sync_s = rank[Value::sync_s];
  return out;
}

LoadTimes load_times(const Line& line) {
  LoadTimes out{.step = line.own[Value::step],
                .total_s = line.own[Value::total_s],
                .ok = line.ok.value_or(true) && line.failure.empty(),
                .from = line.path,
                .failure = line.failure,
                .ranks = static_cast<int64_t>(line.ranks.size()),
                .slowest_rank = slowest_of(line.ranks, Value::read_s, Value::exchange_s),
                .wanted_bytes = sum_of(line.ranks, Value::wanted_bytes),
                .read_bytes = sum_of(line.ranks, Value::read_bytes),
                .received_bytes = sum_of(line.ranks, Value::received_bytes)};
  if (out.slowest_rank < 0) return out;
  const auto& rank = line.ranks[static_cast<size_t>(out.slowest_rank)];
  out.plan_s = rank[Value::plan_s];
  out.read_s = rank[Value::read_s];
  out.exchange_s = rank[Value::exchange_s];
  return out;
}

// A history with what is needed to go on adding to it.
struct Growing {
  int64_t saves_per_stretch = 1;
  bool after_load = false;

  void add(SaveHistory& history, const Line& line, bool failed) {
    ++history.saves;
    history.failed += failed;
    SaveStretch one{.first_step = line.own[Value::step],
                    .last_step = line.own[Value::step],
                    .saves = 1,
                    .failed = failed,
                    .slowest = {},
                    .failure = failed ? line.failure : std::string(),
                    .after_load = std::exchange(after_load, false)};
    if (!failed) {
      one.slowest = save_times(line);
      history.total_s.push_back(one.slowest.total_s);
      history.stall_s.push_back(one.slowest.stall_s);
      history.bytes.push_back(one.slowest.bytes);
      history.gb_per_s.push_back(rate(one.slowest.bytes, one.slowest.total_s));
    }
    one.gb_per_s = rows_of(history, line);
    auto& stretches = history.stretches;
    if (!stretches.empty() && stretches.back().saves < saves_per_stretch) {
      join(stretches.back(), one);
      return;
    }
    if (stretches.size() >= kMaxSaveStretches) {
      stretches = joined_by(stretches, 2);
      saves_per_stretch *= 2;
    }
    stretches.push_back(std::move(one));
  }

  // Rows grow by doubling, too: when there are more ranks than ever before, neighbouring rows are joined in all stretches.
  static std::vector<float> rows_of(SaveHistory& history, const Line& line) {
    history.ranks = std::max(history.ranks, static_cast<int64_t>(line.ranks.size()));
    while (line.ranks.size() > kMaxRankRows * static_cast<size_t>(history.ranks_per_row)) {
      history.ranks_per_row *= 2;
      for (auto& stretch : history.stretches) {
        auto& rates = stretch.gb_per_s;
        for (size_t row = 0; row < rates.size(); row += 2)
          rates[row / 2] = row + 1 < rates.size() ? slower(rates[row], rates[row + 1]) : rates[row];
        rates.resize((rates.size() + 1) / 2);
      }
    }
    std::vector<float> rates;
    for (size_t rank = 0; rank < line.ranks.size(); ++rank) {
      const size_t row = rank / static_cast<size_t>(history.ranks_per_row);
      const auto& r = line.ranks[rank];
      const auto own = static_cast<float>(rate(r[Value::bytes], sum(r[Value::write_s], r[Value::sync_s])));
      if (row == rates.size()) rates.push_back(own);
      else rates[row] = slower(rates[row], own);
    }
    return rates;
  }
};

template <class T>
void push_bounded(std::vector<T>& items, T item, size_t limit) {
  if (items.size() == limit) items.erase(items.begin());
  items.push_back(std::move(item));
}

class Reader {
 public:
  Checkpoints& checkpoints() { return all_; }

  void take(const std::optional<std::string_view>& text) {
    ++all_.lines;
    line_.clear();
    LineHandler handler(line_);
    const bool parsed = text && nlohmann::json::sax_parse(text->begin(), text->end(), &handler);
    const double step = line_.own[Value::step];
    const bool save = line_.kind == "save", load = line_.kind == "load";
    if (!parsed || !(save || load) || !(step <= 0x1p53 && step == std::floor(step))) {
      ++all_.unreadable;
      return;
    }
    if (save) take_save();
    else take_load();
    all_.odd += line_.odd;
  }

 private:
  void take_save() {
    const bool in_memory = line_.where == "memory", failed = !line_.ok.value_or(true) || !line_.failure.empty();
    (in_memory ? memory_ : folder_).add(in_memory ? all_.memory : all_.folder, line_, failed);
    // Files from before there were saves to memory do not say where.
    line_.odd = line_.odd || (!in_memory && !line_.where.empty() && line_.where != "folder");
    if (failed) {
      push_bounded(all_.failed_saves, {line_.own[Value::step], in_memory, line_.failure}, kMaxFailedSaves);
    } else {
      line_.odd = line_.odd || line_.ranks.empty() || std::isnan(line_.own[Value::total_s]) || std::isnan(line_.own[Value::stall_s]);
    }
  }

  void take_load() {
    ++all_.load_count;
    push_bounded(all_.loads, load_times(line_), kMaxLoads);
    line_.odd = line_.odd || line_.ranks.empty() || std::isnan(line_.own[Value::total_s]);
    folder_.after_load = memory_.after_load = true;
  }

  Checkpoints all_;
  Growing folder_, memory_;
  Line line_;
};

}  // namespace

std::vector<SaveStretch> SaveHistory::joined(size_t limit) const {
  return joined_by(stretches, std::max<size_t>(1, (stretches.size() + limit - 1) / limit));
}

struct CheckpointsReader::State {
  Reader reader;
  LineCutter lines{kMaxLineBytes};
};

CheckpointsReader::CheckpointsReader() : state_(std::make_unique<State>()) {}
CheckpointsReader::CheckpointsReader(CheckpointsReader&&) noexcept = default;
CheckpointsReader::~CheckpointsReader() = default;

void CheckpointsReader::feed(std::string_view piece) {
  state_->lines.feed(piece, [&](const auto& line) { state_->reader.take(line); });
}

Checkpoints CheckpointsReader::finish(LastLine last) {
  state_->lines.finish(last, [&](const auto& line) { state_->reader.take(line); });
  return std::move(state_->reader.checkpoints());
}

Checkpoints read_checkpoints(std::string_view content) {
  CheckpointsReader reader;
  reader.feed(content);
  return reader.finish();
}

}  // namespace ingot::report

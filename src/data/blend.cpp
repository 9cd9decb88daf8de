#include "data/blend.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/indexed_dataset.h"

namespace ingot::data {
namespace {

using base::DataError;

std::string plain(const std::string& path) {
  const auto prefix = dataset_prefix(path);
  return is_url(path) ? prefix.string() : prefix.lexically_normal().string();
}

// The place in the list; -1 for none, -2 for several.
int64_t place_of(const std::string& path, const std::vector<DataSource>& sources) {
  int64_t found = -1;
  for (size_t s = 0; s < sources.size(); ++s)
    if (plain(sources[s].path) == plain(path)) found = found == -1 ? static_cast<int64_t>(s) : -2;
  return found;
}

constexpr int64_t kLongestFile = int64_t{64} << 20;

bool has_weight(const std::vector<double>& weights) {
  return std::any_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; });
}

class Parser {
 public:
  Parser(const std::string& name, const std::vector<DataSource>& sources) : name_(name), sources_(sources) {}

  std::vector<Blend::Stretch> parse(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      ++line_;
      if (line.ends_with('\r')) line.pop_back();
      if (const auto comment = line.find('#'); comment == 0) continue;
      const auto first = line.find_first_not_of(" \t");
      if (first != std::string::npos) take(line.substr(first, line.find_last_not_of(" \t") + 1 - first));
    }
    close();
    if (stretches_.empty()) throw wrong("there are no weights: write a line for each source, for instance \"0.7 data/web\"");
    return std::move(stretches_);
  }

 private:
  DataError wrong(const std::string& what) const { return DataError("{}:{}: {}", name_, line_, what); }

  void take(const std::string& line) {
    const auto space = line.find_first_of(" \t");
    const auto word = line.substr(0, space);
    const auto rest = space == std::string::npos ? std::string() : line.substr(line.find_first_not_of(" \t", space));
    if (word == "step") return begin(rest);
    const auto weight = base::parse_number(word);
    if (!weight || !(*weight >= 0 && *weight <= 1e308) || rest.empty())
      throw wrong(fmt::format("\"{}\" is neither \"weight path\" nor \"step N\"", line));
    const int64_t place = place_of(rest, sources_);
    if (place < 0)
      throw wrong(fmt::format("{} is {} of data.sources{}", rest, place == -1 ? "none" : "several",
                              place == -1 ? base::did_you_mean(rest, paths()) : ", which a blend cannot tell apart"));
    if (stretches_.empty() || is_closed_) stretches_.push_back({0, std::vector<double>(sources_.size(), 0)}), is_closed_ = false;
    if (has_line_[static_cast<size_t>(place)]) throw wrong(fmt::format("{} has two lines", rest));
    has_line_[static_cast<size_t>(place)] = true;
    stretches_.back().weights[static_cast<size_t>(place)] = *weight;
  }

  void begin(const std::string& number) {
    const auto step = base::parse_integer(number);
    const int64_t last = stretches_.empty() ? -1 : stretches_.back().first_step;
    if (!step || *step < 0) throw wrong(fmt::format("\"step {}\" is not followed by the number of a step", number));
    if (!stretches_.empty()) close();
    if (*step <= last) throw wrong(fmt::format("step {} does not come behind step {}", *step, last));
    stretches_.push_back({*step, std::vector<double>(sources_.size(), 0)});
    is_closed_ = false;
  }

  void close() {
    if (!stretches_.empty() && !has_weight(stretches_.back().weights))
      throw wrong(fmt::format("no source has a weight above 0 from step {} on", stretches_.back().first_step));
    has_line_.assign(sources_.size(), false);
    is_closed_ = true;
  }

  std::vector<std::string> paths() const {
    std::vector<std::string> all;
    for (const auto& source : sources_) all.push_back(source.path);
    return all;
  }

  const std::string& name_;
  const std::vector<DataSource>& sources_;
  std::vector<Blend::Stretch> stretches_;
  std::vector<bool> has_line_ = std::vector<bool>(sources_.size(), false);
  bool is_closed_ = true;
  int64_t line_ = 0;
};

}  // namespace

Blend Blend::parse(const std::string& text, const std::string& name, const std::vector<DataSource>& sources) {
  Blend blend;
  blend.stretches_ = Parser(name, sources).parse(text);
  return blend;
}

const std::vector<double>& Blend::at(int64_t step) const {
  static const std::vector<double> none;
  const auto next = std::find_if(stretches_.begin(), stretches_.end(), [&](const Stretch& stretch) { return stretch.first_step > step; });
  return next == stretches_.begin() ? none : std::prev(next)->weights;
}

void Blend::forget_from(int64_t step) {
  std::erase_if(stretches_, [&](const Stretch& stretch) { return stretch.first_step >= step; });
}

void Blend::change(int64_t step, std::vector<double> weights) {
  forget_from(step);
  stretches_.push_back({step, std::move(weights)});
}

std::string Blend::text(const std::vector<DataSource>& sources) const {
  std::string text;
  for (const auto& stretch : stretches_) {
    text += fmt::format("step {}\n", stretch.first_step);
    for (size_t s = 0; s < sources.size(); ++s) text += fmt::format("{} {}\n", stretch.weights[s], sources[s].path);
  }
  return text;
}

BlendFile::BlendFile(fs::path path, std::vector<DataSource> sources) : path_(std::move(path)), sources_(std::move(sources)) {
  text_ = base::read_file(path_, kLongestFile);
  blend_ = Blend::parse(text_, path_.string(), sources_);
  looked_at_ = std::chrono::steady_clock::now();
}

const std::vector<double>& BlendFile::at(int64_t step) {
  if (const auto now = std::chrono::steady_clock::now(); now - looked_at_ >= std::chrono::seconds(1)) looked_at_ = now, look();
  return blend_.at(step);
}

void BlendFile::look() {
  std::string text;
  try {
    text = base::read_file(path_, kLongestFile);
    if (text == text_) return;
    blend_ = Blend::parse(text, path_.string(), sources_);
  } catch (const base::Error& wrong) {
    if (text != text_ || !text.empty()) base::log_warning("the blend stays what it is: {}", wrong.what());
  }
  text_ = text;  // another look is worth its while when it is another text
}

}  // namespace ingot::data

#include "serve/api/text_so_far.h"

#include <algorithm>

namespace ingot::serve {

TextSoFar::TextSoFar(const data::Tokenizer& tokenizer, std::vector<std::string> stops, std::span<const int64_t> before)
    : decoder_(tokenizer), vocab_size_(tokenizer.vocab_size()), stops_(std::move(stops)) {
  constexpr size_t kEnough = 8;
  for (const int64_t id : before.last(std::min(before.size(), kEnough)))
    if (id < vocab_size_) decoder_.push(static_cast<int32_t>(id));
}

std::string TextSoFar::push(int64_t id) {
  if (is_stopped_ || id >= vocab_size_) return "";  // a padded vocabulary has rows without a token
  return show(decoder_.push(static_cast<int32_t>(id)));
}

std::string TextSoFar::finish() {
  if (is_stopped_) return "";
  auto text = show(decoder_.finish());
  if (!is_stopped_) text += std::exchange(held_, "");
  return text;
}

std::string TextSoFar::show(std::string more) {
  held_ += more;
  size_t first = std::string::npos;
  for (const auto& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    is_stopped_ = true;
    return std::exchange(held_, "").substr(0, first);
  }
  // The longest end that a stop text may begin with.
  size_t kept = 0;
  for (const auto& stop : stops_)
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > kept; --length)
      if (held_.ends_with(std::string_view(stop).substr(0, length))) kept = length;
  auto shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, held_.size() - kept);
  return shown;
}

}  // namespace ingot::serve

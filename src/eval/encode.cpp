#include "eval/encode.h"

#include <algorithm>

#include "base/error.h"
#include "data/utf8.h"

namespace ingot::eval {
namespace {

// str.isspace: besides White_Space four separators.
bool is_space(char32_t c) { return data::is_unicode_space(c) || (c >= 0x1c && c <= 0x1f); }

template <class See>
void each_character(const std::string& text, const See& see) {
  for (size_t at = 0; at < text.size();) {
    const auto point = data::decode_utf8(std::string_view(text).substr(at));
    const auto length = static_cast<size_t>(std::max(1, point.length));
    see(point.valid ? point.value : 0xFFFD, at, length);
    at += length;
  }
}

std::vector<int64_t> wide(const std::vector<int32_t>& ids) { return {ids.begin(), ids.end()}; }

}  // namespace

int64_t characters_of(const std::string& text) {
  int64_t count = 0;
  each_character(text, [&](char32_t, size_t, size_t) { ++count; });
  return count;
}

int64_t words_of(const std::string& text) {
  int64_t runs = 0;
  bool was_space = false;
  each_character(text, [&](char32_t c, size_t, size_t) {
    if (is_space(c) && !was_space) ++runs;
    was_space = is_space(c);
  });
  return runs + 1;
}

std::string stripped_right(const std::string& text) {
  size_t end = 0;
  each_character(text, [&](char32_t c, size_t at, size_t length) {
    if (!is_space(c)) end = at + length;
  });
  return text.substr(0, end);
}

std::string stripped(const std::string& text) {
  size_t begin = text.size();
  each_character(text, [&](char32_t c, size_t at, size_t) {
    if (!is_space(c)) begin = std::min(begin, at);
  });
  return stripped_right(text.substr(begin));
}

Encoder::Encoder(const data::Tokenizer& tokenizer, int64_t context) : tokenizer_(tokenizer), context_(context) {
  prefix_ = tokenizer.special().bos >= 0 ? tokenizer.special().bos : tokenizer.special().eos;
  if (prefix_ < 0)
    throw base::UsageError("{} has neither a bos nor an eos token, one of which comes before a text that has nothing before it",
                           tokenizer.path().string());
  const auto prefix = static_cast<int32_t>(prefix_);
  prefix_text_ = tokenizer.decode(std::span(&prefix, 1), /*keep_special=*/true);
}

std::vector<int64_t> Encoder::encode(const std::string& text) const {
  const bool has_prefix = !prefix_text_.empty() && text.starts_with(prefix_text_);
  return wide(has_prefix ? tokenizer_.encode(text) : tokenizer_.encode_with_special(text));
}

Pair Encoder::pair(std::string context, std::string continuation) const {
  auto before = stripped_right(context);
  continuation = context.substr(before.size()) + continuation;
  Pair pair;
  if (!before.empty()) {
    const auto whole = encode(before + continuation);
    pair.context = encode(before);
    if (pair.context.size() < whole.size())
      pair.continuation.assign(whole.begin() + static_cast<std::ptrdiff_t>(pair.context.size()), whole.end());
  } else {
    pair.continuation = wide(tokenizer_.encode(continuation));
    pair.context = {prefix_};
    if (!pair.continuation.empty() && pair.continuation.front() == prefix_) pair.continuation.erase(pair.continuation.begin());
  }
  if (pair.continuation.empty())
    throw base::DataError("\"{}\" has no tokens of its own behind \"…{}\": there is nothing to score", continuation,
                          before.substr(before.size() - std::min<size_t>(before.size(), 40)));
  if (pair.context.empty()) pair.context = {prefix_};
  return pair;
}

std::vector<Pair> Encoder::windows(const std::string& text, int64_t context) const {
  const auto ids = encode(text);
  std::vector<Pair> windows;
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t first = 0; first < count;) {
    const int64_t end = std::min(count, first + context);
    // The last one looks back as far as it can.
    const int64_t begin = first == 0 ? 0 : std::max<int64_t>(end - context - 1, 0);
    Pair window;
    if (first == 0) window.context = {prefix_};
    else window.context.assign(ids.begin() + begin, ids.begin() + first);
    window.continuation.assign(ids.begin() + first, ids.begin() + end);
    windows.push_back(std::move(window));
    first = end;
  }
  return windows;
}

bool Encoder::cut(Pair& pair) const {
  const auto own = static_cast<int64_t>(pair.continuation.size()), before = static_cast<int64_t>(pair.context.size());
  if (own > context_)
    throw base::DataError("a text of {} tokens is to be scored, and the model sees {}; shorten it, or give --context", own, context_);
  if (own + before <= context_ + 1) return false;
  pair.context.erase(pair.context.begin(), pair.context.end() - (context_ + 1 - own));
  return true;
}

}  // namespace ingot::eval

// What the engine's first rank tells the others before each pass.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/engine/text.h"

namespace ingot::serve {

struct News {
  std::vector<std::pair<int64_t, TextRequest>> begun;  // by serial number, in their order
  std::vector<int64_t> cancelled;                      // serial numbers of those under way
  int64_t dropped_pages = 0;                           // of beginnings that were kept: ranks that have unlike much of a text drop alike
  bool is_ending = false;
};

std::string write_news(const News& news);
News read_news(const std::string& text);

}  // namespace ingot::serve

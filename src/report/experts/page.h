// The page of `ingot plan moe-width`: throughput against latency of mixtures, and a table of all of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ingot::report {

struct ExpertPoint {
  int64_t experts = 1, top_k = 1, width = 0;
  double parameters = 0, tokens_per_s = 0, decode_s = 0, prefill_s = 0;  // tokens_per_s 0: does not fit, not drawn
  bool is_base = false, on_decode_front = false, on_prefill_front = false, on_decode_capacity_front = false,
       on_prefill_capacity_front = false;
  std::vector<std::string> cells;  // of the table
};

struct ExpertPage {
  std::string title;
  std::vector<std::string> notes;  // paragraphs
  std::vector<std::string> columns;
  std::vector<ExpertPoint> points;
};

/// `written`: when, as text.
std::string make_expert_page(const ExpertPage& page, std::string_view written);

}  // namespace ingot::report

#include "schedule/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace ingot::schedule {
namespace {

constexpr double kLeft = 118, kWidth = 760, kRight = 12, kTop = 44, kRow = 13, kGap = 7, kBottom = 24;
constexpr double kNarrowest = 0.4, kLetter = 5.2;  // of a bar that is drawn; of its name

struct Colour {
  const char *fill, *text;
};

// GEMMs, attention and states, memory, communication; after Okabe and Ito.
Colour colour_of(const Operation& operation) {
  if (std::holds_alternative<Gemm>(operation.work)) return {"#0072b2", "#fff"};
  if (std::holds_alternative<Attention>(operation.work) || std::holds_alternative<StateWork>(operation.work)) return {"#56b4e9", "#000"};
  if (std::holds_alternative<Move>(operation.work)) return {"#b0b0b0", "#000"};
  return std::get<Communication>(operation.work).group.size > 1 ? Colour{"#e69f00", "#000"} : Colour{"#009e73", "#fff"};
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

std::string bar(const Operation& operation, const Span& span, double unit, double y) {
  const double x = kLeft + span.begin_s * unit, width = (span.end_s - span.begin_s) * unit;
  if (width < kNarrowest) return "";
  const auto colour = colour_of(operation);
  const auto name = escaped(operation.name);
  auto out = fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"><title>{}</title></rect>\n", x, y,
                         width, kRow - 1, colour.fill, name);
  if (width > kLetter * static_cast<double>(operation.name.size()) + 4)
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" text-anchor=\"middle\">{}</text>\n", x + width / 2, y + kRow - 4,
                       colour.text, name);
  return out;
}

std::string legend(double y) {
  const std::pair<const char*, const char*> entries[] = {{"#0072b2", "matmul"},
                                                         {"#56b4e9", "attention, states"},
                                                         {"#b0b0b0", "memory"},
                                                         {"#e69f00", "collectives"},
                                                         {"#009e73", "communication"}};
  std::string out;
  double x = kLeft;
  for (const auto& [colour, name] : entries) {
    out +=
        fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0f}\" y=\"{:.0f}\">{}</text>\n",
                    x, y, colour, x + 14, y + 9, name);
    x += 34 + kLetter * static_cast<double>(std::string(name).size());
  }
  return out;
}

}  // namespace

std::string timeline_svg(const Program& program, const Replay& replay, const std::string& title) {
  std::set<Stream> streams;
  for (const auto& list : program.ranks)
    for (const auto& operation : list.operations()) streams.insert(operation.stream);
  const double unit = kWidth / std::max(replay.time_s, 1e-300);
  std::string bars;
  double y = kTop;
  for (size_t rank = 0; rank < program.ranks.size(); ++rank, y += kGap)
    for (const auto stream : streams) {
      const auto label = stream == *streams.begin() ? fmt::format("rank {} {}", rank, name_of(stream)) : name_of(stream);
      bars += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", kLeft - 6, y + kRow - 4, label);
      const auto& operations = program.ranks[rank].operations();
      for (size_t i = 0; i < operations.size(); ++i)
        if (operations[i].stream == stream) bars += bar(operations[i], replay.ranks[rank].spans[i], unit, y);
      y += kRow;
    }
  const double height = y + kBottom, width = kLeft + kWidth + kRight;
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
             "font-family=\"sans-serif\" font-size=\"9.5\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
             "<text x=\"{2:.0f}\" y=\"18\" font-size=\"13\" font-weight=\"bold\">{3}</text>\n"
             "<text x=\"{2:.0f}\" y=\"34\">{4:.2f} ms, of which {5:.2f} ms exposed (the rank with most to compute stands still)</text>\n",
             width, height, kLeft, escaped(title), replay.time_s * 1e3, replay.exposed_s * 1e3) +
         bars + legend(y + 4) + "</svg>\n";
}

}  // namespace ingot::schedule

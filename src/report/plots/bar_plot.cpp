#include "report/plots/bar_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"
#include "report/plots/palette.h"

namespace ingot::report {
namespace {

constexpr double kUnits = 10000;    // of the nested drawing, in both directions
constexpr size_t kFewestSlots = 8;  // fewer bars than this are not wider
constexpr size_t kMaxLabels = 6;
// Shares of a bar's slot: the bar, and beside it what went on at the same time.
constexpr double kBar = 0.56, kBeside = 0.16, kBarAlone = kBar + kBeside;

int units(double place) { return static_cast<int>(std::lround(std::clamp(place, 0.0, 1.0) * kUnits)); }

struct Geometry {
  const BarPlot& plot;
  double slot = kUnits / static_cast<double>(std::max(plot.bars.size(), kFewestSlots));

  int height(double value) const { return value > 0 ? units(plot.y.place(value)) : 0; }
  double left(size_t bar) const { return slot * static_cast<double>(bar); }
  int x(size_t bar) const { return static_cast<int>(std::lround(left(bar) + 0.14 * slot)); }
  int wide(double share) const { return std::max(1, static_cast<int>(std::lround(share * slot))); }
};

// From `low` to `high` in units above the base; "" when there is nothing of it.
std::string box(int x, int width, int low, int high) {
  if (high <= low) return "";
  return fmt::format("M{} {}h{}v{}h-{}z", x, static_cast<int>(kUnits) - low, width, low - high, width);
}

std::string boxes(const Geometry& at) {
  const auto& plot = at.plot;
  const int width = at.wide(plot.beside.name.empty() ? kBarAlone : kBar);
  std::vector<std::string> paths(plot.parts.size());
  std::string beside, ticks, failed;
  for (size_t bar = 0; bar < plot.bars.size(); ++bar) {
    const auto& b = plot.bars[bar];
    double top = 0;
    for (size_t part = 0; part < std::min(paths.size(), b.heights.size()); ++part) {
      if (!(b.heights[part] > 0)) continue;
      paths[part] += box(at.x(bar), width, at.height(top), at.height(top + b.heights[part]));
      top += b.heights[part];
    }
    beside += box(at.x(bar) + width, at.wide(kBeside), at.height(b.beside_from), at.height(b.beside_to));
    if (b.tick > 0) ticks += fmt::format("M{} {}h{}", at.x(bar), static_cast<int>(kUnits) - at.height(b.tick), at.wide(kBarAlone));
    if (b.failed) failed += box(static_cast<int>(std::lround(at.left(bar))), at.wide(1), 0, static_cast<int>(kUnits));
  }
  std::string out;
  const auto add = [&](std::string_view style, const std::string& path) {
    if (!path.empty()) out += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", style, path);
  };
  add("failed", failed);
  for (size_t part = 0; part < paths.size(); ++part) add(plot.parts[part].style, paths[part]);
  add(plot.beside.style, beside);
  add("tick", ticks);
  return out;
}

std::string titles(const Geometry& at) {
  std::string out;
  for (size_t bar = 0; bar < at.plot.bars.size(); ++bar) {
    out += fmt::format("<rect class=\"hit\" x=\"{:.0f}\" width=\"{}\" height=\"{:.0f}\"><title>{}</title></rect>\n", at.left(bar),
                       at.wide(1), kUnits, escape(at.plot.bars[bar].text));
  }
  return out;
}

std::string frame(const Geometry& at) {
  const auto& plot = at.plot;
  std::string out;
  for (const auto& tick : ticks(plot.y, 5)) {
    out += fmt::format(
        "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{0:.2f}%\" y2=\"{0:.2f}%\"/><text class=\"y\" x=\"-8\" y=\"{0:.2f}%\" "
        "dy=\".35em\">{1}</text>\n",
        100 * (1 - plot.y.place(tick.value)), tick.label);
  }
  const size_t stride = (plot.bars.size() + kMaxLabels - 1) / kMaxLabels;
  for (size_t bar = 0; bar < plot.bars.size(); bar += stride) {
    const double first = plot.bars[bar].x.first;
    out += fmt::format("<text class=\"x\" x=\"{:.2f}%\" y=\"100%\" dy=\"1.5em\">{}</text>\n", 100 * (at.left(bar) + at.slot / 2) / kUnits,
                       text_of({first, first}));
  }
  return out + "<line class=\"base\" x1=\"0\" x2=\"100%\" y1=\"100%\" y2=\"100%\"/>\n";
}

// Above the frame, so that failures do not need their colour to be seen.
std::string crosses_and_marks(const Geometry& at) {
  std::string out;
  for (size_t bar = 0; bar < at.plot.bars.size(); ++bar) {
    const auto& b = at.plot.bars[bar];
    if (b.failed) {
      out += fmt::format(
          "<g class=\"cross\"><title>{}</title><svg x=\"{:.2f}%\" y=\"0\" overflow=\"visible\"><path d=\"M-4-11l8 8m0-8l-8 "
          "8\"/></svg></g>\n",
          escape(b.text), 100 * (at.left(bar) + at.slot / 2) / kUnits);
    }
    if (!b.mark.empty()) {
      out += fmt::format(
          "<g class=\"mark c{0}\"><title>{1}</title><line x1=\"{2:.2f}%\" x2=\"{2:.2f}%\" y1=\"0\" y2=\"100%\"/><svg x=\"{2:.2f}%\" "
          "y=\"0\" overflow=\"visible\"><path d=\"M-5-6h10l-5 7z\"/></svg></g>\n",
          colour_of(at.plot.run), escape(b.mark), 100 * at.left(bar) / kUnits);
    }
  }
  return out;
}

std::string key(const BarPlot& plot) {
  std::string out = "<p class=\"keys\">";
  const auto add = [&](std::string_view style, std::string_view name) {
    if (!name.empty()) out += fmt::format("<span><span class=\"dot {}\"></span>{}</span>", style, escape(name));
  };
  for (const auto& part : plot.parts) add(part.style, part.name);
  add(plot.beside.style, plot.beside.name);
  add("tick", plot.tick_name);
  if (std::any_of(plot.bars.begin(), plot.bars.end(), [](const Bar& bar) { return bar.failed; })) add("failed", "failed");
  return out + "</p>";
}

}  // namespace

std::string render(const BarPlot& plot) {
  if (plot.bars.empty()) return "";
  const Geometry at{plot};
  std::string out = fmt::format("<figure class=\"{}r{}\"><figcaption><h3>{}</h3><p>{}</p>{}</figcaption>\n<div class=\"plot\">",
                                plot.wide ? "wide " : "", plot.run, escape(plot.title), escape(plot.note), key(plot));
  out += fmt::format("<span class=\"unit\">{}</span><span class=\"xlabel\">{}</span>", escape(plot.unit), escape(plot.x_label));
  out += fmt::format("<svg width=\"100%\" height=\"100%\" role=\"img\" aria-label=\"{}\">\n", escape(plot.title));
  out += frame(at) + crosses_and_marks(at);
  out += fmt::format("<svg class=\"b\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {0} {0}\" preserveAspectRatio=\"none\">\n",
                     static_cast<int>(kUnits));
  return out + boxes(at) + titles(at) + "</svg></svg></div></figure>\n";
}

}  // namespace ingot::report

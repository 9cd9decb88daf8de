#include "report/page/document.h"

#include <fmt/format.h>

#include <ctime>

#include "report/page/assets.h"
#include "report/page/html.h"
#include "report/plots/palette.h"

namespace ingot::report {
namespace {

// The last line names a file for debuggers, which a page does not bring along.
std::string_view without_map(std::string_view script) { return script.substr(0, script.rfind("//# sourceMappingURL=")); }

}  // namespace

std::string local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts)};
}

std::string document(std::string_view title, std::string_view written, std::string_view body) {
  // The policy forbids every request, so that a hostile name in a file could not call home even if it got past escape().
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      "<title>{0} – ingot report</title>\n<style>{1}</style>\n"
      "<noscript><style>.plot{{height:auto!important}}</style></noscript></head>\n"
      "<body><main>\n<header><h1>{0}</h1><p class=\"when\">ingot report, {2}</p>\n"
      "<noscript><p class=\"when\">Plots need JavaScript, which is off here: some values stand in the places of curves and small maps, "
      "and the tables are whole.</p></noscript></header>\n"
      "{3}</main>\n<script>{4}</script>\n<script>{5}</script>\n</body></html>\n",
      escape(title), kStyleSheet, escape(written), body, without_map(kDygraphs), kPlotScript);
}

std::string name_bar(const std::vector<std::string>& names, std::string_view what) {
  if (names.size() < 2) return "";
  std::string out = fmt::format("<nav class=\"runs\" aria-label=\"{}\">", what);
  for (size_t i = 0; i < names.size(); ++i) {
    out += fmt::format("<button type=\"button\" class=\"chip\" data-r=\"{}\"><span class=\"dot {}\"></span>{}</button>", i, colour_class(i),
                       escape(names[i]));
  }
  return out + "</nav>\n";
}

}  // namespace ingot::report

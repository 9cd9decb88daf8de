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

// The policy forbids every request, but those that `allowed` names, so that a hostile name in a file could not call home even if it got
// past escape().
std::string whole(std::string_view title, std::string_view allowed, std::string_view attributes, std::string_view main,
                  std::string_view more_script) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'{1}\">\n"
      "<title>{0} – ingot report</title>\n<style>{2}</style>\n"
      "<noscript><style>.plot{{height:auto!important}}</style></noscript></head>\n"
      "<body{3}><main>\n{4}</main>\n<script>{5}</script>\n<script>{6}</script>\n{7}</body></html>\n",
      escape(title), allowed, kStyleSheet, attributes, main, without_map(kDygraphs), kPlotScript, more_script);
}

}  // namespace

std::string local_time() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M", &parts)};
}

std::string main_of(std::string_view title, std::string_view written, std::string_view body) {
  return fmt::format(
      "<header><h1>{}</h1><p class=\"when\">ingot report, {}</p>\n"
      "<noscript><p class=\"when\">Plots need JavaScript, which is off here: some values stand in the places of curves and small maps, "
      "and the tables are whole.</p></noscript></header>\n{}",
      escape(title), escape(written), body);
}

std::string document(std::string_view title, std::string_view written, std::string_view body, std::string_view script) {
  return whole(title, "", "", main_of(title, written, body), script.empty() ? "" : fmt::format("<script>{}</script>\n", script));
}

std::string live_document(std::string_view title, std::string_view main, std::string_view tag) {
  return whole(title, "; connect-src 'self'", fmt::format(" data-tag=\"{}\"", escape(tag)), main,
               fmt::format("<script>{}</script>\n", kLiveScript));
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

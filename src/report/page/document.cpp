#include "report/page/document.h"

#include <fmt/format.h>

#include "report/page/assets.h"
#include "report/page/html.h"
#include "report/plots/palette.h"

namespace ingot::report {

std::string document(std::string_view title, std::string_view written, std::string_view body) {
  // The policy forbids every request, so that a hostile name in a file could not call home even if it got past escape().
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      "<title>{0} – ingot report</title>\n<style>{1}</style></head>\n<body><main>\n<header><h1>{0}</h1><p class=\"when\">ingot report, "
      "{2}</p></header>\n{3}</main>\n<script>{4}</script>\n</body></html>\n",
      escape(title), kStyleSheet, escape(written), body, kScript);
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

// The page at / of the server, as it lies in the program (cmake/Embed.cmake): a browser's way to try a prompt. It loads nothing else.
#pragma once

#include <string_view>

namespace ingot::serve {

extern const std::string_view kPage;  // page/page.html

}  // namespace ingot::serve

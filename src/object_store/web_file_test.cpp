#include "object_store/web_file.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "object_store/test_server.h"

namespace ingot::object_store {
namespace {

using testing::HasSubstr;

// A file behind ranges; `spoil` may answer in its place.
struct Web {
  std::string content = std::string(100000, 'x');
  std::string etag = "\"one\"";
  std::function<std::optional<Answer>(const Asked&)> spoil;
  std::atomic<int> requests = 0;
  TestServer server{[this](const Asked& asked) {
    ++requests;
    if (spoil)
      if (auto answer = spoil(asked)) return *answer;
    return ranged(asked);
  }};

  Web() {
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>('a' + i % 26 + i / 1000 % 3);
  }
  Answer ranged(const Asked& asked) const {
    long first = 0, last = 0;
    if (std::sscanf(asked.header("range").c_str(), "bytes=%ld-%ld", &first, &last) != 2) return {200, content};
    if (first >= static_cast<long>(content.size())) return {416, "", {{"Content-Range", "bytes */" + std::to_string(content.size())}}};
    last = std::min(last, static_cast<long>(content.size()) - 1);
    return {206,
            content.substr(static_cast<size_t>(first), static_cast<size_t>(last - first + 1)),
            {{"Content-Range", fmt::format("bytes {}-{}/{}", first, last, content.size())}, {"ETag", etag}}};
  }
  std::string url(const std::string& path = "/file") const { return server.url() + path; }
};

constexpr WebOptions kHasty{.attempts = 4, .deadline_s = 20, .first_pause_s = 0.001, .longest_pause_s = 0.01};

std::string read(const WebFile& file, int64_t offset, int64_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  file.read_at(offset, text.data(), size);
  return text;
}

template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const base::FileError& error) {
    return error.what();
  }
  return "no error";
}

TEST(WebFile, is_read_by_ranges) {
  const Web web;
  const WebFile file(web.url(), kHasty);
  EXPECT_EQ(file.size_bytes(), 100000);
  EXPECT_EQ(read(file, 0, 100000), web.content);
  EXPECT_EQ(read(file, 4321, 1), web.content.substr(4321, 1));
}

TEST(WebFile, what_may_pass_is_tried_again) {
  Web web;
  const WebFile file(web.url(), kHasty);
  for (const auto& wrong : {Answer{503, "busy"}, Answer{429, ""}, Answer{.closes = true},
                            Answer{206, "short", {{"Content-Range", "bytes 0-9/100000"}, {"ETag", "\"one\""}}},
                            Answer{206, "0123456789", {{"Content-Range", "bytes 5-14/100000"}, {"ETag", "\"one\""}}},
                            Answer{206, "0123456789", {{"ETag", "\"one\""}}}}) {
    int left = 2;
    web.spoil = [&](const Asked&) { return left-- > 0 ? std::optional(wrong) : std::nullopt; };
    EXPECT_EQ(read(file, 0, 10), web.content.substr(0, 10)) << wrong.status << " " << wrong.body;
    web.spoil = [&](const Asked&) { return std::optional(wrong); };
    web.requests = 0;
    EXPECT_THAT(error_of([&] { read(file, 0, 10); }), HasSubstr("bytes 0 to 9 do not come")) << wrong.status;
    EXPECT_GE(web.requests, 4);  // libcurl itself asks once more where a kept connection was closed
    EXPECT_LE(web.requests, 8);
  }
}

TEST(WebFile, a_file_that_changes_is_an_error) {
  Web web;
  const WebFile file(web.url(), kHasty);
  web.etag = "\"two\"";
  EXPECT_THAT(error_of([&] { read(file, 0, 10); }), HasSubstr("was changed while it was read"));
  web.etag.clear();
  const WebFile nameless(web.url(), kHasty);
  web.content += "more";
  EXPECT_THAT(error_of([&] { read(nameless, 0, 10); }), HasSubstr("was changed while it was read"));
}

TEST(WebFile, another_size_of_the_same_version_is_a_broken_answer) {
  Web web;
  const WebFile file(web.url(), kHasty);
  web.content += "more";
  EXPECT_THAT(error_of([&] { read(file, 0, 10); }), HasSubstr("it answers with other bytes than were asked for"));
  web.content.resize(web.content.size() - 4);
  EXPECT_EQ(read(file, 0, 10), web.content.substr(0, 10));
}

TEST(WebFile, redirects_are_followed_and_expired_ones_once_more) {
  Web web;
  int link = 1;
  web.spoil = [&](const Asked& asked) -> std::optional<Answer> {
    if (asked.path == "/file") return Answer{302, "", {{"Location", fmt::format("/link{}", link)}}};
    if (asked.path == "/round") return Answer{302, "", {{"Location", "/round"}}};
    if (asked.path == "/away") return Answer{302, "", {{"Location", "ftp://elsewhere"}}};
    if (asked.path != fmt::format("/link{}", link)) return Answer{403, "expired"};
    return std::nullopt;
  };
  const WebFile file(web.url(), kHasty);
  EXPECT_EQ(read(file, 10, 10), web.content.substr(10, 10));
  link = 2;
  EXPECT_EQ(read(file, 20, 10), web.content.substr(20, 10));
  EXPECT_THAT(error_of([&] { WebFile(web.url("/round"), kHasty); }), HasSubstr("more than 5 times"));
  EXPECT_THAT(error_of([&] { WebFile(web.url("/away"), kHasty); }), HasSubstr("redirected to nowhere"));
}

TEST(WebFile, what_cannot_be_read_is_said) {
  Web web;
  web.spoil = [&](const Asked& asked) -> std::optional<Answer> {
    if (asked.path == "/none") return Answer{404, "none"};
    if (asked.path == "/whole") return Answer{200, "all of it"};
    return std::nullopt;
  };
  EXPECT_THAT(error_of([&] { WebFile(web.url("/none"), kHasty); }), HasSubstr("HTTP 404"));
  EXPECT_THAT(error_of([&] { WebFile(web.url("/whole"), kHasty); }), HasSubstr("does not give ranges"));
  EXPECT_THAT(error_of([&] { WebFile("http://127.0.0.1:1/x", {.attempts = 2, .first_pause_s = 0.001}); }),
              HasSubstr("gave up after 2 attempts"));
  web.content = "";
  web.spoil = nullptr;
  EXPECT_EQ(WebFile(web.url(), kHasty).size_bytes(), 0);
}

}  // namespace
}  // namespace ingot::object_store

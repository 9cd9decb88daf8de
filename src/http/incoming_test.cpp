#include "http/incoming.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace ingot::http {
namespace {

using State = Incoming::State;

State all_at_once(const std::string& bytes) { return Incoming(1000).add(bytes); }

TEST(Incoming, is_whole_with_its_last_byte_however_it_is_cut) {
  const std::vector<std::string> requests = {
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
      "POST / HTTP/1.1\r\ncontent-length:  5 \r\n\r\nab\r\nc",
      "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\na;name=value\r\n\r\n\r\n0\r\n\r\n0\r\n0\r\n\r\n",
  };
  std::mt19937 draw(1);
  for (const auto& request : requests)
    for (int round = 0; round < 50; ++round) {
      Incoming incoming(1000);
      for (size_t at = 0; at < request.size();) {
        const size_t bytes = std::min<size_t>(round == 0 ? 1 : 1 + draw() % 20, request.size() - at);
        at += bytes;
        EXPECT_EQ(incoming.add(request.substr(at - bytes, bytes)), at < request.size() ? State::coming : State::whole) << request << at;
      }
      EXPECT_EQ(incoming.take(), request);
    }
}

TEST(Incoming, does_not_wait_for_what_is_too_long_or_malformed) {
  const std::string head = "POST / HTTP/1.1\r\n", chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(all_at_once(head + "Content-Length: 1000\r\n\r\n"), State::coming);
  EXPECT_EQ(all_at_once(head + "Content-Length: 1001\r\n\r\n"), State::whole);
  EXPECT_EQ(all_at_once(head + "Content-Length: -1\r\n\r\n"), State::whole);
  EXPECT_EQ(all_at_once(head + "Content-Length: 99999999999999999999999\r\n\r\n"), State::whole);
  EXPECT_EQ(all_at_once(head + "Content-Length: 2\r\nContent-Length: 900\r\n\r\nab"), State::whole) << "the first one counts";
  EXPECT_EQ(all_at_once(chunked + "3e9\r\n"), State::too_long);
  EXPECT_EQ(all_at_once(chunked + "ffffffffffffffff\r\n"), State::too_long);
  EXPECT_EQ(all_at_once(chunked + "1ffffffffffffffff\r\n"), State::whole) << "no such length";
  EXPECT_EQ(all_at_once(chunked + "-1\r\n"), State::whole);
  EXPECT_EQ(all_at_once(chunked + "\r\n"), State::whole);
  EXPECT_EQ(all_at_once(chunked + std::string(1025, '1')), State::whole) << "a length without an end";
  std::string many;
  for (int i = 0; i < 300; ++i) many += "1\r\na\r\n";
  EXPECT_EQ(all_at_once(chunked + many), State::too_long);
  EXPECT_EQ(all_at_once("GET /" + std::string(900, 'a')), State::coming);
  EXPECT_EQ(all_at_once("GET /" + std::string(1000, 'a')), State::head_too_long);
  EXPECT_EQ(all_at_once("GET / HTTP/1.1\r\n" + std::string(1000, 'a') + "\r\n\r\n"), State::head_too_long);
}

TEST(Incoming, tells_once_that_a_client_waits_to_be_asked) {
  Incoming incoming(1000);
  incoming.add("POST / HTTP/1.1\r\nExpect: 100-continue\r\n");
  EXPECT_FALSE(incoming.wants_to_be_asked());
  incoming.add("Content-Length: 3\r\n\r\n");
  EXPECT_TRUE(incoming.wants_to_be_asked());
  EXPECT_FALSE(incoming.wants_to_be_asked());
}

// Of bytes that are drawn from pieces of requests: cut otherwise, they come to the same.
TEST(Incoming, says_the_same_of_any_bytes_however_they_are_cut) {
  const std::vector<std::string> pieces = {"\r\n",
                                           "\n",
                                           "\r",
                                           "\r\n\r\n",
                                           "POST / HTTP/1.1",
                                           "Content-Length: 7",
                                           "Transfer-Encoding: chunked",
                                           ":",
                                           " ",
                                           "0",
                                           "5",
                                           "ff",
                                           std::string(1, '\0'),
                                           "Expect: 100-continue",
                                           "\x80",
                                           "abcdefg"};
  std::mt19937 draw(2);
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (auto count = draw() % 30; count > 0; --count) bytes += pieces[draw() % pieces.size()];
    const auto expected = all_at_once(bytes);
    Incoming incoming(1000);
    auto state = State::coming;
    for (size_t at = 0; at < bytes.size() && state == State::coming; ++at) state = incoming.add(bytes.substr(at, 1));
    EXPECT_EQ(state, expected) << bytes;
  }
}

}  // namespace
}  // namespace ingot::http

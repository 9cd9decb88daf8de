#include "serve/engine/changes.h"

#include <gtest/gtest.h>

#include <thread>

#include "models/family.h"
#include "serve/engine/engine.h"

namespace ingot::serve {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(Changes, wake_who_waits_and_nobody_who_has_seen_them) {
  Changes changes;
  changes.tell();
  const auto begin = Clock::now();
  changes.wait(0, milliseconds(60000));  // what was told before it waits counts
  EXPECT_EQ(changes.count(), 1);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    changes.tell();
  });
  changes.wait(1, milliseconds(60000));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  other.join();
  const auto then = Clock::now();
  changes.wait(2, milliseconds(20));
  EXPECT_GE(Clock::now() - then, milliseconds(20));
}

// Was a bug: a stream of several texts waited for news of the first one, while others had some.
TEST(Changes, tell_of_each_token_and_end_of_texts_that_were_submitted_together) {
  const auto model = models::create_model(models::small_model("llama"));
  model->allocate(at::kFloat);
  model->initialise(3);
  Engine engine(*model, {.most_texts = 2});
  std::vector<TextRequest> requests(3);  // the last one waits until another has ended
  for (size_t i = 0; i < requests.size(); ++i) requests[i] = {.prompt = {1, 2, 3}, .most_tokens = 10 + 20 * static_cast<int64_t>(i)};
  const auto texts = engine.submit_all(requests);
  std::vector<int64_t> tokens(texts.size());
  for (size_t ended = 0; ended < texts.size();) {
    const auto seen = texts[0]->changes().count();
    bool is_news = false;
    ended = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto news = texts[i]->wait(milliseconds(0));
      tokens[i] += static_cast<int64_t>(news.tokens.size());
      is_news = is_news || !news.tokens.empty();
      ended += news.ended == Ended::not_yet ? 0 : 1;
    }
    const auto begin = Clock::now();
    if (!is_news && ended < texts.size()) texts[0]->changes().wait(seen, milliseconds(60000));
    ASSERT_LT(Clock::now() - begin, std::chrono::seconds(30)) << "nobody told";
  }
  EXPECT_EQ(tokens, (std::vector<int64_t>{10, 30, 50}));
}

}  // namespace
}  // namespace ingot::serve

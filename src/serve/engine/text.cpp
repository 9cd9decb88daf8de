#include "serve/engine/text.h"

namespace ingot::serve {

Text::News Text::wait(std::chrono::milliseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return !new_.empty() || ended_ != Ended::not_yet; });
  News news{std::move(new_), ended_};
  new_.clear();
  return news;
}

void Text::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
}

std::string Text::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Text::add(Choice choice) {
  {
    const std::lock_guard lock(mutex_);
    new_.push_back(std::move(choice));
  }
  changed_.notify_all();
  changes_->tell();
}

void Text::end(Ended how, std::string why, std::optional<Choice> last) {
  {
    const std::lock_guard lock(mutex_);
    if (last) new_.push_back(std::move(*last));
    ended_ = how;
    failure_ = std::move(why);
  }
  changed_.notify_all();
  changes_->tell();
}

bool Text::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

}  // namespace ingot::serve

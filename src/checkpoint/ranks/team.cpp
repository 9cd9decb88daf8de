#include "checkpoint/ranks/team.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "checkpoint/format/coding.h"

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

class Alone : public Team {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::vector<std::string> gather(const std::string& own) const override { return {own}; }
  std::string broadcast(const std::string& text) const override { return text; }
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>&) const override {
    if (send_bytes.at(0) > 0) std::memcpy(receive, send, static_cast<size_t>(send_bytes[0]));
  }
};

// A result begins with '+', an error message with '-'.
std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return "+" + work();
  } catch (const base::CommError&) {
    throw;  // nobody can be told any more
  } catch (const std::exception& failure) {
    return std::string("-") + failure.what();
  }
}

}  // namespace

std::string Team::scatter(const std::vector<std::string>& texts) const {
  Encoder all;
  for (const auto& text : texts) all.text(text);
  const auto bytes = broadcast(all.bytes);
  Decoder in(bytes, "rank 0", "list of texts");
  for (int r = 0; r < rank(); ++r) in.take(in.count(1));
  return in.text();
}

bool Team::all(bool own) const {
  const auto answers = gather(own ? "1" : "0");
  return broadcast(std::all_of(answers.begin(), answers.end(), [](const auto& answer) { return answer == "1"; }) ? "1" : "0") == "1";
}

const Team& alone() {
  static const Alone team;
  return team;
}

std::string on_first(const Team& team, const std::function<std::string()>& work) {
  if (team.size() == 1) return work();
  const auto outcome = team.broadcast(team.rank() == 0 ? outcome_of(work) : "");
  if (outcome.empty() || outcome[0] != '+') throw CheckpointError("{}", outcome.empty() ? "rank 0 sent nothing" : outcome.substr(1));
  return outcome.substr(1);
}

Gathered on_each(const Team& team, const std::function<std::string()>& work) {
  std::vector<std::string> outcomes;
  if (team.size() == 1) outcomes.push_back(work());
  else outcomes = team.gather(outcome_of(work));
  std::string errors;
  for (size_t rank = 0; rank < outcomes.size() && team.size() > 1; ++rank) {
    if (outcomes[rank].empty() || outcomes[rank][0] != '+')
      errors += fmt::format("{}rank {}: {}", errors.empty() ? "" : "\n", rank,
                            outcomes[rank].empty() ? "sent nothing" : outcomes[rank].substr(1));
    else outcomes[rank].erase(0, 1);
  }
  return [outcomes = std::move(outcomes), errors = std::move(errors)]() -> const std::vector<std::string>& {
    if (!errors.empty()) throw CheckpointError("{}", errors);
    return outcomes;
  };
}

void for_all(const Team& team, const std::function<void()>& work) {
  if (team.size() == 1) return work();
  std::exception_ptr own;
  const auto done = on_each(team, [&] {
    try {
      work();
    } catch (...) {
      own = std::current_exception();
      throw;
    }
    return std::string();
  });
  on_first(team, [&] {
    done();
    return std::string();
  });
  if (own) std::rethrow_exception(own);  // whatever rank 0 was told
}

std::vector<std::string> gather_everywhere(const Team& team, const std::function<std::string()>& work) {
  if (team.size() == 1) return {work()};
  const auto gathered = on_each(team, work);
  const auto told = on_first(team, [&] {
    Encoder out;
    for (const auto& text : gathered()) out.text(text);
    return std::move(out.bytes);
  });
  Decoder in(told, "rank 0", "list of texts");
  std::vector<std::string> texts;
  for (int rank = 0; rank < team.size(); ++rank) texts.push_back(in.text());
  in.finish();
  return texts;
}

}  // namespace ingot::checkpoint

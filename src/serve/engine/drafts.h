// Guesses at a text's next tokens, which the model then looks at in one pass. A guess is taken where it is what the model chooses in its
// place by the same draw, so the text is the same as without.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace ingot::serve {

/// Finds where a text's newest tokens were before (prompt lookup).
class Lookup {
 public:
  /// What followed there, `most` tokens at most; nothing where they are new. `ids` is the text so far, which only grows.
  std::vector<int64_t> drafts(std::span<const int64_t> ids, int64_t most);

 private:
  std::unordered_map<uint64_t, int64_t> last_;  // where runs of tokens last ended, by their hash
  int64_t read_ = 0;                            // tokens of which the runs that end there are known
};

/// How many drafts are worth their while: more where they were taken, fewer where not, none for a while where none ever is.
class DraftLength {
 public:
  explicit DraftLength(int64_t most) : most_(most), wanted_(std::min<int64_t>(most, 4)) {}
  /// Of the next pass.
  int64_t next();
  void learn(int64_t drafted, int64_t taken);

 private:
  int64_t most_, wanted_, pause_ = 0, left_ = 0;
};

}  // namespace ingot::serve

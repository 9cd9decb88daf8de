// The ranks that save one checkpoint together, as far as the engine must know: who is who, and passing small texts. What is large goes
// through files, and when loading from the rank that has read it to those that want it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ingot::checkpoint {

class Team {
 public:
  virtual ~Team() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The texts of all ranks in their order, on rank 0; nothing elsewhere. All ranks call it.
  virtual std::vector<std::string> gather(const std::string& own) const = 0;
  /// The text of rank 0, everywhere. All ranks call it.
  virtual std::string broadcast(const std::string& text) const = 0;
  /// On each rank its own of the texts that rank 0 gives, one a rank. All ranks call it.
  virtual std::string scatter(const std::vector<std::string>& texts) const;
  /// send_bytes[r] of what lies at `send`, one after the other, go to rank r; receive_bytes[r] come from it. All ranks call it.
  virtual void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                          const std::vector<int64_t>& receive_bytes) const = 0;
  /// Whether it is true on all ranks. All ranks call it.
  virtual bool all(bool own) const;
};

/// A team of one.
const Team& alone();

/// Runs `work` on rank 0 and returns its result on all ranks. What it throws is thrown by all as CheckpointError.
std::string on_first(const Team& team, const std::function<std::string()>& work);

/// Runs `work` on all ranks; when it throws on any, all throw a CheckpointError that names them.
void for_all(const Team& team, const std::function<void()>& work);

/// Runs `work` on all ranks. On rank 0 calling what this returns gives the results in the order of ranks; when some threw, it throws a
/// CheckpointError that names them all. Elsewhere it is never called: the others hear of it in the next on_first.
using Gathered = std::function<const std::vector<std::string>&()>;
Gathered on_each(const Team& team, const std::function<std::string()>& work);

/// The results of all ranks in their order, on all ranks; what any throws is thrown by all.
std::vector<std::string> gather_everywhere(const Team& team, const std::function<std::string()>& work);

}  // namespace ingot::checkpoint

// PREFIX.pieces: where processes that tokenise into one dataset share the work, on machines that share the folder. It holds plan.json
// (what it is made from) and, for each piece NNNNNN, a lock, a dataset and, last, a record of what is in it. Nothing but a record says that
// a piece is finished, and a piece has the same bytes whoever makes it: locks only keep processes from doing the same twice. Where the file
// system has no locks, or none that reach over machines or end with a machine, they are leases: who gives no sign of life loses his piece.
//
// One thread at a time, but for claims, each of which belongs to one thread.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/tokenize/piece_record.h"
#include "data/tokenize/plan.h"

namespace ingot::data {

/// Work that no other process does, as far as is known, while it lives.
class PieceClaim {
 public:
  /// `file`: which is locked, or, without a lock, a folder whose making was the claim, and which goes with it.
  PieceClaim(size_t piece, fs::path file, std::optional<base::FileLock> lock, double lease_s);
  PieceClaim(const PieceClaim&) = delete;
  PieceClaim& operator=(const PieceClaim&) = delete;
  ~PieceClaim();
  size_t piece() const { return piece_; }
  /// A sign of life; cheap. A holder that gives none for a lease is taken for dead: locks of machines that vanish may stay.
  void beat();

 private:
  size_t piece_;
  fs::path file_;
  std::optional<base::FileLock> lock_;
  double every_s_;
  std::chrono::steady_clock::time_point beaten_{};
};

class PieceFolder {
 public:
  /// Makes the folder, or goes on in it. Throws UsageError that says what differs where pieces of other inputs or settings are in it,
  /// unless `overwrite` or none of them is finished and nobody is at work. `plan` must outlive it.
  PieceFolder(const fs::path& prefix, const TokenizePlan& plan, bool overwrite, double lease_s);

  /// What the pieces beside a dataset are made from; null without any.
  static nlohmann::ordered_json plan_in(const fs::path& prefix);

  /// Looks what is finished by now.
  void refresh();
  size_t finished() const { return records_.size(); }
  int64_t finished_bytes() const { return finished_bytes_; }
  bool is_complete() const { return records_.size() == plan_.pieces.size(); }
  const std::map<size_t, PieceRecord>& records() const { return records_; }

  /// The first piece that is neither finished nor at work; null where there is none. Throws FileError where the folder is gone.
  std::unique_ptr<PieceClaim> claim_piece();
  /// The right to join the pieces; null while another has it.
  std::unique_ptr<PieceClaim> claim_join() { return claim(plan_.pieces.size(), "join"); }

  /// Where this process writes a piece, and what is made of all.
  fs::path aside(const std::string& name) const { return folder_ / (name + "." + owner_); }
  fs::path prefix_of(size_t piece) const { return folder_ / name_of(piece); }
  static std::string name_of(size_t piece);
  /// Puts what was written aside in its place, durably.
  void finish(size_t piece, const PieceRecord& record);

  /// All of it.
  void remove();
  /// After a failure: only if no piece is finished and nobody is at work.
  void remove_if_idle();

 private:
  std::unique_ptr<PieceClaim> claim(size_t piece, const std::string& name);
  bool take_away(size_t piece, const fs::path& held);
  bool is_idle() const;
  bool has_files_of(size_t piece, const PieceRecord& record) const;
  void begin(bool overwrite);
  void remove_leftovers() const;

  const TokenizePlan& plan_;
  fs::path folder_;
  std::string owner_;
  double lease_s_;
  bool has_locks_ = true;  // the file system
  std::map<size_t, PieceRecord> records_;
  int64_t finished_bytes_ = 0;
  size_t first_ = 0;  // that is not finished, as far as is known
  struct Beat {
    fs::file_time_type time;
    std::chrono::steady_clock::time_point since;
  };
  std::map<size_t, Beat> beats_;  // of holders, as they were seen last
};

}  // namespace ingot::data

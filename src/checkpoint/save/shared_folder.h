// A folder that all ranks see, where checkpoints are durable: rank 0 makes a hidden folder, all write into it, and one rename makes it
// visible.
#pragma once

#include <memory>

#include "checkpoint/ranks/team.h"
#include "checkpoint/save/destination.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {

class SharedFolder : public Destination {
 public:
  /// `grace_s`: leftovers of dead processes younger than this stay. Storage and team must outlive it.
  SharedFolder(fs::path folder, const Storage& storage, const Team& team, const Retention& retention, double grace_s);
  ~SharedFolder() override;
  const Storage& storage() const override { return storage_; }
  fs::path path_of(int64_t step) const override { return folder_ / step_name(step); }
  std::string name_of_file(const CheckpointId& id, uint32_t file) const override;
  Place begin(int64_t step, const std::optional<CheckpointId>& id) override;
  void commit(const std::function<Written&()>& written) override;
  void clean() override;
  void abandon() override;

 private:
  class Hidden;
  void lock_writers();
  fs::path folder_;
  const Storage& storage_;
  const Team& team_;
  Retention retention_;
  double grace_s_;
  int64_t step_ = 0;
  std::shared_ptr<void> writers_;   // on rank 0: keeps other jobs out, where the storage can
  std::unique_ptr<Hidden> hidden_;  // on rank 0, of the save under way
};

}  // namespace ingot::checkpoint

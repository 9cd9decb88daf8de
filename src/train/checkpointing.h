// What a run keeps in a checkpoint, and how it comes back: full-precision weights, optimizer moments, where it stands in the
// data, and its resolved configuration. Random numbers are pure functions of (seed, name, index), so their state is the
// seeds in the configuration.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"
#include "checkpoint/load/load.h"
#include "checkpoint/ranks/team.h"
#include "checkpoint/save/writer.h"
#include "comm/group.h"
#include "device/host_copies.h"
#include "models/model.h"
#include "optim/optimizer.h"

namespace ingot::train {

/// Where a run stands; everything else follows from the configuration.
struct Progress {
  int64_t step = 0;    // steps done
  int64_t tokens = 0;  // trained on
  // Of the samples of the present phase those that no step has taken: the run went back over them (resilience.spike = "back").
  int64_t passed_over = 0;
  std::string to_json() const;
  static Progress from_json(const std::string& text, const std::string& origin);  // throws CheckpointError
};

/// The ranks of a group as the checkpoint engine sees them.
class RankTeam : public checkpoint::Team {
 public:
  explicit RankTeam(comm::Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> gather(const std::string& own) const override { return comm::gather_texts(group_, own, 0); }
  std::string broadcast(const std::string& text) const override { return comm::broadcast_text(group_, text, 0); }
  std::string scatter(const std::vector<std::string>& texts) const override { return comm::scatter_text(group_, texts, 0); }
  bool all(bool own) const override;
  void all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                  const std::vector<int64_t>& receive_bytes) const override;

 private:
  comm::Group& group_;
};

/// What describes a run besides its tensors; the same on all ranks.
checkpoint::Extras extras_of(const Progress& progress, const optim::Optimizer& optimizer, const std::string& config_toml,
                             const std::string& data_state);

/// Has a saver copy what lies on `device` beside what that computes, into pinned memory; of the CPU it reads all itself: null.
std::shared_ptr<device::HostCopies> copy_from(at::Device device, checkpoint::SaveOptions& options);

/// All that this rank holds of weights and moments, where it lies. `keep` owns it.
std::vector<checkpoint::SaveItem> items_of(const optim::Optimizer& optimizer, std::shared_ptr<void>& keep);

/// Begins to save a checkpoint of step progress.step: the optimizer's state must not change before saver.wait_copied(). `copies`: from
/// copy_from, for the saver's options.
void start_save(checkpoint::Saver& saver, const device::HostCopies* copies, const optim::Optimizer& optimizer, const Progress& progress,
                const checkpoint::Extras& extras, bool gives_extras);

/// The weights of a model as a checkpoint of step 0 from which runs with any optimizer begin.
checkpoint::SaveReport save_weights(const std::filesystem::path& folder, const models::Model& model, const std::string& config_toml);

/// Restores this rank's slices of weights and moments, whatever ranks wrote them; everything is read and checked by all ranks before
/// the first value is overwritten. What the checkpoint does not have stays as it is; another dtype is converted. All ranks of the
/// reader's team call it. Throws CheckpointError when the checkpoint is damaged. Call require_fit first.
Progress load_run(const checkpoint::TeamReader& reader, optim::Optimizer& optimizer, checkpoint::LoadReport* report = nullptr);
/// The tensors of a checkpoint are not those of the run.
class DoesNotFit : public base::CheckpointError {
 public:
  explicit DoesNotFit(const std::string& message) : base::CheckpointError("{}", message) {}
};
/// Compares what all ranks of the team want with what is there. Throws DoesNotFit that lists missing, unexpected, differently shaped and
/// differently typed tensors. A checkpoint of weights alone has no optimizer's state, which is no misfit. Without `strict` only another
/// shape is an error and the rest a warning (load_run says what becomes of them).
void require_fit(const checkpoint::Reader& reader, const checkpoint::Team& team, const optim::Optimizer& optimizer, bool strict = true);

/// Fills the weights alone (for generation and export) from their full-precision values.
void load_weights(const checkpoint::Reader& reader, models::Model& model);

/// "config.toml" of the checkpoint.
std::string config_of(const checkpoint::Reader& reader);

}  // namespace ingot::train

#include "train/checkpointing.h"

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/load/match.h"
#include "layers/dtype.h"
#include "models/adapters.h"
#include "parallel/shard.h"

namespace ingot::train {
namespace {

using base::CheckpointError;

// A tensor that is wanted: of these the named ones, in this shape.
using Shapes = std::map<std::string, tensor::Shape>;

void check_fits(const checkpoint::Reader& reader, const Shapes& wanted) {
  std::vector<std::string> problems;
  for (const auto& [name, shape] : wanted) {
    if (!reader.contains(name)) {
      problems.push_back(name + " is missing");
      continue;
    }
    const auto& stored = reader.tensor(name);
    if (stored.shape != shape)
      problems.push_back(fmt::format("{} has shape {} there and {} here", name, tensor::to_string(stored.shape), tensor::to_string(shape)));
  }
  if (problems.empty()) return;
  const size_t shown = std::min<size_t>(10, problems.size());
  throw CheckpointError(
      "{} does not fit this configuration ({} problems):\n  {}{}\nUse the config it was made with (its config.toml) or another "
      "--run-dir.",
      reader.path().string(), problems.size(), fmt::join(problems.begin(), problems.begin() + static_cast<int64_t>(shown), "\n  "),
      shown < problems.size() ? "\n  …" : "");
}

constexpr const char* kWeightsAlone = "weights_alone";  // an extra

at::Tensor read_box(const checkpoint::Reader& reader, const std::string& name, const tensor::Box& box) {
  auto host = at::empty(box.extent, layers::to_torch(reader.tensor(name).dtype));
  reader.read(name, box, static_cast<std::byte*>(host.data_ptr()));
  return host;
}

}  // namespace

bool RankTeam::all(bool own) const {
  if (group_.size() == 1) return own;
  const auto answer = at::full({1}, static_cast<int64_t>(own), at::kLong);
  group_.all_reduce(answer, comm::Reduction::min);
  return answer.item<int64_t>() != 0;
}

void RankTeam::all_to_all(const std::byte* send, const std::vector<int64_t>& send_bytes, std::byte* receive,
                          const std::vector<int64_t>& receive_bytes) const {
  const auto total = [](const std::vector<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); };
  const auto in = at::from_blob(const_cast<std::byte*>(send), {total(send_bytes)}, at::kByte);
  const auto out = at::from_blob(receive, {total(receive_bytes)}, at::kByte);
  group_.all_to_all(out, receive_bytes, in, send_bytes);
}

std::string Progress::to_json() const {
  nlohmann::json record{{"step", step}, {"tokens", tokens}};
  if (passed_over > 0) record["passed_over"] = passed_over;
  return record.dump();
}

Progress Progress::from_json(const std::string& text, const std::string& origin) {
  const auto parsed = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    return {parsed.at("step").get<int64_t>(), parsed.at("tokens").get<int64_t>(), parsed.value("passed_over", int64_t{0})};
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError("{}: the record 'progress' is not that of a training run", origin);
  }
}

checkpoint::Extras extras_of(const Progress& progress, const optim::Optimizer& optimizer, const std::string& config_toml,
                             const std::string& data_state) {
  return {{"progress", progress.to_json()},
          {"config.toml", config_toml},
          {"data", data_state},
          {"optimizer", nlohmann::json{{"steps", optimizer.steps_done()}}.dump()}};
}

std::shared_ptr<device::HostCopies> copy_from(at::Device device, checkpoint::SaveOptions& options) {
  if (device.is_cpu()) return nullptr;
  auto copies = std::make_shared<device::HostCopies>(device);
  options.copy = [copies](std::byte* to, const std::byte* from, int64_t bytes) { copies->copy(to, from, bytes); };
  options.allocate = [copies](int64_t bytes) { return copies->allocate(bytes); };
  return copies;
}

std::vector<checkpoint::SaveItem> items_of(const optim::Optimizer& optimizer, std::shared_ptr<void>& keep) {
  const at::NoGradGuard no_grad;
  auto hold = std::make_shared<std::vector<at::Tensor>>();
  std::vector<checkpoint::SaveItem> items;
  for (const auto& slice : optimizer.state())
    for (const auto& region : slice.regions) {
      hold->push_back(parallel::view_of(region, slice.flat).contiguous());
      items.push_back({{slice.name, layers::from_torch(slice.flat.scalar_type()), slice.shape},
                       region.box,
                       static_cast<const std::byte*>(hold->back().data_ptr()),
                       !hold->back().device().is_cpu()});
    }
  keep = std::move(hold);
  return items;
}

void start_save(checkpoint::Saver& saver, const device::HostCopies* copies, const optim::Optimizer& optimizer, const Progress& progress,
                const checkpoint::Extras& extras, bool gives_extras) {
  std::shared_ptr<void> keep;
  const auto items = items_of(optimizer, keep);
  if (copies) copies->follow_current_stream();
  saver.start(progress.step, items, gives_extras ? extras : checkpoint::Extras{}, std::move(keep));
}

checkpoint::SaveReport save_weights(const std::filesystem::path& folder, const models::Model& model, const std::string& config_toml) {
  std::vector<checkpoint::SaveItem> items;
  for (const auto& p : model.parameters().all())
    items.push_back(checkpoint::whole_item({p->name, layers::from_torch(p->value.scalar_type()), p->shape}, p->value.data_ptr()));
  const checkpoint::Extras extras = {{"progress", Progress{}.to_json()},
                                     {"config.toml", config_toml},
                                     {"data", ""},
                                     {"optimizer", nlohmann::json{{"steps", 0}}.dump()},
                                     {kWeightsAlone, "true"}};
  checkpoint::SaveOptions options;
  options.refuse_nonfinite = true;
  return checkpoint::save(folder, 0, items, extras, options);
}

void require_fit(const checkpoint::Reader& reader, const checkpoint::Team& team, const optim::Optimizer& optimizer, bool strict) {
  std::map<std::string, tensor::LogicalTensor> own;
  for (const auto& slice : optimizer.state()) own[slice.name] = {slice.name, layers::from_torch(slice.flat.scalar_type()), slice.shape};
  const auto present = reader.list();
  // Each rank compares what it wants, and says which of the tensors that are there it wants; nobody needs a list of all.
  checkpoint::Mismatch mismatch;
  std::string is_wanted(present.size(), '0');
  {
    std::vector<tensor::LogicalTensor> wanted;
    for (const auto& [name, tensor] : own) wanted.push_back(tensor);
    mismatch = checkpoint::compare(wanted, present);
    mismatch.unexpected.clear();
    if (reader.has_extra(kWeightsAlone))
      std::erase_if(mismatch.missing,
                    [](const auto& tensor) { return tensor.name.starts_with("optimizer.") || models::is_adapter(tensor.name); });
    for (size_t i = 0; i < present.size(); ++i)
      if (own.contains(present[i].name)) is_wanted[i] = '1';
  }
  for (const auto& other : checkpoint::gather_everywhere(team, [&] { return is_wanted; }))
    for (size_t i = 0; i < std::min(is_wanted.size(), other.size()); ++i)
      if (other[i] == '1') is_wanted[i] = '1';
  for (size_t i = 0; i < present.size(); ++i)
    if (is_wanted[i] == '0' && team.rank() == 0) mismatch.unexpected.push_back(present[i]);
  const bool is_error = strict ? !mismatch.none() : !mismatch.shapes.empty();
  const auto text = fmt::format("{} does not fit this configuration:{}", reader.path().string(), mismatch.describe());
  if (!is_error && !mismatch.none()) base::log_warning("{}\n(checkpoint.strict is false)", text);
  try {
    checkpoint::for_all(team, [&] {
      if (is_error) throw DoesNotFit(text);
    });
  } catch (const base::CheckpointError& failure) {
    throw DoesNotFit(fmt::format("{}\nUse the config it was made with (its config.toml) or another --run-dir{}.", failure.what(),
                                 strict ? ", or checkpoint.strict = false to take what fits" : ""));
  }
}

Progress load_run(const checkpoint::TeamReader& reader, optim::Optimizer& optimizer, checkpoint::LoadReport* report) {
  const at::NoGradGuard no_grad;
  const auto origin = reader.reader().path().string();
  const auto progress = Progress::from_json(reader.extra("progress"), origin);
  const auto record = nlohmann::json::parse(reader.extra("optimizer"), nullptr, false);
  if (!record.is_object() || !record.contains("steps") || !record["steps"].is_number_integer())
    throw CheckpointError("{}: the record 'optimizer' is not that of a training run", origin);
  const auto slices = optimizer.state();
  std::vector<checkpoint::LoadItem> items;
  std::vector<std::pair<at::Tensor, at::Tensor>> read;  // where to, what
  for (const auto& slice : slices)
    for (const auto& region : slice.regions) {
      if (!reader.reader().contains(slice.name)) continue;
      read.emplace_back(parallel::view_of(region, slice.flat),
                        at::empty(region.box.extent, layers::to_torch(reader.reader().tensor(slice.name).dtype)));
      items.push_back({slice.name, region.box, static_cast<std::byte*>(read.back().second.data_ptr())});
    }
  auto done = reader.load(items);
  if (report) *report = std::move(done);
  for (const auto& [to, what] : read) to.copy_(what);
  optimizer.set_steps_done(record["steps"].get<int64_t>());
  optimizer.publish_masters();
  return progress;
}

void load_weights(const checkpoint::Reader& reader, models::Model& model) {
  const at::NoGradGuard no_grad;
  Shapes wanted;
  for (const auto& p : model.parameters().all()) wanted[p->name] = p->shape;
  check_fits(reader, wanted);
  std::vector<std::pair<at::Tensor, at::Tensor>> read;  // where to, what
  for (const auto& p : model.parameters().all()) {
    const auto flat = p->value.view(-1);
    const auto part = p->part.empty() ? tensor::whole_part(p->shape) : p->part;
    for (const auto& region : tensor::regions_of(p->shape, part, 0, flat.numel()))
      read.emplace_back(parallel::view_of(region, flat), read_box(reader, p->name, region.box));
  }
  for (const auto& [to, what] : read) to.copy_(what);
}

std::string config_of(const checkpoint::Reader& reader) { return reader.extra("config.toml"); }

}  // namespace ingot::train

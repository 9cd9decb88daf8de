#include "plan/data_parallel.h"

namespace ingot::plan {

using models::Recompute;

DataParallel::DataParallel(Device device)
    : device_(std::move(device)),
      communication_(device_.cluster ? std::optional<CommunicationModel>(*device_.cluster) : std::nullopt),
      prices_(Rates(device_.profile, device_.dtype), communication_ ? communication_->transport() : Transport{}) {}

RunShape DataParallel::shape_of(const TrainingJob& job, int64_t microbatch) const {
  RunShape shape{.batch = job.batch > 0 ? job.batch / device_.count : microbatch,
                 .microbatch = microbatch,
                 .seq = job.seq,
                 .precision = device_.dtype};
  shape.optimizer = job.optimizer;
  shape.threads = device_.is_measured() ? device_.profile.threads : 1;
  shape.is_here = device_.is_measured();
  shape.target = device_.target();
  shape.replicas = device_.count;
  if (!device_.is_measured()) shape.bucket_bytes = int64_t{32} << 20;
  return shape;
}

FittedRun DataParallel::judge(const models::Model& model, const RunShape& shape, const StepMemory& memory) {
  FittedRun run{.shape = shape, .memory = memory, .time = predict_step_time(model, shape, prices_), .communication = {}};
  if (communication_) run.communication = communication_->predict(model, shape, run.time, prices_);
  return run;
}

std::optional<FittedRun> DataParallel::best(const models::Model& model, const TrainingJob& job) {
  std::optional<FittedRun> best;
  const auto stages = device_.count > 1 ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{0};
  for (int64_t microbatch = 1; microbatch <= job.most_at_once; microbatch *= 2) {
    auto shape = shape_of(job, microbatch);
    if (shape.batch % microbatch != 0 || shape.batch == 0) break;
    bool fits = false;
    for (const int64_t zero : stages) {
      shape.zero = zero;
      for (const auto recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        shape.recompute = recompute;
        if (least_bytes(model, shape, prices_.traces()) + device_.program_bytes > device_.usable_bytes()) continue;
        const auto memory = predict_memory(model, shape, device_.program_bytes, prices_.traces());
        if (memory.total_bytes() > device_.usable_bytes()) continue;
        fits = true;
        const auto run = judge(model, shape, memory);
        if (!best || run.tokens_per_s() > best->tokens_per_s()) best = run;
        break;  // more recomputation takes longer for memory that is not missing
      }
      if (fits && shape.recompute == Recompute::none) break;  // and so does more sharing
    }
    if (!fits) break;  // larger microbatches need more
  }
  return best;
}

StepMemory DataParallel::least_memory(const models::Model& model, const TrainingJob& job) const {
  auto shape = shape_of(job, 1);
  shape.zero = device_.count > 1 ? 3 : 0;
  shape.recompute = Recompute::full;
  return predict_memory(model, shape, device_.program_bytes, prices_.traces());
}

double DataParallel::mfu(const models::Model& model, const FittedRun& run) const {
  return model.training_flops_per_token(run.shape.seq) * run.tokens_per_s() / (device_.peak_flops() * static_cast<double>(device_.count));
}

}  // namespace ingot::plan

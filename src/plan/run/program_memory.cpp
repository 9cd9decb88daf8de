#include "plan/run/program_memory.h"

#include "base/process.h"
#include "device/aten.h"
#include "device/device.h"
#include "kernels/cpu_memory.h"
#include "kernels/matmul.h"
#include "layers/dtype.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "plan/memory.h"
#include "train/step.h"

namespace ingot::plan {

// The step brings in the code that the run will use, its prediction the planner's, and large matmuls the libraries' packing buffers.
int64_t program_bytes(const train::RunConfig& config) {
  const auto device = device::device_named(config.train.device);
  if (!device.is_cpu()) return device.is_cuda() ? kGpuProgramBytes : 0;
  kernels::release_freed_memory();
  auto shape = config.model;
  shape.layers = 1, shape.hidden = 64, shape.vocab_size = 64, shape.heads = 2, shape.kv_heads = 2, shape.head_dim = 32, shape.ffn = 64;
  shape.experts = 2, shape.top_k = 1, shape.expert_ffn = 64, shape.router_hidden = 16, shape.rope_fraction = 0.5;
  shape.router_groups = shape.router_top_groups = 1, shape.shared_expert_ffn = shape.shared_expert_ffn > 0 ? 64 : 0;
  shape.first_dense_layers = 0;
  shape.query_rank = shape.query_rank > 0 ? 32 : 0, shape.kv_rank = 32, shape.rope_head_dim = 16, shape.value_head_dim = 32;
  shape.pad_id = shape.bos_id = shape.eos_id = -1;
  {
    const auto model = models::create_model(shape);
    const auto recompute = models::recompute_from_name(config.train.recompute);
    predict_memory(*model,
                   {.batch = 2, .seq = 64, .precision = config.train.precision, .recompute = recompute, .optimizer = config.optimizer}, 0);
    model->allocate(layers::precision_named(config.train.precision));
    model->initialise(0);
    optim::Optimizer optimizer(model->parameters(), config.optimizer);
    data::Batch batch{.batch = 2, .seq = 64};
    batch.inputs.assign(128, 1), batch.targets.assign(128, 1), batch.document_starts.assign(128, 0);
    train::TrainingStep(*model, optimizer, recompute, 0).run(batch, 0);
    const auto narrow = layers::precision_named(config.train.precision).dtype;
    for (const int64_t inner : {256, 2048}) {
      at::mm(at::ones({2048, inner}), at::ones({inner, 2048}));
      if (narrow == at::kBFloat16) kernels::matmul(at::ones({2048, inner}, narrow), at::ones({inner, 2048}, narrow), at::kFloat);
    }
  }
  kernels::release_freed_tensors();
  return base::resident_bytes();
}

}  // namespace ingot::plan

#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/verbs.h"
#include "data/export_tokenizer.h"
#include "layers/dtype.h"
#include "models/hugging_face.h"
#include "serve/load_model.h"

namespace ingot::cli {

int run_export(const Options& all) {
  const auto& o = all.checkpoint;
  // fp32 holds the masters exactly; the file's dtype is chosen on the way out.
  auto loaded = serve::load_model(o.path, o.dtype == "fp64" ? at::kDouble : at::kFloat, at::kCPU);
  if (!o.tokenizer.empty()) loaded.tokenizer = data::load_tokenizer(o.tokenizer);
  const auto dtype = o.dtype == "bf16" ? tensor::DType::bf16 : layers::from_torch(layers::compute_dtype(o.dtype));
  models::save_hugging_face(
      *loaded.model, o.output, dtype, [](const layers::Parameter& p) { return p.value; }, static_cast<int64_t>(o.shard_gb * 1e9));
  if (loaded.tokenizer) data::export_tokenizer(*loaded.tokenizer, o.output);
  else base::log_warning("no tokenizer was found for {}: the folder has none; give one with --tokenizer", o.path);
  if (all.json)
    std::printf("%s\n",
                nlohmann::json{{"folder", o.output}, {"dtype", o.dtype}, {"parameters", loaded.model->parameters().trained_elements()}}
                    .dump(2)
                    .c_str());
  else base::log_info("wrote {}", o.output);
  return 0;
}

}  // namespace ingot::cli

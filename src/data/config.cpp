#include "data/config.h"

#include "base/error.h"

namespace ingot::data {

void declare_settings(base::SettingsTable& table, DataConfig& config) {
  table.add("data.tokenizer", config.tokenizer,
            "tokenizer of the data: a SentencePiece .model, a tokenizer.json, a .tiktoken file, or a folder that holds one of them");
  table.add_list<DataSource>(
      "data.sources", config.sources,
      [](base::SettingsTable& inner, DataSource& source) {
        inner.add("path", source.path,
                  "prefix of a .bin/.idx pair, as 'ingot data tokenize' writes it; local, or s3://BUCKET/KEY, or https://…");
        inner.add("weight", source.weight, {0, 1e308}, "share of the samples, relative to the other sources; 0 leaves the source out");
        inner.add("epochs", source.epochs, {0, 1e6},
                  "how often each phase goes through the source, in place of its weight; the others share what is left of the samples");
        inner.add("curriculum", source.curriculum, {"none", "length", "score"},
                  "the first epoch begins with easy rows: of short documents, or of a low score (docs/data.md)");
        inner.add("curriculum_scores", source.curriculum_scores,
                  "of the curriculum score: text file with a number for each document, one a line");
        inner.add("curriculum_start", source.curriculum_start, {0, 1},
                  "share of the rows, the easiest, from which the first samples are drawn");
        inner.add("curriculum_tokens", source.curriculum_tokens, base::at_least(0),
                  "tokens of the source after which samples are drawn from all of its rows; 0, or more than it has = at the end of its "
                  "first epoch");
        inner.add("curriculum_pace", source.curriculum_pace, {"linear", "root"},
                  "how the share grows to 1: with the source's tokens, or with their square root, which is faster at first");
      },
      "training data");
  table.add(
      "data.temperature", config.temperature, {0, 1e6},
      "weights times tokens^(1/temperature): 1 = in proportion to the sources' sizes, larger = more of the small ones; 0 = as they are");
  table.add("data.blend_file", config.blend_file,
            "file with the sources' weights in place of those here, which may change while the run goes on (docs/data.md)");
  table.add("data.validation", config.validation,
            "prefixes of .bin/.idx pairs for the validation loss; empty = see data.validation_fraction");
  table.add("data.validation_fraction", config.validation_fraction, {0, 0.5},
            "part of each source, at its end, that is kept from training for the validation loss; not used with data.validation");
  table.add("data.seq_len", config.seq_len, {1, 1 << 24}, "tokens of a sample");
  table.add(
      "data.packing", config.packing, {"stream", "best_fit", "documents", "pairs"},
      "stream: documents one after another, cut every seq_len tokens; best_fit: documents stay whole where they fit, rows are padded; "
      "documents: a row for each, longer ones in pieces; pairs: chosen and rejected answers, each pair whole in a row "
      "(docs/objectives.md)");
  table.add(
      "data.rows", config.rows, {"fixed", "variable"},
      "fixed: rows of seq_len tokens, padded; variable: as long as what stands in them, without padding, and a microbatch takes as many "
      "as fit into train.microbatch_size * seq_len tokens");
  table.add("data.reset_documents", config.reset_documents,
            "documents of one sample cannot see each other: positions and masks begin anew, and no target crosses a border");
  table.add("data.seed", config.seed, base::at_least(0), "seed of the order of samples");
  table.add("data.fim_rate", config.fim_rate, {0, 1}, "share of documents that are learned by filling in their middle; 0 = none");
  table.add("data.fim_spm_rate", config.fim_spm_rate, {0, 1},
            "of those the share in the order suffix, prefix, middle; else prefix, suffix, middle");
  table.add("data.fim_prefix", config.fim_prefix, base::at_least(-1), "id of the token before the prefix");
  table.add("data.fim_suffix", config.fim_suffix, base::at_least(-1), "id of the token before the suffix");
  table.add("data.fim_middle", config.fim_middle, base::at_least(-1), "id of the token before the middle");
  table.add("data.mask_rate", config.mask_rate, {0, 1},
            "of model.bidirectional: share of tokens that are hidden and learned; 0.15 is usual");
  table.add("data.mask_id", config.mask_id, base::at_least(-1), "id of the token that hides them");
  table.add("data.prefetch", config.prefetch, {0, 64},
            "batches prepared ahead on a thread of their own; 0 = none. Of sources with a URL as many more are asked for");
  table.add(
      "data.cache", config.cache,
      "local folder that keeps what was read of sources with a URL, for all ranks of a machine; empty = data in the folder of ingot's "
      "measurements");
  table.add("data.cache_mib", config.cache_mib, {64, int64_t{1} << 40},
            "limit of data.cache in MiB: what was used longest ago goes, and is read again when it is needed");
}

void check(const DataConfig& config) {
  if (config.mask_rate > 0 && (config.mask_id < 0 || config.fim_rate > 0 || config.packing == "pairs"))
    throw base::ConfigError(
        "data.mask_rate = {} needs data.mask_id, the id of a token, and goes with neither data.fim_rate nor pairs of answers",
        config.mask_rate);
  if (config.packing == "pairs" && (config.fim_rate > 0 || !config.reset_documents))
    throw base::ConfigError("data.packing = \"pairs\" goes with data.fim_rate = 0 and data.reset_documents = true");
  if (config.fim_rate > 0) {
    for (const auto& [name, id] : {std::pair{"prefix", config.fim_prefix}, {"suffix", config.fim_suffix}, {"middle", config.fim_middle}})
      if (id < 0) throw base::ConfigError("data.fim_rate = {} needs data.fim_{}, the id of a token", config.fim_rate, name);
    if (config.fim_prefix == config.fim_suffix || config.fim_suffix == config.fim_middle || config.fim_prefix == config.fim_middle)
      throw base::ConfigError("data.fim_prefix, fim_suffix and fim_middle must be three tokens");
    if (!config.reset_documents)
      throw base::ConfigError("data.fim_rate = {} takes documents apart, which data.reset_documents = false does not tell from one another",
                              config.fim_rate);
  }
  if (config.sources.empty())
    throw base::ConfigError("data.sources is empty: name at least one .bin/.idx prefix made by 'ingot data tokenize'");
  for (size_t i = 0; i < config.sources.size(); ++i) {
    if (config.sources[i].path.empty()) throw base::ConfigError("data.sources[{}].path is empty", i);
    if ((config.sources[i].curriculum == "score") != !config.sources[i].curriculum_scores.empty())
      throw base::ConfigError("data.sources[{}]: curriculum = \"score\" and curriculum_scores, its file, go together", i);
  }
}

}  // namespace ingot::data

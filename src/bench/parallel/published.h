// Ratios that the papers of TSP, LASP-2 and ZeCO publish, and what the model gives for the same sizes: a check of the model, and of the
// papers. Sizes that a paper does not state are assumptions, named in each row. Functions of three cluster profiles.
#pragma once

#include "schedule/cluster.h"
#include "schedule/layout.h"

namespace ingot::bench {

struct PublishedRow {
  std::string paper;     // "TSP", "LASP-2", "ZeCO"
  std::string quantity;  // what is compared
  std::string unit;      // "" for ratios
  double published = 0, modelled = 0;
  double tolerance = 0;  // relative
  std::string note;      // what was assumed; why it does not agree

  /// |modelled / published - 1| <= tolerance
  bool agrees() const;
};

struct PublishedClusters {
  schedule::Cluster mi300x, a100, h100;
};
/// From <folder>/mi300x-8.json, a100-64.json and h100-64.json.
PublishedClusters read_published_clusters(const std::filesystem::path& folder);

std::vector<PublishedRow> published_rows(const PublishedClusters& clusters);

/// A list of objects with the members of PublishedRow, and "agrees".
std::string published_json(const std::vector<PublishedRow>& rows);
/// Markdown.
std::string published_table(const std::vector<PublishedRow>& rows);

/// Peak memory of training `layers` of layout.layer with AdamW: 2 + 4 bytes a weight (bf16, gradient) and 12 of master and moments, the
/// input of every layer, and the working set of one, by tracing two layers and three.
/// Not for fsdp+cp, whose gathered weights do not grow so evenly.
int64_t training_peak_bytes(schedule::Layout layout, int64_t layers, const schedule::Cluster& cluster);
/// Forward and backward of a layer that all ranks begin at the same time: a chain of ranks costs its hops in every layer.
double layer_in_step_s(schedule::Layout layout, const schedule::Cluster& cluster);
/// Forward and backward of a layer among others like it: what a second one adds to the time of the first. Ranks run ahead of each
/// other as far as messages let them, so that chains of consecutive layers overlap.
double steady_layer_s(schedule::Layout layout, const schedule::Cluster& cluster);

}  // namespace ingot::bench

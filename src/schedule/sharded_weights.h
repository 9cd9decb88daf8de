// A part's weights on a rank whose axis shards tokens: whole (of its tensor rank), or gathered for the time of their use (ZeRO-3).
#pragma once

#include "schedule/script.h"

namespace ingot::schedule {

class ShardedWeights {
 public:
  /// `elements`: of this tensor rank's slice.
  ShardedWeights(Script& script, int64_t elements)
      : script_(script), elements_(elements), is_gathered_(script.layout().method == Method::fsdp_cp && script.layout().ranks > 1) {
    const int64_t share = is_gathered_ ? elements / script.layout().ranks : elements;
    own_ = script.resident(share * script.e());
    if (script.trains()) gradients_ = script.resident(share * script.wide());
  }

  void prefetch() {
    if (is_gathered_ && here_ < 0) here_ = script_.gather("gather weights", script_.sequence_group(), elements_ * script_.e(), own_);
  }
  /// What a product reads.
  Buffer use() {
    prefetch();
    return is_gathered_ ? here_ : own_;
  }
  /// They are not needed until the next use().
  void release() { here_ = -1; }

  /// What weight gradients are written to in backward.
  Buffer gradients() {
    if (!is_gathered_) return gradients_;
    if (made_ < 0) made_ = script_.buffer(elements_ * script_.wide());
    return made_;
  }
  /// All of them have been made.
  void finish_gradients() {
    const int64_t bytes = elements_ * script_.wide();
    const auto group = script_.sequence_group();
    if (is_gathered_)
      script_.collective("sum weights' gradients", Kind::reduce_scatter, group, bytes, {gradients()}, {gradients_}, -1, script_.wide());
    else if (script_.layout().syncs_gradients)
      script_.collective("sum weights' gradients", Kind::all_reduce, group, bytes, {gradients_}, {gradients_}, -1, script_.wide());
    made_ = -1;
  }

 private:
  Script& script_;
  int64_t elements_;
  bool is_gathered_;
  Buffer own_ = -1, gradients_ = -1, here_ = -1, made_ = -1;
};

}  // namespace ingot::schedule

#include "plan/sizing.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "layers/cost.h"

namespace ingot::plan {
namespace {

using base::format_bytes;
using base::format_count;
using Basis = Rule::Basis;

// Hoffmann et al. 2022 (arXiv 2203.15556), Table 3: compute-optimal training sees about 20 tokens for a parameter.
constexpr double kTokensPerParameter = 20;
// Kaplan et al. 2020 (arXiv 2001.08361), Fig. 5: over width / depth the loss moves by a few per cent. Published models lie within this.
constexpr double kLeastAspect = 40, kMostAspect = 160;
constexpr int64_t kUsers = 32;  // served at once, for which caches are weighed
constexpr int64_t kAssumedMultiple = 128;
constexpr int64_t kMostHidden = 32768, kMostLayers = 512;

double d(int64_t x) { return static_cast<double>(x); }

// What the request counts as a model's size.
double counted(const models::Model& model, bool counts_active) {
  return d(counts_active ? model.active_elements() : model.parameters().weight_elements());
}

// Layers that bring a width nearest to the wanted size: sizes grow by the same with each.
int64_t layers_for(const ShapeRule& rule, int64_t hidden, double wanted, bool counts_active) {
  const double one = counted(*models::create_model(shape_of(rule, hidden, 1)), counts_active);
  const double each = counted(*models::create_model(shape_of(rule, hidden, 2)), counts_active) - one;
  return std::clamp<int64_t>(std::llround(1 + (wanted - one) / each), 1, kMostLayers);
}

class Sizer {
 public:
  Sizer(const SizeRequest& request, DataParallel& devices, const std::optional<ShapeMultiples>& shapes)
      : request_(request), devices_(devices), device_(devices.device()), shapes_(shapes) {}

  Sizing run() {
    set_budget();
    rule_multiple();
    pad_vocabulary();
    const auto first = initial();
    rule_head(first);
    rule_kv_heads(first);
    if (request_.is_mixture) rule_experts(first);
    rule_batch();
    rule_depth();
    rule_feed_forward();
    rule_vocabulary();
    rule_microbatch();
    if (request_.is_mixture) rule_expert_width();
    rule_tokens();
    sizing_.toml = configuration_of(sizing_, request_.seq, device_);
    return std::move(sizing_);
  }

 private:
  // The size that is looked for, in parameters of the kind that was asked for.
  void set_budget() {
    const auto& r = request_;
    if (r.parameters > 0 && r.active > 0)
      throw base::UsageError("--params and --active both give the size; give one of them, and --experts for the other");
    if (r.flops > 0 && r.tokens > 0 && (r.parameters > 0 || r.active > 0))
      throw base::UsageError("--flops, --tokens and a number of parameters are one too many: two of them give the third");
    check_names_a_size(r);
    counts_active_ = r.active > 0 || (r.is_mixture && r.parameters == 0);
    if (r.parameters > 0) wanted_ = r.parameters;
    else if (r.active > 0) wanted_ = r.active;
    else if (r.flops > 0) wanted_ = r.tokens > 0 ? r.flops / (6 * r.tokens) : std::sqrt(r.flops / (6 * kTokensPerParameter));
    else if (r.tokens > 0) wanted_ = r.tokens / kTokensPerParameter;
    if (!(wanted_ >= 1e5 && wanted_ <= 1e13))
      throw base::UsageError("the budget asks for {} parameters; sizes from 100 k to 10 T can be sized", format_count(wanted_));
    shape_.is_mixture = r.is_mixture;
    shape_.ties_embeddings = r.is_mixture || wanted_ < 4e9;
    shape_.experts = r.experts > 0 ? r.experts : 16;
  }

  void add(Rule rule) { sizing_.rules.push_back(std::move(rule)); }
  Basis rates_basis() const { return device_.is_measured() ? Basis::measured : Basis::modelled; }
  std::string rates_words() const { return device_.is_measured() ? "measured rates" : "the cluster file's formulas"; }

  void rule_multiple() {
    Rule rule{.name = "widths are multiples of", .value = {}, .basis = Basis::assumed, .reason = {}, .numbers = {}};
    if (shapes_) {
      shape_.multiple = std::max<int64_t>(8, shapes_->multiple);
      rule.basis = Basis::measured;
      rule.reason = fmt::format(
          "the smallest whose slowest sizes have 95 % of what the slowest of any larger multiple have; {} {} GEMMs of m = {}, k = {}, n "
          "from {} to {}",
          shapes_->like.dtype, shapes_->like.pass, shapes_->like.m, shapes_->like.k, shapes_->like.n, shapes_->largest_n);
      for (const auto& c : shapes_->classes)
        rule.numbers.push_back({c.multiple == 1 ? fmt::format("n not divisible by 8 ({} sizes)", c.sizes)
                                                : fmt::format("n divisible by {}{} ({} sizes)", c.multiple,
                                                              c.multiple < 128 ? fmt::format(", not by {}", 2 * c.multiple) : "", c.sizes),
                                c.flops_per_s / 1e9, "GFLOP/s"});
    } else {
      shape_.multiple = kAssumedMultiple;
      rule.reason = device_.is_measured()
                        ? "the profile's table has no neighbouring sizes, so it says nothing about divisibility; on the machine itself a "
                          "probe of neighbouring sizes is run"
                        : "the cluster file has no measurements of single shapes and its formula is smooth in the size, so it prefers no "
                          "multiple; 128 is a usual side of a tile. Measure on a node: ingot bench all, then ingot plan size there";
      const double n = 4096;
      rule.numbers.push_back({"most that rounding moves a width of 4096", 100 * 0.5 * d(shape_.multiple) / n, "%"});
    }
    if (request_.multiple > 0) {
      shape_.multiple = request_.multiple;
      rule.reason = "given by --multiple; otherwise: " + rule.reason;
      rule.basis = Basis::given;
    }
    rule.value = std::to_string(shape_.multiple);
    add(std::move(rule));
  }

  // How much longer a GEMM of this width takes than the smooth rates say.
  double divisibility_share(int64_t n) const { return shapes_ ? shapes_->share_of(n) : 1; }

  double gemm_s(int64_t rows, int64_t in, int64_t out) const {
    const auto& rates = devices_.rates();
    double seconds = 0;
    for (const auto pass : {Pass::forward, Pass::grad_input, Pass::grad_weight}) seconds += rates.gemm_s(pass, rows, in, out, false);
    return seconds / divisibility_share(out);
  }

  int64_t asked_vocabulary() const { return request_.vocab > 0 ? request_.vocab : wanted_ < 3e7 ? 4096 : wanted_ < 1e9 ? 32768 : 131072; }
  void pad_vocabulary() { shape_.vocab = (asked_vocabulary() + shape_.multiple - 1) / shape_.multiple * shape_.multiple; }

  void rule_vocabulary() {
    const int64_t asked = asked_vocabulary(), hidden = sizing_.chosen.model.hidden, rows = 4096;
    const double plain = gemm_s(rows, hidden, asked), padded = gemm_s(rows, hidden, shape_.vocab);
    Rule rule{.name = "vocabulary", .value = std::to_string(shape_.vocab), .basis = rates_basis(), .reason = {}, .numbers = {}};
    rule.numbers = {{fmt::format("GEMMs of the head, {} tokens, vocabulary {}", rows, asked), plain * 1e3, "ms"}};
    if (shape_.vocab == asked) {
      rule.reason = fmt::format("{} is a multiple of {} already", asked, shape_.multiple);
      if (request_.vocab == 0) rule.basis = Basis::assumed;
    } else {
      rule.reason = fmt::format("{} padded to a multiple of {}, which {} {:.2f} % of the head's time{}", asked, shape_.multiple,
                                padded < plain ? "saves" : "costs", 100 * std::abs(padded / plain - 1),
                                shapes_ ? "" : "; what it saves is not known without measured shapes");
      rule.numbers.push_back({fmt::format("the same, vocabulary {}", shape_.vocab), padded * 1e3, "ms"});
    }
    if (request_.vocab == 0)
      rule.reason += "; 4,096 below 3 x 10^7 parameters, 32,768 below 10^9 and 131,072 from there are assumptions (--vocab)";
    add(std::move(rule));
  }

  int64_t unit() const {
    // Query heads fill hidden, or half of it.
    return std::lcm(shape_.multiple, shape_.head_dim * (shape_.is_mixture ? 2 : 1));
  }

  // Whether query heads can share keys and values as wanted, or nearly so where there are few.
  bool shares_heads(int64_t hidden) const {
    const auto c = shape_of(shape_, hidden, 1);
    if (c.heads >= 4 * shape_.heads_per_kv) return c.heads % shape_.heads_per_kv == 0;
    return c.heads < shape_.heads_per_kv || c.heads / c.kv_heads <= 2 * shape_.heads_per_kv;
  }

  // The shape of the wanted size whose width / depth is nearest to `aspect`.
  models::ModelConfig shaped(double aspect) const {
    std::optional<models::ModelConfig> best;
    double distance = INFINITY;
    for (int64_t hidden = unit(); hidden <= kMostHidden; hidden += unit()) {
      if (!shares_heads(hidden)) continue;
      const auto config = shape_of(shape_, hidden, layers_for(shape_, hidden, wanted_, counts_active_));
      const double size = counted(*models::create_model(config), counts_active_);
      const double off = std::abs(std::log(d(hidden) / d(config.layers) / aspect)) + 10 * std::max(0.0, std::abs(size / wanted_ - 1) - 0.1);
      if (off < distance) best = config, distance = off;
      if (config.layers == 1 && size > 2 * wanted_) break;
    }
    return *best;
  }

  models::ModelConfig initial() {
    // A head of a quarter of the smallest width that there will be.
    shape_.head_dim = wanted_ < 3e7 ? 32 : wanted_ < 1e9 ? 64 : 128;
    return shaped(64);
  }

  void rule_head(const models::ModelConfig& like) {
    std::vector<int64_t> sizes;
    for (const auto& e : device_.profile.attention)
      if (e.dtype == device_.dtype && e.head_dim * 4 <= std::max<int64_t>(like.hidden / (shape_.is_mixture ? 2 : 1), 128) &&
          std::find(sizes.begin(), sizes.end(), e.head_dim) == sizes.end())
        sizes.push_back(e.head_dim);
    std::sort(sizes.begin(), sizes.end());
    if (sizes.empty()) sizes = {shape_.head_dim};
    Rule rule{.name = "head size", .value = {}, .basis = rates_basis(), .reason = {}, .numbers = {}};
    double best = INFINITY, slowest = 0;
    int64_t chosen = sizes.front();
    for (const int64_t head_dim : sizes) {
      // Of exactly as many channels, whatever the rounding of heads.
      const double pairs = layers::visible_pairs(request_.seq, 0), flops = 4 * pairs * d(like.hidden);
      const auto attention_s = [&](bool is_backward) {
        return devices_.rates().attention_s(flops, pairs / d(request_.seq), head_dim, is_backward);
      };
      const double seconds = attention_s(false) + attention_s(true);
      rule.numbers.push_back(
          {fmt::format("attention of hidden {} by heads of {}, {} tokens, forward and backward", like.hidden, head_dim, request_.seq),
           seconds * 1e3, "ms"});
      if (seconds < best * 0.98 || (seconds < best * 1.02 && head_dim <= 128)) chosen = head_dim;
      best = std::min(best, seconds);
      slowest = std::max(slowest, seconds);
    }
    shape_.head_dim = chosen;
    rule.value = std::to_string(chosen);
    rule.reason = slowest < 1.02 * best
                      ? fmt::format("{} tell these sizes apart by less than 2 %; the largest up to 128 has fewest heads", rates_words())
                      : "attention of the same hidden takes least time with it, or within 2 % of that";
    add(std::move(rule));
  }

  void rule_kv_heads(const models::ModelConfig& like) {
    Rule rule{.name = "query heads for a key and value head", .value = {}, .basis = rates_basis(), .reason = {}, .numbers = {}};
    const int64_t heads = like.hidden / shape_.head_dim / (shape_.is_mixture ? 2 : 1);
    int64_t chosen = 1;
    bool is_found = false;
    for (const int64_t group : {1, 2, 4, 8}) {
      if (group > heads) break;
      auto config = like;
      config.head_dim = shape_.head_dim;
      config.kv_heads = std::max<int64_t>(1, std::llround(d(heads) / d(group)));
      config.heads = config.kv_heads * group;
      const auto decode = decode_latency(*models::create_model(config), request_.seq, device_, kUsers);
      rule.numbers.push_back(
          {fmt::format("{}: cache of a user {}, of {} users {} beside {} of weights", group,
                       format_bytes(static_cast<int64_t>(decode.cache_bytes) / kUsers), kUsers,
                       format_bytes(static_cast<int64_t>(decode.cache_bytes)), format_bytes(static_cast<int64_t>(decode.weight_bytes))),
           decode.total_s * 1e3, "ms"});
      if (is_found) continue;
      chosen = group;
      is_found = decode.cache_bytes <= decode.weight_bytes;
    }
    shape_.heads_per_kv = chosen;
    rule.value = std::to_string(chosen);
    rule.reason = fmt::format(
        "the fewest for which the cache of {} users, each behind {} tokens, has no more bytes than the weights that their "
        "tokens read{}; {} users are an assumption",
        kUsers, request_.seq, is_found ? "" : " (none does; more would cost quality)", kUsers);
    add(std::move(rule));
  }

  // All else equal, more experts make tokens for each one fewer and need memory.
  void rule_experts(const models::ModelConfig& like) {
    Rule rule{.name = "experts", .value = {}, .basis = rates_basis(), .reason = {}, .numbers = {}};
    const TrainingJob job{.seq = request_.seq};
    double first = 0;
    int64_t chosen = 0;
    bool is_full = false;
    for (const int64_t experts : {4, 8, 16, 32, 64}) {
      auto config = like;
      config.experts = experts;
      const auto model = models::create_model(config);
      const auto run = devices_.best(*model, with_batch(job));
      if (!run) {
        is_full = true;
        break;
      }
      if (first == 0) first = run->tokens_per_s();
      rule.numbers.push_back({fmt::format("{} experts: {} tokens for each of a microbatch, {} parameters, {} of memory", experts,
                                          run->shape.sequences_at_once() * job.seq / experts,
                                          format_count(d(model->parameters().weight_elements())), format_bytes(run->memory.total_bytes())),
                              run->tokens_per_s(), "tokens/s"});
      if (run->tokens_per_s() >= request_.share * first) chosen = experts;
    }
    if (chosen == 0) chosen = 4;
    rule.reason = fmt::format("the most with {:.0f} % of the throughput of four, of equal active parameters{}", 100 * request_.share,
                              is_full ? ", and more do not fit into the memory" : "");
    if (request_.experts > 0) {
      chosen = request_.experts;
      rule.basis = Basis::given;
      rule.reason = "given by --experts";
    }
    shape_.experts = chosen;
    rule.value = fmt::format("{}, one for each token", chosen);
    rule.reason +=
        ". One for a token: ZAYA1's authors compared at equal FLOPs and favoured it (arXiv "
        "2605.05365)";
    add(std::move(rule));
  }

  // A multiple of what all devices take at once.
  TrainingJob with_batch(TrainingJob job) const {
    const double wanted = request_.batch_tokens > 0 ? request_.batch_tokens
                          : wanted_ < 1e8           ? 65536
                          : wanted_ < 1e9           ? 524288
                          : wanted_ < 5e9           ? 1048576
                                                    : 2097152;
    const int64_t at_once = device_.count;
    job.batch = nearest_multiple(wanted / d(request_.seq), at_once);
    // Whole microbatches of as many sequences as possible.
    int64_t own = job.batch / at_once;
    for (const int64_t microbatch : {16, 8, 4, 2})
      if (own >= microbatch) {
        own = own / microbatch * microbatch;
        break;
      }
    job.batch = own * at_once;
    return job;
  }

  void rule_batch() {
    job_ = with_batch({.seq = request_.seq});
    const int64_t tokens = job_.batch * job_.seq;
    add({.name = "batch",
         .value = fmt::format("{} sequences of {}", job_.batch, job_.seq),
         .basis = request_.batch_tokens > 0 ? Basis::given : Basis::assumed,
         .reason = fmt::format("{} tokens a step, shared out evenly over {} device{}{}", format_count(d(tokens)), device_.count,
                               device_.count == 1 ? "" : "s",
                               request_.batch_tokens > 0
                                   ? ""
                                   : "; by size as in GPT-3 (arXiv 2005.14165, Table 2.1: 0.5 M tokens below 10^9 parameters, 1 and 2 M "
                                     "above), 65,536 below 10^8 (--batch-tokens)"),
         .numbers = {}});
  }

  SizeCandidate candidate(const models::ModelConfig& config) {
    const auto model = models::create_model(config);
    SizeCandidate c{.model = config};
    c.parameters = model->parameters().weight_elements();
    c.active_parameters = model->active_elements();
    c.flops_per_token = model->training_flops_per_token(request_.seq);
    c.run = devices_.best(*model, job_);
    c.memory = c.run ? c.run->memory : devices_.least_memory(*model, job_);
    if (c.run) c.mfu = devices_.mfu(*model, *c.run);
    c.is_usual = c.aspect() >= kLeastAspect && c.aspect() <= kMostAspect;
    return c;
  }

  void rule_depth() {
    auto& all = sizing_.candidates;
    for (const double aspect : {16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0}) {
      const auto config = shaped(aspect);
      const bool is_known = std::any_of(all.begin(), all.end(), [&](const auto& c) { return c.model.hidden == config.hidden; });
      const double size = counted(*models::create_model(config), counts_active_);
      if (!is_known && std::abs(size / wanted_ - 1) <= 0.15) all.push_back(candidate(config));
    }
    if (all.empty()) all.push_back(candidate(shaped(64)));
    std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.model.hidden < b.model.hidden; });
    size_t best = 0;
    const auto score = [&](const SizeCandidate& c) {
      return std::tuple(c.run.has_value(), c.is_usual,
                        c.run ? c.run->tokens_per_s() * c.flops_per_token : -std::abs(std::log(c.aspect() / 64)));
    };
    for (size_t i = 1; i < all.size(); ++i)
      if (score(all[i]) > score(all[best])) best = i;
    all[best].is_chosen = true;
    sizing_.chosen = all[best];
    const auto& c = sizing_.chosen;
    Rule rule{.name = "depth and width",
              .value = fmt::format("{} layers of hidden {}", c.model.layers, c.model.hidden),
              .basis = rates_basis(),
              .reason = {},
              .numbers = {}};
    rule.reason = fmt::format(
        "the highest MFU of the candidates{}; that between {:.0f} and {:.0f} the loss hardly moves with width / depth is an assumption "
        "(Kaplan et "
        "al., arXiv 2001.08361, Fig. 5)",
        c.is_usual ? fmt::format(" with a width / depth from {:.0f} to {:.0f}", kLeastAspect, kMostAspect)
                   : ", none of a usual width / depth",
        kLeastAspect, kMostAspect);
    for (const auto& one : all)
      rule.numbers.push_back({fmt::format("{} x {}, {} parameters", one.model.layers, one.model.hidden, format_count(d(one.parameters))),
                              100 * one.mfu, "% MFU"});
    add(std::move(rule));
  }

  void rule_feed_forward() {
    if (shape_.is_mixture) return;
    const auto& c = sizing_.chosen.model;
    const auto exact = static_cast<int64_t>(std::llround(8.0 * d(c.hidden) / 3));
    const auto cost = [&](int64_t ffn) { return gemm_s(4096, c.hidden, 2 * ffn) + gemm_s(4096, ffn, c.hidden) / divisibility_share(ffn); };
    Rule rule{.name = "feed-forward width",
              .value = std::to_string(c.ffn),
              .basis = rates_basis(),
              .reason = fmt::format("8/3 of hidden ({}), as many weights as 4 x hidden without a gate, to a multiple of {}", exact,
                                    shape_.multiple),
              .numbers = {}};
    for (const int64_t ffn : exact == c.ffn ? std::vector{exact} : std::vector{exact, c.ffn})
      rule.numbers.push_back({fmt::format("GEMMs of {}, 4096 tokens, for each unit of width", ffn), cost(ffn) * 1e6 / d(ffn), "µs"});
    add(std::move(rule));
  }

  // Rows from which on a GEMM reaches `share` of the most that its shape reaches.
  struct Saturation {
    int64_t rows = 0;
    double best = 0, at_rows = 0;
  };
  Saturation saturation(int64_t in, int64_t out) const {
    const auto& rates = devices_.rates();
    const auto rate = [&](int64_t rows) { return rates.gemm_rate(Pass::forward, rows, out, in, false); };
    int64_t least = INT64_MAX, most = 1;  // measured: what lies outside says nothing of its own
    for (const auto& e : device_.profile.gemm)
      if (e.dtype == device_.dtype && e.kind == "plain" && e.pass == "forward") least = std::min(least, e.m), most = std::max(most, e.m);
    most = std::clamp<int64_t>(most, 1, int64_t{1} << 30);
    least = std::clamp<int64_t>(least, 1, most);
    Saturation s;
    for (int64_t rows = least; rows <= most; rows *= 2) s.best = std::max(s.best, rate(rows));
    for (s.rows = least; rate(s.rows) < request_.share * s.best; s.rows *= 2) {
    }
    s.at_rows = rate(s.rows);
    return s;
  }

  void rule_microbatch() {
    const auto& chosen = sizing_.chosen;
    const auto& c = chosen.model;
    const int64_t out = 2 * (shape_.is_mixture ? c.expert_ffn : c.ffn);
    const auto s = saturation(c.hidden, out);
    const int64_t tokens = s.rows * (shape_.is_mixture ? c.experts : 1);
    Rule rule{
        .name = "microbatch",
        .value = chosen.run
                     ? fmt::format("{} sequences, {} tokens", chosen.run->shape.microbatch, chosen.run->shape.microbatch * request_.seq)
                     : std::string("none fits"),
        .basis = rates_basis(),
        .reason = {},
        .numbers = {{fmt::format("rows from which a GEMM of {} x {} has {:.0f} % of its best rate", c.hidden, out, 100 * request_.share),
                     d(s.rows), "rows"},
                    {"its best rate", s.best / 1e12, "TFLOP/s"},
                    {"the best of any shape", device_.peak_flops() / 1e12, "TFLOP/s"}}};
    const std::string per = shape_.is_mixture ? fmt::format(", {} tokens for {} experts", tokens, c.experts) : "";
    if (!chosen.run) {
      rule.reason =
          fmt::format("not even one sequence fits by data parallelism alone (it needs {} of {}); ingot plan search tries every layout",
                      format_bytes(chosen.memory.total_bytes()), format_bytes(device_.usable_bytes()));
    } else {
      const int64_t had = chosen.run->shape.microbatch * request_.seq;
      rule.reason = fmt::format("the fastest that fits; {} % of the rate need {} rows{}, and it has {}{}", 100 * request_.share, s.rows,
                                per, shape_.is_mixture ? had / c.experts : had, shape_.is_mixture ? " for each" : "");
      rule.numbers.push_back({"memory of a device that it takes", d(chosen.memory.total_bytes()) / (1 << 30), "GiB"});
    }
    add(std::move(rule));
  }

  void rule_expert_width() {
    const auto& c = sizing_.chosen.model;
    const int64_t tokens = sizing_.chosen.run ? sizing_.chosen.run->shape.microbatch * request_.seq : request_.seq;
    Rule rule{.name = "expert width",
              .value = std::to_string(c.expert_ffn),
              .basis = Basis::assumed,
              .reason =
                  "as wide as hidden, as ZAYA1's (its second GEMM is square); ingot plan moe-width compares other widths and numbers of "
                  "experts at equal FLOPs",
              .numbers = {}};
    for (const int64_t width : {c.expert_ffn / 2, c.expert_ffn, 2 * c.expert_ffn}) {
      const int64_t rows = std::max<int64_t>(1, tokens / c.experts);
      rule.numbers.push_back({fmt::format("rate of an expert's first GEMM, width {}, {} tokens", width, rows),
                              devices_.rates().gemm_rate(Pass::forward, rows, 2 * width, c.hidden, false) / 1e12, "TFLOP/s"});
    }
    add(std::move(rule));
  }

  void rule_tokens() {
    const auto& c = sizing_.chosen;
    const double size = d(shape_.is_mixture ? c.active_parameters : c.parameters);
    const auto& r = request_;
    sizing_.batch = job_.batch;
    sizing_.tokens = r.tokens > 0 ? r.tokens : r.flops > 0 ? r.flops / c.flops_per_token : kTokensPerParameter * size;
    const double per_step = d(job_.batch * job_.seq);
    sizing_.steps = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(std::min(sizing_.tokens / per_step, 1e15))));
    sizing_.flops = sizing_.tokens * c.flops_per_token;
    if (c.run) sizing_.days = sizing_.tokens / c.run->tokens_per_s() / 86400;
    const char* basis = r.tokens > 0 ? "given by --tokens" : r.flops > 0 ? "what --flops pays for" : "20 for a parameter";
    Rule rule{
        .name = "training tokens",
        .value = format_count(sizing_.tokens),
        .basis = r.tokens > 0 || r.flops > 0 ? Basis::given : Basis::assumed,
        .reason = fmt::format("{}. 20 tokens for a{} parameter is compute-optimal by Hoffmann et al. (arXiv 2203.15556); models that will "
                              "serve many users are trained on more",
                              basis, shape_.is_mixture ? "n active" : ""),
        .numbers = {{"tokens for a parameter", sizing_.tokens / size, ""}, {"FLOPs of the training", sizing_.flops, "FLOP"}}};
    if (c.run) {
      rule.numbers.push_back({"predicted MFU", 100 * c.mfu, "%"});
      rule.numbers.push_back({fmt::format("days on {} device{}", device_.count, device_.count == 1 ? "" : "s"), sizing_.days, "days"});
    }
    add(std::move(rule));
  }

  const SizeRequest& request_;
  DataParallel& devices_;
  const Device& device_;
  const std::optional<ShapeMultiples>& shapes_;
  ShapeRule shape_;
  TrainingJob job_;
  double wanted_ = 0;
  bool counts_active_ = false;
  Sizing sizing_;
};

}  // namespace

const char* name_of(Rule::Basis basis) {
  switch (basis) {
    case Basis::measured: return "measured";
    case Basis::modelled: return "modelled";
    case Basis::assumed: return "assumed";
    case Basis::given: return "given";
  }
  return "";
}

int64_t nearest_multiple(double value, int64_t multiple) { return multiple * std::max<int64_t>(1, std::llround(value / d(multiple))); }

models::ModelConfig shape_of(const ShapeRule& rule, int64_t hidden, int64_t layers) {
  models::ModelConfig c;
  c.family = rule.is_mixture ? "zaya1" : "llama";
  c.layers = layers;
  c.hidden = hidden;
  c.vocab_size = rule.vocab;
  c.head_dim = rule.head_dim;
  c.heads = std::max<int64_t>(1, hidden / rule.head_dim / (rule.is_mixture ? 2 : 1));
  c.kv_heads = std::max<int64_t>(1, c.heads / rule.heads_per_kv);
  while (c.heads % c.kv_heads != 0) --c.kv_heads;
  c.tie_embeddings = rule.ties_embeddings;
  if (rule.is_mixture) {
    c.rope_fraction = 0.5;
    c.experts = rule.experts;
    c.top_k = 1;
    c.expert_ffn = nearest_multiple(d(hidden), rule.multiple);
    c.router_hidden = std::clamp<int64_t>(hidden / 8, 16, 256);
  } else {
    c.ffn = nearest_multiple(8.0 * d(hidden) / 3, rule.multiple);
  }
  return c;
}

void check_names_a_size(const SizeRequest& r) {
  if (r.parameters <= 0 && r.active <= 0 && r.flops <= 0 && r.tokens <= 0)
    throw base::UsageError("say how large the model shall be: --params 8B, --active 760M, --flops 1e21 or --tokens 100B");
}

Sizing size_model(const SizeRequest& request, DataParallel& devices, const std::optional<ShapeMultiples>& shapes) {
  return Sizer(request, devices, shapes).run();
}

}  // namespace ingot::plan

#include "serve/engine/news.h"

#include <nlohmann/json.hpp>

namespace ingot::serve {
namespace {

using nlohmann::json;

json of(const SamplingOptions& o) {
  json biases = json::array();
  for (const auto& [id, bias] : o.logit_bias) biases.push_back({id, bias});
  return {o.temperature,       o.top_k,           o.top_p, o.min_p, o.repetition_penalty, o.presence_penalty,
          o.frequency_penalty, std::move(biases), o.seed};
}

SamplingOptions sampling_of(const json& j) {
  SamplingOptions o{.temperature = j.at(0),
                    .top_k = j.at(1),
                    .top_p = j.at(2),
                    .min_p = j.at(3),
                    .repetition_penalty = j.at(4),
                    .presence_penalty = j.at(5),
                    .frequency_penalty = j.at(6),
                    .seed = j.at(8)};
  for (const auto& bias : j.at(7)) o.logit_bias[bias.at(0)] = bias.at(1);
  return o;
}

}  // namespace

// As CBOR: numbers keep their bits.
std::string write_news(const News& news) {
  json begun = json::array();
  for (const auto& [serial, request] : news.begun)
    begun.push_back({serial, request.prompt, request.most_tokens, request.stop_ids, of(request.sampling),
                     request.likeliest ? json(*request.likeliest) : json(), request.scores_prompt});
  const auto bytes = json::to_cbor({begun, news.cancelled, news.dropped_pages, news.is_ending});
  return {bytes.begin(), bytes.end()};
}

News read_news(const std::string& text) {
  const auto all = json::from_cbor(text);
  News news{.begun = {}, .cancelled = all.at(1), .dropped_pages = all.at(2), .is_ending = all.at(3)};
  for (const auto& j : all.at(0)) {
    TextRequest request{
        .prompt = j.at(1), .most_tokens = j.at(2), .stop_ids = j.at(3), .sampling = sampling_of(j.at(4)), .scores_prompt = j.at(6)};
    if (!j.at(5).is_null()) request.likeliest = j.at(5).get<int64_t>();
    news.begun.emplace_back(j.at(0), std::move(request));
  }
  return news;
}

}  // namespace ingot::serve

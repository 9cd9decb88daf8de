#include "verify/fixture.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "layers/dtype.h"

namespace ingot::verify {

at::Tensor Fixture::tensor(const std::string& name) const {
  const auto& description = reader_.tensor(name);
  return layers::tensor_from_bytes(reader_.bytes(name), description.dtype, description.shape);
}

std::string Fixture::text(const std::string& key) const {
  const auto found = reader_.metadata().find(key);
  if (found == reader_.metadata().end())
    throw base::ModelError("{} has no metadata '{}'; is it a reference file of this kind?", path_.string(), key);
  return found->second;
}

nlohmann::json Fixture::note(const std::string& key) const {
  auto parsed = nlohmann::json::parse(text(key), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) throw base::ModelError("{}: the metadata '{}' is not a JSON object", path_.string(), key);
  return parsed;
}

std::vector<std::string> Fixture::names() const {
  std::vector<std::string> all;
  for (const auto& t : reader_.tensors()) all.push_back(t.name);
  return all;
}

}  // namespace ingot::verify

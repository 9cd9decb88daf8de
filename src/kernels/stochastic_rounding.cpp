#include "kernels/stochastic_rounding.h"

namespace ingot::kernels {
namespace {

// fp32's bits are worked on as signed numbers, of which torch has all operations: they wrap, and shifts of theirs bring in the sign.
at::Tensor shifted_right(const at::Tensor& bits, int64_t by) { return bits.bitwise_right_shift(by).bitwise_and_((1LL << (32 - by)) - 1); }

}  // namespace

// FNV-1a of the name, with the step mixed in by splitmix64's finalizer.
uint32_t rounding_key(std::string_view tensor, int64_t step) {
  uint64_t key = 0xcbf29ce484222325;
  for (const char c : tensor) key = (key ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  key += static_cast<uint64_t>(step) * 0x9e3779b97f4a7c15;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9;
  key = (key ^ (key >> 27)) * 0x94d049bb133111eb;
  return static_cast<uint32_t>(key >> 32);
}

at::Tensor round_stochastically(const at::Tensor& x, uint32_t key) {
  const auto bits = x.contiguous().view(at::kInt);
  auto hash = bits.bitwise_xor(static_cast<int32_t>(key));
  for (const auto& [shift, factor] : {std::pair{16, 0x85ebca6bU}, std::pair{13, 0xc2b2ae35U}})
    hash = hash.bitwise_xor_(shifted_right(hash, shift)).mul_(static_cast<int32_t>(factor));
  const auto rounded = (bits + shifted_right(hash, 16)).bitwise_and_(static_cast<int32_t>(0xffff0000U)).view(at::kFloat);
  return at::where(x.isfinite(), rounded, x).to(at::kBFloat16);
}

}  // namespace ingot::kernels

// Both passes of linear attention as launches of their kernels, by the gate and the rule that a problem has.
#pragma once

#include "kernels/gpu/linear_attention_channels.h"
#include "kernels/gpu/linear_attention_delta.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

template <LinearGate gate, bool is_gradient, class Launcher>
auto launch_states(const LinearAttentionProblem& p, const Launcher& launcher) {
  const int64_t tiles = p.pairs * p.key_tiles * p.value_tiles;
  // Backward what parts make of the states is known: they are saved.
  if (p.parts > 1 && (is_gradient || p.final_state != nullptr))
    if (const auto error = launcher.template run<LinearStates<gate, is_gradient, true>>(tiles * (p.parts - 1), kTileThreads, p))
      return error;
  return launcher.template run<LinearStates<gate, is_gradient, false>>(tiles * p.parts, kTileThreads, p);
}

// grad_q, grad_k and the gates' gradient.
template <bool of_system, class Launcher>
auto launch_channel_gradients(const LinearAttentionProblem& p, const Launcher& launcher) {
  constexpr int kChannels = LinearChannelGradients<true, of_system>::kChannels;
  const int64_t blocks = p.pairs * p.chunks * ((p.key_dim + kChannels - 1) / kChannels);
  if (const auto error = launcher.template run<LinearChannelGradients<true, of_system>>(blocks, kTileThreads, p)) return error;
  return launcher.template run<LinearChannelGradients<false, of_system>>(blocks, kTileThreads, p);
}

template <LinearGate gate, class Launcher>
auto linear_attention_forward(const LinearAttentionProblem& p, const Launcher& launcher) {
  const int64_t chunks = p.pairs * p.chunks;
  if constexpr (gate == LinearGate::of_channels) {
    if (const auto error = launcher.template run<LinearChannelScores>(chunks, kTileThreads, p)) return error;
  } else if (const auto error = launcher.template run<LinearScores<gate == LinearGate::of_heads, false>>(chunks, kTileThreads, p))
    return error;
  if (const auto error = launch_states<gate, false>(p, launcher)) return error;
  return launcher.template run<LinearProduct<gate, LinearResult::out>>(chunks * p.value_tiles, kTileThreads, p);
}

template <LinearGate gate, class Launcher>
auto linear_attention_backward(const LinearAttentionProblem& p, const Launcher& launcher) {
  constexpr bool is_by_channel = gate == LinearGate::of_channels;
  const int64_t chunks = p.pairs * p.chunks;
  if constexpr (is_by_channel) {
    if (const auto error = launcher.template run<LinearChannelScores>(chunks, kTileThreads, p)) return error;
    if (const auto error = launcher.template run<LinearChannelScoreGradients>(chunks, kTileThreads, p)) return error;
  } else if (const auto error = launcher.template run<LinearScores<gate == LinearGate::of_heads, true>>(chunks, kTileThreads, p))
    return error;
  if (const auto error = launch_states<gate, false>(p, launcher)) return error;
  if (const auto error = launch_states<gate, true>(p, launcher)) return error;
  const auto product = [&]<LinearResult result>(int64_t column_tiles) {
    return launcher.template run<LinearProduct<gate, result>>(chunks * column_tiles, kTileThreads, p);
  };
  if (const auto error = product.template operator()<LinearResult::grad_v>(p.value_tiles)) return error;
  if constexpr (is_by_channel) {
    return launch_channel_gradients<false>(p, launcher);
  } else {
    if (const auto error = product.template operator()<LinearResult::grad_q>(p.key_tiles)) return error;
    const auto error = product.template operator()<LinearResult::grad_k>(p.key_tiles);
    return error || p.grad_gate == nullptr ? error : launcher.template run<LinearGates>(chunks, LinearGates::kThreads, p);
  }
}

// T, W, and the states in front of chunks with what is written into them; with a gate per channel scores before, as decayed keys come with
// them.
template <LinearGate gate, class Launcher>
auto launch_delta_states(const LinearAttentionProblem& p, const Launcher& launcher) {
  const int64_t chunks = p.pairs * p.chunks;
  if constexpr (gate == LinearGate::of_channels)
    if (const auto error = launcher.template run<LinearChannelScores>(chunks, kTileThreads, p)) return error;
  if (const auto error = launcher.template run<LinearSystem<gate>>(chunks, kTileThreads, p)) return error;
  if (const auto error = launcher.template run<LinearSolved<gate, LinearSolve::keys>>(chunks * p.key_tiles, kTileThreads, p)) return error;
  if (const auto error =
          launcher.template run<LinearSolved<LinearGate::none, LinearSolve::values>>(chunks * p.value_tiles, kTileThreads, p))
    return error;
  return launcher.template run<LinearDeltaStates<gate, false>>(p.pairs * (p.value_dim / kMatrix), kTileThreads, p);
}

template <LinearGate gate, class Launcher>
auto delta_rule_forward(const LinearAttentionProblem& p, const Launcher& launcher) {
  const int64_t chunks = p.pairs * p.chunks;
  auto of_written = p;
  of_written.v = p.written;
  if (const auto error = launch_delta_states<gate>(p, launcher)) return error;
  if constexpr (gate != LinearGate::of_channels)
    if (const auto error = launcher.template run<LinearScores<gate == LinearGate::of_heads, false>>(chunks, kTileThreads, p)) return error;
  return launcher.template run<LinearProduct<gate, LinearResult::out>>(chunks * p.value_tiles, kTileThreads, of_written);
}

template <LinearGate gate, class Launcher>
auto delta_rule_backward(const LinearAttentionProblem& p, const Launcher& launcher) {
  constexpr bool has_gate = gate == LinearGate::of_heads, is_by_channel = gate == LinearGate::of_channels;
  const int64_t chunks = p.pairs * p.chunks, by_key = chunks * p.key_tiles, by_value = chunks * p.value_tiles;
  constexpr int kThreads = kTileThreads;
  auto of_written = p;
  of_written.v = p.written;
  if (const auto error = launch_delta_states<gate>(p, launcher)) return error;
  if constexpr (is_by_channel) {
    if (const auto error = launcher.template run<LinearChannelScoreGradients>(chunks, kThreads, of_written)) return error;
  } else if (const auto error = launcher.template run<LinearScores<has_gate, true>>(chunks, kThreads, of_written)) return error;
  if (const auto error = launcher.template run<LinearSolved<LinearGate::none, LinearSolve::grad_written>>(by_value, kThreads, p))
    return error;
  if (const auto error = launcher.template run<LinearDeltaStates<gate, true>>(p.pairs * (p.value_dim / kMatrix), kThreads, p)) return error;
  if (const auto error = launcher.template run<LinearSolved<LinearGate::none, LinearSolve::grad_v>>(by_value, kThreads, p)) return error;
  if (const auto error = launcher.template run<LinearSystemGradients<has_gate>>(chunks, kThreads, p)) return error;
  if constexpr (is_by_channel) {
    if (const auto error = launch_channel_gradients<false>(of_written, launcher)) return error;
    auto of_system = p;
    of_system.q = p.k, of_system.grad_q = p.grad_k, of_system.grad_scores = p.grad_products, of_system.grad_out = p.grad_v;
    return launch_channel_gradients<true>(of_system, launcher);
  } else {
    if (const auto error = launcher.template run<LinearProduct<gate, LinearResult::grad_q>>(by_key, kThreads, p)) return error;
    if (const auto error = launcher.template run<LinearProduct<gate, LinearResult::grad_k_of_system>>(by_key, kThreads, p)) return error;
    const auto error = launcher.template run<LinearProduct<gate, LinearResult::grad_k>>(by_key, kThreads, of_written);
    return error || p.grad_gate == nullptr ? error : launcher.template run<LinearGates>(chunks, LinearGates::kThreads, p);
  }
}

template <class Launcher>
auto linear_attention_forward(const LinearAttentionProblem& p, const Launcher& launcher) {
  if (p.beta != nullptr && p.channel_gate.data != nullptr) return delta_rule_forward<LinearGate::of_channels>(p, launcher);
  if (p.beta != nullptr)
    return p.gate != nullptr ? delta_rule_forward<LinearGate::of_heads>(p, launcher) : delta_rule_forward<LinearGate::none>(p, launcher);
  if (p.channel_gate.data != nullptr) return linear_attention_forward<LinearGate::of_channels>(p, launcher);
  return p.gate != nullptr ? linear_attention_forward<LinearGate::of_heads>(p, launcher)
                           : linear_attention_forward<LinearGate::none>(p, launcher);
}
template <class Launcher>
auto linear_attention_backward(const LinearAttentionProblem& p, const Launcher& launcher) {
  if (p.beta != nullptr && p.channel_gate.data != nullptr) return delta_rule_backward<LinearGate::of_channels>(p, launcher);
  if (p.beta != nullptr)
    return p.gate != nullptr ? delta_rule_backward<LinearGate::of_heads>(p, launcher) : delta_rule_backward<LinearGate::none>(p, launcher);
  if (p.channel_gate.data != nullptr) return linear_attention_backward<LinearGate::of_channels>(p, launcher);
  return p.gate != nullptr ? linear_attention_backward<LinearGate::of_heads>(p, launcher)
                           : linear_attention_backward<LinearGate::none>(p, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu

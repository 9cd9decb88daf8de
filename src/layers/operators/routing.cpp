// The router behind its projection from the residual stream (rows: tokens; width: of the router), and sorting tokens by expert, gathering
// and returning them (width: of the residual stream). What is priced as GEMMs by itself is as small as it can be.
#include "device/device.h"
#include "kernels/operators/helpers.h"
#include "layers/experts.h"
#include "layers/operators/helpers.h"
#include "layers/router.h"

namespace ingot::layers {
namespace {

using Kind = Parameter::Kind;

OperatorCall make_router(const OperatorSizes& s) {
  constexpr int64_t kHidden = 16, kClasses = 9;
  constexpr double kEps = 1e-5;
  const int64_t r = s.width;
  const auto matrix = [](const char* name, int64_t out, int64_t in) {
    return Parameter{.name = name, .shape = {out, in}, .kind = Kind::matrix, .keeps_fp32 = true};
  };
  const auto vector = [](const char* name, int64_t size, Kind kind = Kind::vector) {
    return Parameter{.name = name, .shape = {size}, .kind = kind, .keeps_fp32 = true};
  };
  const auto list = random_parameters({matrix("down", r, kHidden), vector("down_bias", r), vector("state_scale", r), vector("norm", r),
                                       matrix("fc1", r, r), vector("fc1_bias", r), matrix("fc2", r, r), vector("fc2_bias", r),
                                       matrix("out", kClasses, r), vector("balancing", kClasses, Kind::buffer)},
                                      s);
  const auto get = [&](const char* name) { return &list->get(name); };
  const RouterParameters p{get("down"),     get("down_bias"), get("state_scale"), get("norm"), get("fc1"),
                           get("fc1_bias"), get("fc2"),       get("fc2_bias"),    get("out"),  get("balancing")};
  OperatorCall call;
  call.inputs = {s.leaf({s.rows, kHidden}), s.leaf({s.rows, r}, s.wide())};
  for (const auto& parameter : list->all()) call.inputs.push_back(parameter->value);
  call.forward = [=, keep = list](const TensorList& in) -> TensorList {
    const auto routing = route(in[0], in[1], p, kEps);
    return {routing.weight, routing.state};
  };
  return call;
}

OperatorCall make_dispatch(const OperatorSizes& s) {
  constexpr int64_t kExperts = 8;
  const int64_t width = device::is_gpu(s.device) ? 8 : 2;  // the least that grouped GEMMs take
  const auto list = random_parameters({{.name = "gate_up", .shape = {kExperts, 2 * width, s.width}, .kind = Kind::matrix},
                                       {.name = "down", .shape = {kExperts, s.width, width}, .kind = Kind::matrix}},
                                      s);
  OperatorCall call;
  call.inputs = {s.leaf({s.rows, s.width}), s.leaf({s.rows}, s.wide()), s.indices(kExperts, {s.rows})};
  call.forward = [list](const TensorList& in) -> TensorList {
    return {experts(in[0], in[2], in[1], {list->get("gate_up"), list->get("down")}, 1, SkipOutput::zero)};
  };
  return call;
}

}  // namespace

std::vector<Operator> routing_operators() {
  return {{.name = "router",
           .kind = WorkKind::routing,
           .make = make_router,
           .measured = [](bool quick) { return kernels::grid(kernels::token_rows(quick), kernels::doubling(64, 256, quick)); }},
          {.name = "expert_dispatch",
           .kind = WorkKind::routing,
           .traced = {{"sort_slots"}, {"gather_rows"}, {"sum_slots"}},
           .fused_on = {device::Target::gpu},
           .make = make_dispatch,
           .measured = [](bool quick) {
             return kernels::grid(kernels::token_rows(quick), kernels::doubling(256, quick ? 1024 : 2048, quick));
           }}};
}

}  // namespace ingot::layers

// Compressed convolutional attention (layers/cca_attention.h) of a pass' tokens.
#pragma once

#include "layers/cca_attention.h"
#include "models/decode/program.h"

namespace ingot::models::decode {

/// Adds its steps; false where its weights cannot be taken.
bool add_cca_attention(Program& program, const layers::CcaAttention& attention, int64_t layer);

}  // namespace ingot::models::decode

// The identity under which KV bytes may be exchanged.
//
// Threading: thread-safe. Blocks on file reads. Cost: the metadata of the file plus 4 MiB of samples.
#pragma once

#include "base/hash.h"
#include "base/status.h"
#include "engine/llamacpp/kv_codec.h"
#include "engine/llamacpp/llamacpp_model.h"

namespace kvtide::engine {

/// Digest of the model file (all parts of a split one: metadata, tensor table, size, samples of the weights), of the KV geometry and
/// types, and of what changes KV values: llama.cpp's version, the KV rotation switch, RoPE settings. `geometry` null: reuse is off.
/// Errors: kUnavailable (the file cannot be read).
base::Result<base::Digest> fingerprint(const LlamaModel& model, const KvGeometry* geometry);

}  // namespace kvtide::engine

#include "engine/llamacpp/llamacpp_fingerprint.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <vector>

#include "gguf.h"

namespace kvtide::engine {
namespace {

using base::Code;
using base::error;
using base::Result;

constexpr size_t kSampleBytes = 64 << 10;
constexpr uint64_t kSamples = 64;
constexpr uint64_t kMetaBytesMax = 256 << 20;  // no vocabulary comes near

void add(base::Sha256& hash, uint64_t value) { hash.update(std::as_bytes(std::span(&value, 1))); }

/// Bytes [from, from + size) of the file, as far as there are any.
void add_range(base::Sha256& hash, std::ifstream& file, uint64_t from, size_t size, std::vector<char>& buffer) {
  buffer.resize(size);
  file.clear();
  file.seekg(static_cast<std::streamoff>(from));
  file.read(buffer.data(), static_cast<std::streamsize>(size));
  hash.update(std::string_view(buffer.data(), static_cast<size_t>(file.gcount())));
}

uint64_t meta_bytes(const std::string& path) {
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}),
                                                                 &gguf_free);
  return gguf ? std::min<uint64_t>(gguf_get_data_offset(gguf.get()), kMetaBytesMax) : 0;
}

base::Status add_file(base::Sha256& hash, const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return error(Code::kUnavailable, "cannot read the model file '" + path + "'");
  const auto size = static_cast<uint64_t>(file.tellg());
  const uint64_t meta = std::min(meta_bytes(path), size);
  std::vector<char> buffer;
  add(hash, size);
  add(hash, meta);
  add_range(hash, file, 0, static_cast<size_t>(meta), buffer);
  for (uint64_t i = 0; i < kSamples; ++i) add_range(hash, file, meta + (size - meta) / kSamples * i, kSampleBytes, buffer);
  if (size > kSampleBytes) add_range(hash, file, size - kSampleBytes, kSampleBytes, buffer);
  return {};
}

/// The files of a split model, in order; the path itself for any other.
std::vector<std::string> parts_of(const LlamaModel& model) {
  const int count = std::atoi(model.meta("split.count").c_str());
  std::vector<char> text(model.path.size() + 64);
  if (count < 2 || llama_split_prefix(text.data(), text.size(), model.path.c_str(), 0, count) <= 0) return {model.path};
  const std::string prefix(text.data());
  std::vector<std::string> parts;
  for (int i = 0; i < count; ++i) {
    llama_split_path(text.data(), text.size(), prefix.c_str(), i, count);
    parts.emplace_back(text.data());
  }
  return parts;
}

}  // namespace

Result<base::Digest> fingerprint(const LlamaModel& model, const KvGeometry* geometry) {
  base::Sha256 hash;
  hash.update("kvtide llamacpp 1\n");
  for (const std::string& part : parts_of(model)) {
    if (auto added = add_file(hash, part); !added) return tl::make_unexpected(added.error());
  }
  if (geometry != nullptr) hash.update(base::hex(geometry->digest()));
  hash.update(llama_version());
  add(hash, LLAMA_STATE_SEQ_VERSION);
  // llama.cpp rotates keys and values of quantised caches unless this is set; the bytes differ, their form does not.
  const char* rotation_off = std::getenv("LLAMA_ATTN_ROT_DISABLE");
  hash.update(rotation_off != nullptr ? rotation_off : "");
  add(hash, static_cast<uint64_t>(llama_model_rope_type(model.model)));
  hash.update(std::to_string(llama_model_rope_freq_scale_train(model.model)));
  return hash.digest();
}

}  // namespace kvtide::engine

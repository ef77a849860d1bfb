// Replies come back as they were: tokens of prompts that repeat a reply of this server.
//
// A client sends a reply back as text, which may tokenise differently from what was generated; then every block behind it would miss.
// So the tokens of (prompt + reply) are kept under a hash of (tenant, their text), and a later prompt that starts with the same text uses
// them; only what follows is tokenised. Replies end where the template ends a turn, so only those places are looked up. The text
// decides, not an id: it works for clients that name no session, and a tenant never meets another's entries.
//
// Threading: thread-safe; HTTP threads look up while the loop remembers. Bounded in bytes; the longest unused entry goes first.
// Cost: one SHA-256 pass over the prompt.
#pragma once

#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "engine/api/text_model.h"

namespace kvtide::serving {

using engine::Token;

class PromptMemory {
 public:
  PromptMemory(const engine::TextModel& text_model, size_t budget_bytes) : text_model_(text_model), budget_bytes_(budget_bytes) {}

  /// Tokens of `text`, begin-of-sequence included.
  std::vector<Token> tokenize(std::string_view tenant, std::string_view text);

  /// `prompt` was answered by `reply` (raw text, special tokens as text), and `tokens` are those of both.
  void remember(std::string_view tenant, std::string_view prompt, std::string_view reply, std::vector<Token> tokens);

  struct Stats {
    size_t bytes = 0;
    int64_t exact = 0;     // prompts that repeated a known reply
    int64_t total = 0;
  };
  Stats stats() const;

 private:
  struct DigestHash {
    size_t operator()(const base::Digest& d) const noexcept;
  };
  struct Entry {
    base::Digest digest;
    std::vector<Token> tokens;
  };

  void put(const base::Digest& digest, std::vector<Token> tokens);

  const engine::TextModel& text_model_;
  const size_t budget_bytes_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // least recently used last
  std::unordered_map<base::Digest, std::list<Entry>::iterator, DigestHash> by_digest_;
  Stats stats_;
};

}  // namespace kvtide::serving

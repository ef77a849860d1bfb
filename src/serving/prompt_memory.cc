#include "serving/prompt_memory.h"

#include <algorithm>
#include <cstring>

namespace kvtide::serving {
namespace {

constexpr size_t kLookupsMax = 4096;  // turn ends tried in one prompt, the last ones; a text of nothing but such marks costs no more than this

base::Sha256 start(std::string_view tenant) {
  base::Sha256 hash;
  const uint64_t length = tenant.size();
  hash.update(std::as_bytes(std::span(&length, 1)));
  hash.update(tenant);
  return hash;
}

// Where a turn may end in `text`: in front of each end mark, in order. Of too many the last ones: replies are newest at the end.
std::vector<size_t> turn_ends(std::string_view text, const std::vector<std::string>& marks) {
  std::vector<size_t> ends;
  for (const std::string& mark : marks) {
    if (mark.empty()) continue;
    size_t left = kLookupsMax;
    for (size_t at = text.rfind(mark); at != std::string_view::npos && at > 0 && left > 0; --left) {
      ends.push_back(at);
      if (at < mark.size()) break;
      at = text.rfind(mark, at - mark.size());
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  if (ends.size() > kLookupsMax) ends.erase(ends.begin(), ends.end() - kLookupsMax);
  return ends;
}

size_t cost_bytes(const std::vector<Token>& tokens) { return tokens.size() * sizeof(Token) + 128; }

}  // namespace

size_t PromptMemory::DigestHash::operator()(const base::Digest& d) const noexcept {
  size_t head;
  std::memcpy(&head, d.data(), sizeof(head));
  return head;
}

std::vector<Token> PromptMemory::tokenize(std::string_view tenant, std::string_view text) {
  std::vector<std::pair<size_t, base::Digest>> candidates;
  base::Sha256 hash = start(tenant);
  size_t done = 0;
  for (size_t end : turn_ends(text, text_model_.end_texts())) {
    hash.update(text.substr(done, end - done));
    done = end;
    candidates.emplace_back(end, hash.digest());
  }
  std::vector<Token> tokens;
  size_t known = 0;
  {
    std::lock_guard lock(mutex_);
    ++stats_.total;
    for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
      const auto found = by_digest_.find(it->second);
      if (found == by_digest_.end()) continue;
      entries_.splice(entries_.begin(), entries_, found->second);
      tokens = found->second->tokens;
      known = it->first;
      ++stats_.exact;
      break;
    }
  }
  const std::vector<Token> rest = text_model_.tokenize(text.substr(known), known == 0, true);
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  return tokens;
}

void PromptMemory::remember(std::string_view tenant, std::string_view prompt, std::string_view reply, std::vector<Token> tokens) {
  if (reply.empty()) return;
  base::Sha256 hash = start(tenant);
  hash.update(prompt);
  base::Sha256 whole = hash;
  whole.update(reply);
  // Templates often trim a reply. Where the blanks at its end are tokens of their own, the trimmed text is known as well.
  const size_t trimmed = reply.find_last_not_of(" \t\r\n") + 1;
  if (trimmed > 0 && trimmed < reply.size()) {
    std::vector<Token> cut = tokens;
    size_t length = reply.size();
    while (length > trimmed && !cut.empty()) {
      length -= std::min(length, text_model_.piece(cut.back(), true).size());
      cut.pop_back();
    }
    if (length == trimmed) {
      hash.update(reply.substr(0, trimmed));
      put(hash.digest(), std::move(cut));
    }
  }
  put(whole.digest(), std::move(tokens));
}

void PromptMemory::put(const base::Digest& digest, std::vector<Token> tokens) {
  if (cost_bytes(tokens) > budget_bytes_) return;
  std::lock_guard lock(mutex_);
  if (const auto known = by_digest_.find(digest); known != by_digest_.end()) {
    stats_.bytes -= cost_bytes(known->second->tokens);
    entries_.erase(known->second);
    by_digest_.erase(known);
  }
  stats_.bytes += cost_bytes(tokens);
  entries_.push_front({digest, std::move(tokens)});
  by_digest_[digest] = entries_.begin();
  while (stats_.bytes > budget_bytes_) {
    stats_.bytes -= cost_bytes(entries_.back().tokens);
    by_digest_.erase(entries_.back().digest);
    entries_.pop_back();
  }
}

PromptMemory::Stats PromptMemory::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace kvtide::serving

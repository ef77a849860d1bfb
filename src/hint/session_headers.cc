#include "hint/session_headers.h"

#include <algorithm>
#include <utility>

#include "hint/field_reader.h"

namespace kvtide::hint {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_name(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

class HeaderReader {
 public:
  HeaderReader(std::span<const Header> headers, std::vector<Problem>& problems) : headers_(headers), problems_(problems) {}

  std::string_view value(std::string_view name) const {
    for (const Header& header : headers_) {
      if (same_name(header.name, name)) return trimmed(header.value);
    }
    return {};
  }
  std::string id(std::string_view name) const { return checked_id(value(name), kIdBytesMax, name, problems_).value.value_or(""); }
  void problem(std::string_view name, std::string message) const { add_problem(problems_, std::string(name), std::move(message)); }

 private:
  std::span<const Header> headers_;
  std::vector<Problem>& problems_;
};

Identity plain_identity(const HeaderReader& in, std::string_view session, std::string_view parent) {
  Identity who{.session_id = in.id(session), .parent_id = {}};
  if (who.session_id.empty() || parent.empty()) return who;
  who.parent_id = in.id(parent);
  if (who.parent_id == who.session_id) who.parent_id.clear();
  return who;
}

constexpr std::string_view kClaudeAgent = "x-claude-code-agent-id";

Identity claude_code_identity(const HeaderReader& in) {
  const std::string session = in.id("x-claude-code-session-id");
  if (session.empty()) return {};
  const std::string agent = in.id(kClaudeAgent);
  if (agent.empty() || agent == session) return {.session_id = session, .parent_id = {}};
  const std::string parent = in.id("x-claude-code-parent-agent-id");
  const bool of_main = parent.empty() || parent == session || parent == agent;
  Identity who{.session_id = session + "/" + agent, .parent_id = of_main ? session : session + "/" + parent};
  if (who.session_id.size() > kIdBytesMax || who.parent_id.size() > kIdBytesMax) {
    in.problem(kClaudeAgent, "longer than " + std::to_string(kIdBytesMax) + " bytes with the session id; the main session is used");
    return {.session_id = session, .parent_id = {}};
  }
  return who;
}

constexpr std::string_view kDynamoFinal = "x-dynamo-session-final";

/// Whether the client says that this is the session's last request.
bool is_final(const HeaderReader& in) {
  const std::string_view value = in.value(kDynamoFinal);
  if (value == "1" || same_name(value, "true")) return true;
  if (!value.empty() && value != "0" && !same_name(value, "false")) in.problem(kDynamoFinal, "must be true or false");
  return false;
}

}  // namespace

Hints decode_session_headers(std::span<const Header> headers) {
  Hints out;
  const HeaderReader in(headers, out.problems);
  const auto spoke = [&](std::string_view dialect, Identity who) {
    if (who.session_id.empty()) return false;
    out.dialect = dialect;
    out.identity = std::move(who);
    return true;
  };
  if (spoke("dynamo", plain_identity(in, "x-dynamo-session-id", "x-dynamo-parent-session-id"))) {
    if (is_final(in)) {
      Action& end = out.actions.emplace_back();
      end.verb = Verb::kEnd;
      end.identity = out.identity;
    }
    return out;
  }
  if (spoke("claude_code", claude_code_identity(in))) return out;
  if (spoke("opencode", plain_identity(in, "x-session-id", "x-parent-session-id"))) return out;
  if (spoke("codex", plain_identity(in, "session-id", ""))) return out;
  out.dialect = "none";
  return out;
}

}  // namespace kvtide::hint

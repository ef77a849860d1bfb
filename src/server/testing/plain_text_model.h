// A text model for tests: a token is a byte, a prompt is "role:content\n" for each message, and a reply may hold
// "<think>reasoning</think>" first and "<call NAME>ARGUMENTS</call>" last.
//
// Threading: thread-safe.
#pragma once

#include "engine/api/text_model.h"

namespace kvtide::server::testing {

class PlainTextModel final : public engine::TextModel {
 public:
  /// kInvalidArgument when the first message says "refuse me".
  base::Result<engine::RenderedChat> render(const engine::ChatInput& input) const override;
  std::vector<engine::Token> tokenize(std::string_view text, bool begin, bool special) const override;
  std::string piece(engine::Token token, bool special) const override;
  bool is_end(engine::Token token) const override { return token == 0; }
  const std::vector<std::string>& end_texts() const override { return end_texts_; }
  std::map<std::string, bool> capabilities() const override { return {{"tools", true}}; }

 private:
  std::vector<std::string> end_texts_{"\n"};
};

}  // namespace kvtide::server::testing

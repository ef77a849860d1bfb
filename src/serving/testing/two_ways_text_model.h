// A text model in which the same text has two tokenisations, as real ones have: "ab" is one token (kTwoWaysPair), but a model may as well
// generate "a" and "b". One token a byte otherwise; "<end>" is kTwoWaysEnd and ends a turn.
//
// Threading: thread-safe.
#pragma once

#include "engine/api/text_model.h"

namespace kvtide::serving {

inline constexpr engine::Token kTwoWaysPair = 300;
inline constexpr engine::Token kTwoWaysEnd = 257;
inline constexpr engine::Token kTwoWaysBegin = 301;

class TwoWaysTextModel final : public engine::TextModel {
 public:
  base::Result<engine::RenderedChat> render(const engine::ChatInput&) const override {
    return base::error(base::Code::kUnsupported, "no template");
  }

  std::vector<engine::Token> tokenize(std::string_view text, bool begin, bool special) const override {
    std::vector<engine::Token> out;
    if (begin) out.push_back(kTwoWaysBegin);
    while (!text.empty()) {
      if (special && text.starts_with("<end>")) {
        out.push_back(kTwoWaysEnd);
        text.remove_prefix(5);
      } else if (text.starts_with("ab")) {
        out.push_back(kTwoWaysPair);
        text.remove_prefix(2);
      } else {
        out.push_back(static_cast<unsigned char>(text.front()));
        text.remove_prefix(1);
      }
    }
    return out;
  }

  std::string piece(engine::Token token, bool special) const override {
    if (token == kTwoWaysPair) return "ab";
    if (token == kTwoWaysEnd) return special ? "<end>" : "";
    if (token == kTwoWaysBegin || token > 255) return "";
    return std::string(1, static_cast<char>(token));
  }

  bool is_end(engine::Token token) const override { return token == kTwoWaysEnd; }
  const std::vector<std::string>& end_texts() const override { return end_texts_; }
  std::map<std::string, bool> capabilities() const override { return {}; }

 private:
  const std::vector<std::string> end_texts_{"<end>"};
};

}  // namespace kvtide::serving

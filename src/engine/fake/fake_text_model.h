// The text side of the fake engine: one token per byte, a ChatML-like template, tool calls as <tool_call>{json}</tool_call>.
//
//   <|im_start|>system\n...<|im_end|>\n<|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n
//
// Tokens are the bytes 0..255, <|im_start|> 256, <|im_end|> 257, <|endoftext|> 258. A JSON schema becomes a dictated smallest instance;
// tool_choice required becomes a dictated call of the first tool with a smallest argument object. GBNF grammars are refused.
// Reasoning is what stands in <think>...</think> at the start of a reply.
//
// Threading: thread-safe.
#pragma once

#include <memory>

#include "engine/api/text_model.h"

namespace kvtide::engine {

inline constexpr Token kFakeTurnStart = 256;  // <|im_start|>
inline constexpr Token kFakeTurnEnd = 257;    // <|im_end|>, ends a reply
inline constexpr Token kFakeTextEnd = 258;    // <|endoftext|>, ends a reply

std::unique_ptr<TextModel> make_fake_text_model();

}  // namespace kvtide::engine

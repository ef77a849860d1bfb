// The two shapes of an answer, chat and text completion, behind one interface: what one choice says, whole or next.
//
// Threading: thread-compatible; one object per request.
#pragma once

#include <memory>
#include <vector>

#include "server/openai/reply_diff.h"
#include "server/openai/reply_json.h"

namespace kvtide::server {

class ReplyFormat {
 public:
  virtual ~ReplyFormat() = default;

  virtual std::string_view whole_object() const = 0;  // "chat.completion" ...
  virtual std::string_view chunk_object() const = 0;

  /// Entries of `choices` that open the stream of choice `index`; may be empty.
  virtual std::vector<Json> opening(size_t index) = 0;
  /// Entries that lead from what was said to what `choice` now holds. Once choice.done the last entry carries its finish_reason.
  virtual std::vector<Json> advance(size_t index, const Choice& choice) = 0;
  /// The entry of a whole answer. REQUIRES: choice.done.
  virtual Json whole(size_t index, const Choice& choice) = 0;

  /// The tools that the reply calls, in order. After advance() or whole() of a choice that is done.
  virtual std::vector<std::string> called_tools(size_t index) const = 0;
};

/// `parser` must not be null.
std::unique_ptr<ReplyFormat> make_chat_format(std::shared_ptr<const engine::ReplyParser> parser, const engine::TextModel& text_model,
                                              size_t choices, bool logprobs);
std::unique_ptr<ReplyFormat> make_completion_format(const engine::TextModel& text_model, size_t choices, bool logprobs);

}  // namespace kvtide::server

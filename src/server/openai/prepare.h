// The pure first half of a generation: from a body to what is submitted.
//
// Threading: free functions, thread-safe; CPU-bound.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "server/http/message.h"
#include "server/openai/generation.h"
#include "server/openai/request.h"
#include "serving/service.h"

namespace kvtide::server {

/// A decoded body.
struct Decoded {
  hint::Hints hints;
  bool manage = false;  // then `request` holds nothing
  std::variant<ChatRequest, CompletionRequest> request;

  const GenerateFields& common() const;
};

/// Errors: kInvalidArgument (JSON, fields), kNotFound (model name under strict_model). Cost: O(body).
base::Result<Decoded> decode_request(const std::string& body, const Headers& headers, ReplyKind kind, const GenerationOptions& options,
                                     const engine::EngineInfo& info);

/// What to submit, once per choice.
struct Prepared {
  serving::GenerateRequest request;                      // of the first choice
  std::shared_ptr<const engine::ReplyParser> parser;     // null for text completions
  int32_t choices = 1;
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
};

/// Renders and tokenises. Errors: kInvalidArgument (the template refuses). Cost: O(prompt).
base::Result<Prepared> prepare(Decoded decoded, const std::string& tenant, serving::Service& service);

}  // namespace kvtide::server

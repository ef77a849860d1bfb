// One request to /v1/chat/completions or /v1/completions, from its body to the last byte of its answer.
//
//   decode (strand, or a worker for a big body) -> render and tokenise (worker) -> submit, one per choice -> events -> answer
//
// A management request leaves after decoding: it is answered by Service::manage and sees neither template nor queue.
// Errors before the first token are HTTP statuses, so a stream's head is sent with its first event only.
// When the client leaves, its deadline passes, or it reads so slowly that the stream's buffer fills, the requests are cancelled.
//
// Threading: lives on the strand of its exchange; sinks take events on the loop thread and hand them over through one bounded queue.
// Ownership: shared, by the sinks and the work in flight; nothing refers to it once the exchange has ended and the loop is done.
#pragma once

#include <memory>
#include <string>

#include "server/http/message.h"
#include "serving/service.h"

namespace kvtide::server {

struct GenerationOptions {
  std::string model_name;  // what is answered: the alias, or the model's own name
  std::string other_name;  // the model's own name, accepted too
  bool strict_model = false;
  bool allow_forced_replies = false;
};

enum class ReplyKind { kChat, kCompletion };

/// Starts to answer `request`. On the strand; never throws. `service` and `options` must outlive the listener.
void start_generation(serving::Service& service, const GenerationOptions& options, ReplyKind kind, std::string tenant, Request request,
                      std::shared_ptr<Exchange> exchange);

}  // namespace kvtide::server

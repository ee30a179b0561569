// HTTP as the API sees it, without the library behind it.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace carrel {

struct HttpRequest {
  std::string method, path;  // path without the query
  std::map<std::string, std::string> headers;  // names in lower case; of doubled headers the first
  std::string body;
  std::string remote_addr;
  bool loopback = false;
  std::function<bool()> client_gone;  // may be asked at any time while the request is handled
  std::string id;                     // made here: x-request-id of log, answer, audit

  std::string_view header(const std::string& lower_name) const {
    const auto at = headers.find(lower_name);
    return at == headers.end() ? std::string_view{} : std::string_view(at->second);
  }
};

/// Sends bytes of a streamed answer; false: the client is gone.
using Send = std::function<bool(std::string_view)>;

struct HttpResponse {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string content_type = "application/json";
  std::string body;
  std::function<void(const Send&)> stream;  // when set: called once, the answer is what it sends, chunked
  bool close = false;                       // end the connection after this answer (unread body, refused client)
};

/// What the listener refuses itself, before or instead of a handler: bytes that are no request, limits, time.
struct Refusal {
  int status;
  const char* code;
  std::string message;
};

/// Called by the server. `begin` sees head and peer only, before a byte of the body is read: it answers to refuse, or returns nothing to go on.
struct HttpHandler {
  std::function<bool(const HttpRequest&, HttpResponse&)> begin;  // true: answered
  std::function<void(HttpRequest&, HttpResponse&)> handle;
  /// Gives a refusal of the listener the shape, id, log line and metric that every answer has. The head may be empty: nothing of it was understood.
  std::function<void(const HttpRequest& head, const Refusal&, HttpResponse&)> refuse;
};

/// A header value that cannot split a response: printable ASCII only.
std::string clean_header(std::string_view value);

}  // namespace carrel

// The HTTPS listener. Owns the one use of the HTTP library's server: limits, deadlines, TLS, connection threads, disconnect detection.
//
// Threads: one per connection, bounded; handlers run on them. Errors: kIo when the address cannot be bound, kInvalidArgument for bad certificates.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "app/api/http.h"
#include "base/error.h"

namespace carrel {

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  int port = 0;                             // 0: the system chooses
  std::string cert_pem_file, key_pem_file;  // both empty: clear text (loopback only; the caller checks)
  size_t max_body_bytes = 8u << 20;
  size_t max_bodies_bytes = 64u << 20;      // of all bodies in work; parsing one takes many times its size
  size_t max_discard_bytes = 64u << 20;     // of a refused body, read and dropped after the answer so that the client sees it
  int max_connections = 1024;
  int io_timeout_seconds = 10;      // between bytes
  int head_timeout_seconds = 15;    // for a handshake and the first request head, from the first byte to the last; later heads: beside the idle time
  int body_timeout_seconds = 30;    // for a whole request body
  int idle_timeout_seconds = 30;    // between requests of a connection
};

class HttpServer {
 public:
  HttpServer(HttpServerOptions options, HttpHandler handler);
  ~HttpServer();
  Status start();  // bound and accepting when it returns
  int port() const;
  /// New certificate files are used for new connections; running ones stay.
  Status reload_certificate();
  void stop();  // ends accepting, waits for the handlers

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel

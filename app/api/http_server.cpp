#include "app/api/http_server.h"

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "app/api/connections.h"
#include "app/api/http_library.h"
#include "base/log.h"

namespace carrel {
namespace {

/// The connection that this thread serves; the library shows its socket nowhere.
thread_local int connection_fd = -1;
thread_local SSL* connection_ssl = nullptr;

class ClearServer final : public httplib::Server {
 public:
  ClearServer(Connections& connections, Connections::Seconds head) : connections_(connections), head_(head) {}

 private:
  bool process_and_close_socket(socket_t sock) override {
    connection_fd = sock;
    connections_.add(sock, head_);
    std::string remote, local;
    int remote_port = 0, local_port = 0;
    httplib::detail::get_remote_ip_and_port(sock, remote, remote_port);
    httplib::detail::get_local_ip_and_port(sock, local, local_port);
    const bool ok = httplib::detail::process_server_socket(
        svr_sock_, sock, keep_alive_max_count_, keep_alive_timeout_sec_, read_timeout_sec_, read_timeout_usec_, write_timeout_sec_, write_timeout_usec_,
        [&](httplib::Stream& stream, bool close, bool& closed) { return process_request(stream, remote, remote_port, local, local_port, close, closed, nullptr); });
    connections_.remove();
    httplib::detail::shutdown_socket(sock);
    httplib::detail::close_socket(sock);
    return ok;
  }

  Connections& connections_;
  const Connections::Seconds head_;
};

/// What the TLS library tells of the connections of one server: it shows a socket before the handshake, and frees the SSL before the socket is closed.
struct TlsWatch {
  Connections& connections;
  Connections::Seconds head;

  static void freed(void*, void* watch, CRYPTO_EX_DATA*, int, long, void*) {
    if (watch != nullptr) static_cast<TlsWatch*>(watch)->connections.remove();
  }
  static int slot() {
    static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, freed);
    return index;
  }
  static void told(const SSL* ssl, int where, int) {
    SSL* own = const_cast<SSL*>(ssl);
    if ((where & SSL_CB_HANDSHAKE_START) != 0 && SSL_get_ex_data(ssl, slot()) == nullptr) {
      auto* watch = static_cast<TlsWatch*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
      SSL_set_ex_data(own, slot(), watch);
      watch->connections.add(SSL_get_fd(ssl), watch->head);
    }
    if ((where & SSL_CB_HANDSHAKE_DONE) == 0) return;
    connection_ssl = own;
    connection_fd = SSL_get_fd(ssl);
  }
  void attach(SSL_CTX* ctx) {
    (void)slot();
    SSL_CTX_set_app_data(ctx, this);
    SSL_CTX_set_info_callback(ctx, told);
  }
};

/// Says "no more from here" and drops what still comes. Closing over unread bytes makes the system reset the connection, and the client would lose
/// the answer it was just sent.
void linger(size_t max_bytes, int seconds) {
  if (connection_fd < 0) return;
  if (connection_ssl != nullptr) SSL_shutdown(connection_ssl);
  ::shutdown(connection_fd, SHUT_WR);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  char dropped[16384];
  for (size_t n_bytes = 0; n_bytes < max_bytes && std::chrono::steady_clock::now() < end;) {
    pollfd p{connection_fd, POLLIN, 0};
    if (::poll(&p, 1, 1000) <= 0) return;
    const ssize_t n = ::recv(connection_fd, dropped, sizeof(dropped), MSG_DONTWAIT);
    if (n <= 0) return;
    n_bytes += static_cast<size_t>(n);
  }
}

/// A thread per connection up to a bound: a stream or an idle keep-alive socket holds its own thread and starves nobody.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  ConnectionThreads(int limit, Connections& connections) : limit_(limit), connections_(connections) {}
  bool enqueue(std::function<void()> fn) override {
    {
      std::lock_guard lock(mu_);
      if (n_ >= limit_ || closed_) return false;  // the library closes the socket
      n_++;
    }
    try {
      std::thread([this, fn = std::move(fn)] {
        fn();
        leave();
      }).detach();
    } catch (const std::system_error& e) {  // threads or memory of the process are limited
      leave();
      spdlog::warn("a connection is turned away: no thread for it ({})", e.what());
      return false;
    }
    return true;
  }
  /// Requests in work have ended; what they still write gets a moment, a peer that only drips nothing more.
  void shutdown() override {
    std::unique_lock lock(mu_);
    closed_ = true;
    const auto none = [this] { return n_ == 0; };
    if (empty_.wait_for(lock, std::chrono::seconds(2), none)) return;
    connections_.close_all();
    empty_.wait(lock, none);
  }

 private:
  void leave() {
    std::lock_guard lock(mu_);
    if (--n_ == 0) empty_.notify_all();
  }

  std::mutex mu_;  // guards n_, closed_
  std::condition_variable empty_;
  const int limit_;
  Connections& connections_;
  int n_ = 0;
  bool closed_ = false;
};

/// Counts the bytes of a body while it is in work.
class BytesInWork {
 public:
  BytesInWork(std::atomic<size_t>& sum, size_t n) : sum_(sum), n_(n), total_(sum.fetch_add(n) + n) {}
  ~BytesInWork() { sum_.fetch_sub(n_); }
  BytesInWork(const BytesInWork&) = delete;
  BytesInWork& operator=(const BytesInWork&) = delete;
  size_t total() const { return total_; }

 private:
  std::atomic<size_t>& sum_;
  const size_t n_, total_;
};

/// Did the peer close? A TLS close alert waiting to be read looks like data to the library's own check, so the socket is asked for the FIN itself.
bool peer_closed(const httplib::Request& request) {
  if (request.ssl == nullptr) return request.is_connection_closed();
  pollfd p{SSL_get_fd(request.ssl), POLLRDHUP, 0};
  if (::poll(&p, 1, 0) < 0) return true;
  return (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

HttpRequest translate(const httplib::Request& request) {
  HttpRequest r;
  r.method = request.method;
  r.path = request.path;
  r.remote_addr = request.remote_addr;
  r.loopback = r.remote_addr == "127.0.0.1" || r.remote_addr == "::1" || r.remote_addr.starts_with("127.");
  for (const auto& [name, value] : request.headers) {
    std::string lower = name;
    for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    // The library mixes its own view of the peer into the headers; a client could send the same names. Neither is believed.
    if (lower == "remote_addr" || lower == "local_addr" || lower == "remote_port" || lower == "local_port" || lower.starts_with("x-forwarded")) continue;
    r.headers.emplace(std::move(lower), value);
  }
  r.client_gone = [&request] { return peer_closed(request); };
  return r;
}

void send(HttpResponse&& from, httplib::Response& to, const httplib::Request& request, const HttpServerOptions& options) {
  to.status = from.status;
  for (const auto& [name, value] : from.headers) to.set_header(name, clean_header(value));
  if (from.stream) {
    to.set_chunked_content_provider(from.content_type, [stream = std::move(from.stream), &request](size_t, httplib::DataSink& sink) {
      stream([&](std::string_view bytes) { return !peer_closed(request) && sink.write(bytes.data(), bytes.size()); });
      sink.done();
      return true;
    });
    return;
  }
  if (!from.close) {
    to.set_content(std::move(from.body), from.content_type);
    return;
  }
  // A provider that fails after its last byte is the library's way to end a connection: what lies unread on it must not become a request.
  to.set_header("Connection", "close");
  const size_t size = from.body.size();
  to.set_content_provider(size == 0 ? 1 : size, from.content_type, [body = size == 0 ? std::string("\n") : std::move(from.body), max_bytes = options.max_discard_bytes, seconds = options.body_timeout_seconds](size_t, size_t, httplib::DataSink& sink) {
    sink.write(body.data(), body.size());
    linger(max_bytes, seconds);
    return false;
  });
}

bool has_body(const httplib::Request& req) {
  return req.has_header("Transfer-Encoding") || (req.has_header("Content-Length") && req.get_header_value("Content-Length") != "0");
}

/// A length that means one thing to everybody, or what is wrong with it.
std::optional<Refusal> check_length(const httplib::Request& req) {
  const size_t n = req.get_header_value_count("Content-Length");
  if (n > 1) return Refusal{400, "invalid_content_length", "Content-Length is given " + std::to_string(n) + " times; send it once"};
  const std::string length = req.get_header_value("Content-Length");
  const bool digits = !length.empty() && length.find_first_not_of("0123456789") == std::string::npos;
  if (n == 1 && !digits) return Refusal{400, "invalid_content_length", "Content-Length must be the number of bytes of the body, in digits"};
  return std::nullopt;
}

std::optional<Refusal> check_size(const httplib::Request& req, size_t max_bytes) {
  const std::string length = req.get_header_value("Content-Length");
  if (length.size() < 19 && std::strtoull(length.c_str(), nullptr, 10) <= max_bytes) return std::nullopt;
  return Refusal{413, "body_too_large", "the request body is larger than " + std::to_string(max_bytes) + " bytes"};
}

/// What the library refuses on its own, in words.
Refusal library_refusal(int status, bool understood) {
  switch (status) {
    case 414: return {414, "uri_too_long", "the request line is longer than " + std::to_string(CPPHTTPLIB_REQUEST_URI_MAX_LENGTH) + " bytes"};
    case 416: return {416, "range_not_satisfiable", "the Range header cannot be read; there are no ranges here, leave it out"};
    case 400:
      if (understood) return {400, "bad_request", "the request body cannot be read"};
      return {400, "bad_request",
              "this is no HTTP/1.1 request, or a header line is longer than " + std::to_string(CPPHTTPLIB_HEADER_MAX_LENGTH) + " bytes, or there are more than " +
                  std::to_string(CPPHTTPLIB_HEADER_MAX_COUNT) + " of them"};
    default: return {status, "bad_request", "the request was refused: " + std::string(httplib::status_message(status))};
  }
}

}  // namespace

std::string clean_header(std::string_view value) {
  std::string out;
  for (const char c : value) out.push_back(c >= 0x20 && c < 0x7F ? c : '?');
  return out.substr(0, 1024);
}

struct HttpServer::Impl {
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<size_t> bodies_bytes{0};  // of the bodies in work
  Connections connections;
  std::optional<TlsWatch> tls_watch;
  std::unique_ptr<httplib::Server> server;  // its threads use what stands above
  std::thread accepting;
  int port = 0;

  bool tls() const { return !options.cert_pem_file.empty(); }

  void set_limits() {
    httplib::Server& s = *server;
    s.new_task_queue = [this] { return new ConnectionThreads(options.max_connections, connections); };
    s.set_logger([this](const auto&, const auto&) { connections.limit(Connections::Seconds(options.idle_timeout_seconds + options.head_timeout_seconds)); });  // answered
    s.set_keep_alive_max_count(10000);
    s.set_keep_alive_timeout(options.idle_timeout_seconds);
    // The library's own choice lets a second server share the port in silence.
    s.set_socket_options([](socket_t sock) {
      const int yes = 1;
      (void)::setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    s.set_read_timeout(options.io_timeout_seconds);
    s.set_write_timeout(options.io_timeout_seconds);
    s.set_payload_max_length(options.max_discard_bytes);
    s.set_tcp_nodelay(true);
    // The library sends what the handler filled in, and insists on a status there.
    s.set_expect_100_continue_handler([this](const httplib::Request& req, httplib::Response& res) {
      auto wrong = check_length(req);
      if (!wrong) wrong = check_size(req, options.max_body_bytes);
      if (!wrong) return 100;
      refuse(*wrong, req, res);
      return wrong->status;
    });
    // The text of an exception is never sent.
    s.set_exception_handler([this](const httplib::Request& req, httplib::Response& res, std::exception_ptr) {
      spdlog::error("a request handler threw; answered 500");
      refuse({500, "internal", "internal error"}, req, res);
    });
    s.set_error_handler([this](const httplib::Request& req, httplib::Response& res) {
      if (!res.body.empty() || res.content_provider_) return httplib::Server::HandlerResponse::Unhandled;  // ours
      refuse(library_refusal(res.status, !req.remote_addr.empty()), req, res);
      return httplib::Server::HandlerResponse::Unhandled;
    });
  }

  /// Answers in the API's shape and ends the connection: what follows on it cannot be trusted to be a request.
  void refuse(const Refusal& why, const httplib::Request& req, httplib::Response& res) {
    HttpResponse out;
    out.status = why.status;
    handler.refuse(translate(req), why, out);
    out.close = true;
    send(std::move(out), res, req, options);
  }

  void set_routes() {
    httplib::Server& s = *server;
    s.set_pre_routing_handler([this](const httplib::Request& req, httplib::Response& res) {
      // Ranges are for files. The library would cut any answer into them, after it was logged; the request is its own and not constant.
      const_cast<httplib::Request&>(req).ranges.clear();
      connections.limit(Connections::Seconds(options.body_timeout_seconds + options.io_timeout_seconds));  // the body's own deadline comes first and is answered
      if (const auto wrong = check_length(req)) return refuse(*wrong, req, res), httplib::Server::HandlerResponse::Handled;
      HttpResponse answer;
      if (handler.begin(translate(req), answer)) {
        answer.close = answer.close || has_body(req);
        send(std::move(answer), res, req, options);
        return httplib::Server::HandlerResponse::Handled;
      }
      if (const auto wrong = check_size(req, options.max_body_bytes)) return refuse(*wrong, req, res), httplib::Server::HandlerResponse::Handled;
      return httplib::Server::HandlerResponse::Unhandled;
    });
    const auto plain = [this](const httplib::Request& req, httplib::Response& res) { answer(req, res, {}); };
    const auto with_body = [this](const httplib::Request& req, httplib::Response& res, const httplib::ContentReader& reader) {
      if (!has_body(req)) return answer(req, res, {});
      const size_t announced = req.has_header("Content-Length") ? std::strtoull(req.get_header_value("Content-Length").c_str(), nullptr, 10) : options.max_body_bytes;
      const BytesInWork hold(bodies_bytes, announced);
      if (hold.total() > options.max_bodies_bytes)
        return refuse({503, "overloaded", "request bodies of more than " + std::to_string(options.max_bodies_bytes) + " bytes are in work; try again in a moment"}, req, res);
      std::string body;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.body_timeout_seconds);
      bool too_large = false;
      const bool whole = reader([&](const char* data, size_t n) {
        too_large = body.size() + n > options.max_body_bytes;  // without a length this is the first to know
        if (too_large || std::chrono::steady_clock::now() > deadline) return false;
        body.append(data, n);
        return true;
      });
      if (whole) return answer(req, res, std::move(body));
      if (too_large) return refuse({413, "body_too_large", "the request body is larger than " + std::to_string(options.max_body_bytes) + " bytes"}, req, res);
      refuse({408, "body_timeout", "the request body did not arrive in time"}, req, res);
    };
    s.Get(".*", plain);
    s.Options(".*", plain);
    s.Post(".*", with_body);
    s.Put(".*", with_body);
    s.Patch(".*", with_body);
    s.Delete(".*", plain);
  }

  void answer(const httplib::Request& req, httplib::Response& res, std::string body) {
    connections.no_limit();
    HttpRequest r = translate(req);
    r.body = std::move(body);
    HttpResponse out;
    handler.handle(r, out);
    send(std::move(out), res, req, options);
  }
};

HttpServer::HttpServer(HttpServerOptions options, HttpHandler handler) : impl_(std::make_unique<Impl>()) {
  impl_->options = std::move(options);
  impl_->handler = std::move(handler);
}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  Impl& i = *impl_;
  if (i.tls()) {
    auto tls = std::make_unique<httplib::SSLServer>(i.options.cert_pem_file.c_str(), i.options.key_pem_file.c_str());
    if (!tls->is_valid()) return fail(Code::kInvalidArgument, "certificate and key cannot be used (unreadable, not PEM, or not a pair)", i.options.cert_pem_file);
    SSL_CTX_set_min_proto_version(tls->ssl_context(), TLS1_2_VERSION);
    i.tls_watch.emplace(TlsWatch{i.connections, Connections::Seconds(i.options.head_timeout_seconds)});
    i.tls_watch->attach(tls->ssl_context());
    i.server = std::move(tls);
  } else {
    i.server = std::make_unique<ClearServer>(i.connections, Connections::Seconds(i.options.head_timeout_seconds));
  }
  i.set_limits();
  i.set_routes();
  const std::string where = i.options.address + ":" + std::to_string(i.options.port);
  i.port = i.options.port == 0 ? i.server->bind_to_any_port(i.options.address) : (i.server->bind_to_port(i.options.address, i.options.port) ? i.options.port : -1);
  if (i.port < 0) return fail(Code::kIo, "cannot listen: the port is taken or the address is not of this machine", where);
  i.accepting = std::thread([&i] { i.server->listen_after_bind(); });
  i.server->wait_until_ready();
  return {};
}

int HttpServer::port() const { return impl_->port; }

Status HttpServer::reload_certificate() {
  Impl& i = *impl_;
  if (!i.tls() || !i.server) return {};
  // The context re-reads the files; handshakes that are under way keep the old certificate.
  SSL_CTX* ctx = static_cast<httplib::SSLServer*>(i.server.get())->ssl_context();
  if (SSL_CTX_use_certificate_chain_file(ctx, i.options.cert_pem_file.c_str()) != 1 || SSL_CTX_use_PrivateKey_file(ctx, i.options.key_pem_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return fail(Code::kInvalidArgument, "the renewed certificate cannot be used", i.options.cert_pem_file);
  return {};
}

void HttpServer::stop() {
  Impl& i = *impl_;
  if (i.server) i.server->stop();
  if (i.accepting.joinable()) i.accepting.join();
}

}  // namespace carrel

#include "app/api/http_server.h"

#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_USE_POLL
#define CPPHTTPLIB_KEEPALIVE_MAX_COUNT 10000
#include <httplib.h>
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace carrel {
namespace {

constexpr const char* kBodyTooLarge =
    R"({"error":{"message":"the request body is larger than the limit","type":"invalid_request_error","code":"body_too_large","param":null}})";

/// A thread per connection up to a bound: a stream or an idle keep-alive socket holds its own thread and starves nobody.
class ConnectionThreads final : public httplib::TaskQueue {
 public:
  explicit ConnectionThreads(int limit) : limit_(limit) {}
  bool enqueue(std::function<void()> fn) override {
    {
      std::lock_guard lock(mu_);
      if (n_ >= limit_ || closed_) return false;  // the library closes the socket
      n_++;
    }
    std::thread([this, fn = std::move(fn)] {
      fn();
      std::lock_guard lock(mu_);
      if (--n_ == 0) empty_.notify_all();
    }).detach();
    return true;
  }
  void shutdown() override {
    std::unique_lock lock(mu_);
    closed_ = true;
    empty_.wait(lock, [this] { return n_ == 0; });
  }

 private:
  std::mutex mu_;  // guards n_, closed_
  std::condition_variable empty_;
  const int limit_;
  int n_ = 0;
  bool closed_ = false;
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

void send(HttpResponse&& from, httplib::Response& to, const httplib::Request& request) {
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
  to.set_content_provider(size == 0 ? 1 : size, from.content_type, [body = size == 0 ? std::string("\n") : std::move(from.body)](size_t, size_t, httplib::DataSink& sink) {
    sink.write(body.data(), body.size());
    return false;
  });
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
  std::unique_ptr<httplib::Server> server;
  std::thread accepting;
  int port = 0;

  bool tls() const { return !options.cert_pem_file.empty(); }

  void set_limits() {
    httplib::Server& s = *server;
    s.new_task_queue = [limit = options.max_connections] { return new ConnectionThreads(limit); };
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
    s.set_expect_100_continue_handler([limit = options.max_body_bytes](const httplib::Request& req, httplib::Response& res) {
      if (std::strtoull(req.get_header_value("Content-Length").c_str(), nullptr, 10) <= limit) return 100;
      res.set_content(kBodyTooLarge, "application/json");
      return res.status = 413;
    });
    // The text of an exception is never sent.
    s.set_exception_handler([](const httplib::Request&, httplib::Response& res, std::exception_ptr) {
      spdlog::error("a request handler threw; answered 500");
      res.status = 500;
      res.set_content(R"({"error":{"message":"internal error","type":"server_error","code":"internal","param":null}})", "application/json");
    });
  }

  void set_routes() {
    httplib::Server& s = *server;
    s.set_pre_routing_handler([this](const httplib::Request& req, httplib::Response& res) {
      HttpRequest r = translate(req);
      HttpResponse answer;
      if (!handler.begin(r, answer)) {
        // The library would go on reading such a body to its end.
        if (std::strtoull(std::string(r.header("content-length")).c_str(), nullptr, 10) <= options.max_discard_bytes) return httplib::Server::HandlerResponse::Unhandled;
        answer.status = 413;
        answer.body = kBodyTooLarge;
      }
      const bool has_body = r.headers.contains("transfer-encoding") || (r.headers.contains("content-length") && r.header("content-length") != "0");
      answer.close = answer.close || has_body;
      send(std::move(answer), res, req);
      return httplib::Server::HandlerResponse::Handled;
    });
    const auto plain = [this](const httplib::Request& req, httplib::Response& res) { answer(req, res, {}); };
    const auto with_body = [this](const httplib::Request& req, httplib::Response& res, const httplib::ContentReader& reader) {
      std::string body;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(options.body_timeout_seconds);
      bool too_late = false, too_large = false;
      // A body over the limit is read and dropped, not kept: a client that is still sending would otherwise see a reset instead of the 413.
      const bool whole = reader([&](const char* data, size_t n) {
        too_large = too_large || body.size() + n > options.max_body_bytes;
        too_late = std::chrono::steady_clock::now() > deadline;
        if (too_late) return false;
        if (!too_large) body.append(data, n);
        return true;
      });
      if (whole && !too_large) return answer(req, res, std::move(body));
      HttpResponse refusal;
      refusal.status = too_large ? 413 : 408;
      refusal.close = true;
      refusal.body = too_large ? kBodyTooLarge
                               : R"({"error":{"message":"the request body did not arrive in time","type":"invalid_request_error","code":"body_timeout","param":null}})";
      send(std::move(refusal), res, req);
    };
    s.Get(".*", plain);
    s.Options(".*", plain);
    s.Post(".*", with_body);
    s.Put(".*", with_body);
    s.Patch(".*", with_body);
    s.Delete(".*", plain);
  }

  void answer(const httplib::Request& req, httplib::Response& res, std::string body) {
    HttpRequest r = translate(req);
    r.body = std::move(body);
    HttpResponse out;
    handler.handle(r, out);
    send(std::move(out), res, req);
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
    i.server = std::move(tls);
  } else {
    i.server = std::make_unique<httplib::Server>();
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

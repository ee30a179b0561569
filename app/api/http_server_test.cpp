// The listener against clients that break rules, with real sockets on loopback: limits, timeouts, half-open TLS, too many connections. What
// the whole appliance answers over TLS to well-formed requests: tests/api.
#include "app/api/http_server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "app/lifecycle/internal_ca.h"

namespace carrel {
namespace {

using Clock = std::chrono::steady_clock;

/// A client that sends bytes as they are.
class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }
  RawClient(const RawClient&) = delete;
  ~RawClient() { ::close(fd_); }

  /// False: the other side no longer takes bytes.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  /// What comes until the text is seen, the other side closes, or ten seconds have passed.
  std::string read_until(const std::string& text) {
    std::string out;
    const auto end = Clock::now() + std::chrono::seconds(10);
    while (text.empty() || out.find(text) == std::string::npos) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
      pollfd p{fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) <= 0) {
        timed_out_ = true;
        return out;
      }
      char buffer[4096];
      const ssize_t n = ::recv(fd_, buffer, sizeof(buffer), 0);
      if (n <= 0) return out;
      out.append(buffer, static_cast<size_t>(n));
    }
    return out;
  }
  std::string read_to_end() { return read_until(""); }
  bool timed_out() const { return timed_out_; }

 private:
  int fd_;
  bool timed_out_ = false;
};

std::string status_of(const std::string& answer) {
  return answer.substr(0, answer.find("\r\n"));
}

class Listener : public testing::Test {
 protected:
  void start(HttpServerOptions options) {
    HttpHandler handler;
    handler.begin = [this](const HttpRequest& r, HttpResponse& out) {
      if (r.path != "/refused") return false;
      n_refused_++;
      out.status = 401;
      out.body = "no";
      return true;
    };
    handler.handle = [this](HttpRequest& r, HttpResponse& out) {
      n_handled_++;
      if (r.path == "/throws") throw std::runtime_error("a secret of the inside");
      if (r.path == "/inject")
        out.headers.emplace_back("x-echo", r.header("x-in").empty() ? "a\r\nx-evil: 1" : std::string(r.header("x-in")));
      if (r.path == "/stream") {
        out.stream = [this](const Send& send) {
          while (send(std::string(1000, 'x'))) {
          }
          n_ended_streams_++;
        };
        return;
      }
      out.content_type = "text/plain";
      out.body = r.method + " " + r.path + " " + std::to_string(r.body.size()) + " from=" + std::string(r.header("remote_addr"));
    };
    handler.refuse = [](const HttpRequest&, const Refusal& why, HttpResponse& out) { out.body = std::string(why.code) + ": " + why.message; };
    server_ = std::make_unique<HttpServer>(std::move(options), std::move(handler));
    const Status started = server_->start();
    ASSERT_TRUE(started) << started.error().text();
  }
  std::string ask(const std::string& bytes) {
    RawClient c(server_->port());
    c.send(bytes);
    return c.read_to_end();
  }
  void expect_alive() { EXPECT_EQ(status_of(ask("GET /ok HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")), "HTTP/1.1 200 OK"); }
  /// Waits for what another thread does soon.
  template <class F>
  static bool soon(F done) {
    for (int i = 0; i < 500 && !done(); i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return done();
  }

  Listener() { options_.io_timeout_seconds = options_.idle_timeout_seconds = 1; }

  HttpServerOptions options_;
  std::atomic<int> n_handled_{0}, n_refused_{0}, n_ended_streams_{0};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(Listener, BrokenRequestLinesAreRefusedBeforeTheHandler) {
  start(options_);
  const std::vector<std::string> lines = {"BREW /pot HTTP/1.1",     "GET /a HTTP/3.0", "GET /a b HTTP/1.1", "GET",
                                          "\x16\x03\x01 \x02 \x01", "get /a HTTP/1.1", "GET  HTTP/1.1"};
  std::vector<std::unique_ptr<RawClient>> clients;
  for (const std::string& line : lines) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send(line + "\r\nHost: x\r\nConnection: close\r\n\r\n");
  }
  for (size_t i = 0; i < lines.size(); i++) {
    const std::string answer = clients[i]->read_to_end();
    EXPECT_EQ(status_of(answer), "HTTP/1.1 400 Bad Request") << lines[i];
    EXPECT_NE(answer.find("bad_request: "), std::string::npos) << lines[i];
  }
  EXPECT_EQ(n_handled_, 0);
  expect_alive();
}

TEST_F(Listener, PathsArriveDecodedOnceAndNothingIsServedFromDisk) {
  start(options_);
  EXPECT_NE(ask("GET /a%2Fb%2541?q=%20 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("GET /a/b%41 0"), std::string::npos);
  for (const char* path : {"/../../etc/passwd", "/%2e%2e/etc/passwd", "http://other/etc/passwd", "*"}) {
    const std::string answer = ask("GET " + std::string(path) + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(answer.find("root:"), std::string::npos) << path;
    EXPECT_FALSE(answer.empty()) << path;
  }
  const std::string too_long = ask("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status_of(too_long), "HTTP/1.1 414 URI Too Long");
  EXPECT_NE(too_long.find("uri_too_long: "), std::string::npos);
  expect_alive();
}

TEST_F(Listener, HeadersAreBoundedInSizeAndNumber) {
  start(options_);
  const std::string get = "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
  const std::string too_long = ask(get + "x-long: " + std::string(9000, 'a') + "\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(status_of(too_long), "HTTP/1.1 400 Bad Request");
  EXPECT_NE(too_long.find("bad_request: "), std::string::npos);
  std::string many;
  for (int i = 0; i < 200; i++) many += "x-" + std::to_string(i) + ": 1\r\n";
  EXPECT_EQ(status_of(ask(get + many + "\r\n")), "HTTP/1.1 400 Bad Request");
  EXPECT_EQ(n_handled_, 0);
  const std::string endless = ask("GET /a HTTP/1.1\r\nx: " + std::string(100'000, 'a'));
  EXPECT_EQ(endless.find(" 200 "), std::string::npos);
  expect_alive();
}

TEST_F(Listener, AClientCannotNameItsOwnAddressOrSplitAnAnswer) {
  start(options_);
  EXPECT_TRUE(ask("GET /a HTTP/1.1\r\nHost: x\r\nREMOTE_ADDR: 10.0.0.1\r\nConnection: close\r\n\r\n").ends_with("from="));
  const std::string answer = ask("GET /inject HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_NE(answer.find("x-echo: a??x-evil: 1"), std::string::npos) << answer;
  EXPECT_EQ(answer.find("\r\nx-evil"), std::string::npos);
  EXPECT_EQ(clean_header(std::string(5000, 'a')).size(), 1024u);
  EXPECT_EQ(clean_header("a\xC3\xA9\tb\x7F!"), "a" + std::string(3, '?') + "b?!");
}

TEST_F(Listener, BodiesOverTheLimitGet413AndUpToItPass) {
  options_.max_body_bytes = 1000;
  options_.max_discard_bytes = 100'000;
  start(options_);
  const auto post = [](size_t announced, size_t sent) {
    return "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " + std::to_string(announced) + "\r\n\r\n" +
           std::string(sent, 'b');
  };
  EXPECT_NE(ask(post(1000, 1000)).find("POST /a 1000"), std::string::npos);
  const std::string over = ask(post(1001, 1001));
  EXPECT_EQ(status_of(over), "HTTP/1.1 413 Payload Too Large");
  EXPECT_NE(over.find("body_too_large"), std::string::npos);
  EXPECT_EQ(status_of(ask(post(200'000, 10))), "HTTP/1.1 413 Payload Too Large");  // not even read
  EXPECT_EQ(status_of(ask(post(90'000, 90'000))), "HTTP/1.1 413 Payload Too Large");
  EXPECT_EQ(n_handled_, 1);
  RawClient asks_first(server_->port());
  asks_first.send("POST /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n");
  const std::string refused = asks_first.read_to_end();
  EXPECT_EQ(status_of(refused), "HTTP/1.1 413 Payload Too Large");
  EXPECT_NE(refused.find("body_too_large"), std::string::npos);
  expect_alive();
}

TEST_F(Listener, WhatFollowsARefusedBodyIsNoRequest) {
  options_.max_body_bytes = 1000;
  options_.max_discard_bytes = 100'000;
  start(options_);
  const std::string inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n";
  const std::string answer =
      ask("POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(inner.size()) + "\r\n\r\n" + inner);
  EXPECT_EQ(status_of(answer), "HTTP/1.1 401 Unauthorized");
  EXPECT_EQ(answer.find("smuggled"), std::string::npos);
  EXPECT_EQ(n_handled_, 0);
  EXPECT_EQ(n_refused_, 1);
}

TEST_F(Listener, LengthsThatLieDoNotReachTheHandler) {
  options_.max_body_bytes = 1000;
  options_.body_timeout_seconds = 2;
  start(options_);
  const auto with = [this](const std::string& lengths, const std::string& method = "POST") {
    return ask(method + " /a HTTP/1.1\r\nHost: x\r\n" + lengths + "\r\n\r\nhello");
  };
  for (const char* lengths : {"Content-Length: -1", "Content-Length: 5x", "Content-Length: abc", "Content-Length: 5, 5", "Content-Length: +5", "Content-Length:",
                              "Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\ncontent-length: 5"}) {
    for (const char* method : {"POST", "GET"}) {
      const std::string answer = with(lengths, method);
      EXPECT_EQ(status_of(answer), "HTTP/1.1 400 Bad Request") << method << " " << lengths;
      EXPECT_NE(answer.find("invalid_content_length: Content-Length"), std::string::npos) << lengths;
    }
  }
  EXPECT_EQ(status_of(with("Content-Length: 99999999999999999999999")), "HTTP/1.1 413 Payload Too Large");
  EXPECT_EQ(n_handled_, 0);
  EXPECT_NE(with("Connection: close\r\nContent-Length: 5", "GET").find("GET /a 0"), std::string::npos);
  EXPECT_NE(with("Content-Length: 50", "GET").find("bad_request: the request body cannot be read"), std::string::npos);
  // None announced, none awaited.
  EXPECT_NE(ask("POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find("POST /a 0"), std::string::npos);
  const std::string missing = ask("POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 50\r\n\r\nhello");
  EXPECT_EQ(missing.find(" 200 "), std::string::npos) << "half a body was handled";
  expect_alive();
}

TEST_F(Listener, RangesCutNothing) {
  start(options_);
  const auto get = [this](const std::string& range) { return ask("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nRange: " + range + "\r\n\r\n"); };
  std::string many = "bytes=0-0";
  for (int i = 0; i < 1000; i++) many += ",0-0";
  for (const std::string& range : {std::string("bytes=500-"), std::string("bytes=0-3"), std::string("bytes=-1"), many}) {
    const std::string answer = get(range);
    EXPECT_EQ(status_of(answer), "HTTP/1.1 200 OK") << range.substr(0, 20);
    EXPECT_TRUE(answer.ends_with("GET /a 0 from=")) << answer;
  }
  const std::string broken = get("acres=1");
  EXPECT_EQ(status_of(broken), "HTTP/1.1 416 Range Not Satisfiable");
  EXPECT_NE(broken.find("range_not_satisfiable: "), std::string::npos);
}

TEST_F(Listener, ALargeRefusedBodyDoesNotCostTheAnswer) {
  options_.max_body_bytes = 1000;
  start(options_);
  const size_t n = 20u << 20;
  const std::string answer = ask("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(n) + "\r\n\r\n" + std::string(n, 'b'));
  EXPECT_EQ(status_of(answer), "HTTP/1.1 413 Payload Too Large");
  EXPECT_NE(answer.find("body_too_large: the request body is larger than 1000 bytes"), std::string::npos);
}

TEST_F(Listener, SlowClientsLoseTheirConnectionAndHoldNobodyUp) {
  options_.body_timeout_seconds = 2;
  start(options_);
  RawClient silent(server_->port()), half_head(server_->port()), drip(server_->port());
  half_head.send("GET /a HTTP/1.1\r\nHos");
  drip.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n");
  const auto start_time = Clock::now();
  expect_alive();
  EXPECT_LT(Clock::now() - start_time, std::chrono::seconds(1));
  while (drip.send("b") && Clock::now() - start_time < std::chrono::milliseconds(2600))
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(status_of(drip.read_until("\r\n")), "HTTP/1.1 408 Request Timeout");
  EXPECT_EQ(half_head.read_to_end().find(" 200 "), std::string::npos);
  EXPECT_FALSE(half_head.timed_out()) << "the server keeps half a request for ever";
  EXPECT_EQ(n_handled_, 1);
}

TEST_F(Listener, ConnectionsBeyondTheLimitAreClosedAtOnce) {
  options_.max_connections = 4;
  start(options_);
  {
    std::vector<std::unique_ptr<RawClient>> held;
    for (int i = 0; i < 4; i++) {
      held.push_back(std::make_unique<RawClient>(server_->port()));
      held.back()->send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
      EXPECT_NE(held.back()->read_until("from=").find(" 200 "), std::string::npos);
    }
    RawClient fifth(server_->port());
    fifth.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(fifth.read_to_end(), "");
    EXPECT_FALSE(fifth.timed_out());
    held[2]->send("GET /b HTTP/1.1\r\nHost: x\r\n\r\n");  // who is in stays in
    EXPECT_NE(held[2]->read_until("from=").find("GET /b"), std::string::npos);
  }
  EXPECT_TRUE(soon([&] { return ask("GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").find(" 200 ") != std::string::npos; }));
}

TEST_F(Listener, AThrowingHandlerGivesA500WithoutItsText) {
  start(options_);
  const std::string answer = ask("GET /throws HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(status_of(answer), "HTTP/1.1 500 Internal Server Error");
  EXPECT_EQ(answer.find("secret"), std::string::npos);
  expect_alive();
}

TEST_F(Listener, AStreamEndsWhenItsClientLeavesOrStopsReading) {
  start(options_);
  {
    RawClient leaves(server_->port());
    leaves.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_NE(leaves.read_until("xxxx").find(" 200 "), std::string::npos);
  }
  EXPECT_TRUE(soon([&] { return n_ended_streams_ == 1; }));
  RawClient sleeps(server_->port());
  sleeps.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(soon([&] { return n_ended_streams_ == 2; }));
}

TEST_F(Listener, HalfOpenTlsIsDroppedAfterItsTime) {
  const std::string dir = testing::TempDir() + "carrel_listener_tls";
  const TlsFiles tls = ensure_internal_ca(Env::real(), dir, {"localhost", "127.0.0.1"}).value();
  options_.cert_pem_file = tls.cert_pem;
  options_.key_pem_file = tls.key_pem;
  start(options_);
  RawClient silent(server_->port()), half(server_->port()), clear(server_->port());
  half.send(std::string("\x16\x03\x01\x02\x00\x01\x00", 7));  // the head of a hello whose rest never comes
  clear.send("GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(clear.read_to_end().find(" 200 "), std::string::npos);
  (void)half.read_to_end();
  (void)silent.read_to_end();
  EXPECT_FALSE(clear.timed_out());
  EXPECT_FALSE(half.timed_out());
  EXPECT_FALSE(silent.timed_out());
  EXPECT_EQ(n_handled_, 0);
}

/// One byte every 100 ms until the other side no longer takes them; the time that took, or ten seconds.
double drip_seconds(RawClient& c, std::string_view text) {
  const auto begin = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (size_t i = 0; passed() < 10; i++) {
    if (!c.send(text.substr(i % text.size(), 1))) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return passed();
}

TEST_F(Listener, DrippingAHeadDoesNotKeepAConnection) {
  options_.head_timeout_seconds = 1;
  start(options_);
  RawClient drip(server_->port());
  drip.send("GET /a HTTP/1.1\r\nX: ");
  EXPECT_LT(drip_seconds(drip, "a"), 5);  // each byte comes in time, the whole does not
  EXPECT_EQ(n_handled_, 0);
}

TEST_F(Listener, DrippingAHandshakeDoesNotKeepAConnection) {
  const TlsFiles tls = ensure_internal_ca(Env::real(), testing::TempDir() + "carrel_listener_drip", {"127.0.0.1"}).value();
  options_.cert_pem_file = tls.cert_pem;
  options_.key_pem_file = tls.key_pem;
  options_.head_timeout_seconds = 1;
  start(options_);
  RawClient drip(server_->port());
  drip.send(std::string("\x16\x03\x01\x20\x00\x01\x00\x1f\xfc", 9));
  EXPECT_LT(drip_seconds(drip, "\x03"), 5);
}

TEST_F(Listener, DrippingABodyEndsWithAnAnswerForEveryMethod) {
  options_.body_timeout_seconds = 1;
  options_.io_timeout_seconds = 1;
  start(options_);
  for (const std::string method : {"POST", "DELETE"}) {
    RawClient drip(server_->port());
    drip.send(method + " /a HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n");
    EXPECT_LT(drip_seconds(drip, "x"), 6) << method;
  }
  EXPECT_EQ(n_handled_, 0);
}

TEST_F(Listener, AStopDoesNotWaitForThoseWhoDrip) {
  start(options_);
  RawClient drip(server_->port());
  drip.send("GET /a HTTP/1.1\r\nX: ");
  std::thread client([&] { drip_seconds(drip, "a"); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const auto begin = Clock::now();
  server_->stop();
  EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 5);
  client.join();
}

TEST_F(Listener, BodiesInWorkAreBoundedTogether) {
  options_.max_bodies_bytes = 1000;
  start(options_);
  const std::string head = "POST /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 600\r\n\r\n";
  RawClient first(server_->port());
  first.send(head + "x");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the first is in work
  EXPECT_NE(ask(head + std::string(600, 'x')).find("overloaded"), std::string::npos);
  first.send(std::string(599, 'x'));
  EXPECT_EQ(status_of(first.read_to_end()), "HTTP/1.1 200 OK");
  EXPECT_EQ(status_of(ask(head + std::string(600, 'x'))), "HTTP/1.1 200 OK");
}

TEST_F(Listener, StartNamesWhatIsWrong) {
  start(options_);
  options_.port = server_->port();
  HttpServer second(options_, {});
  const Status taken = second.start();
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().where, "127.0.0.1:" + std::to_string(server_->port()));
  options_.port = 0;
  options_.cert_pem_file = options_.key_pem_file = "/nonexistent.pem";
  HttpServer bad(options_, {});
  const Status refused = bad.start();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace carrel

#include "app/api/http_client.h"

#include "app/api/http_library.h"

namespace carrel {

namespace {

std::unexpected<Error> unreachable(const ClientRequest& r, httplib::Error why) {
  using httplib::Error;
  std::string text;
  if (why == Error::Connection || why == Error::ConnectionTimeout)
    text = "no server answers there; `carrel serve` starts one, --url names another";
  else if (why == Error::SSLServerVerification || why == Error::SSLServerHostnameVerification)
    text = "its certificate is not one of " + (r.ca_file.empty() ? "an authority that this system knows" : r.ca_file) +
           "; --data names the folder of the server, --ca its CA file";
  else if (why == Error::Read && r.url.starts_with("http://"))
    text = "the server closed the connection or did not answer in time; one that speaks HTTPS does so: use https:// instead of http://";
  else if (why == Error::Read)
    text = "the server did not answer in time, or closed the connection";
  else
    text = "the request failed: " + httplib::to_string(why);
  return fail(Code::kUnavailable, std::move(text), r.url);
}

}  // namespace

Result<ClientAnswer> ask(const ClientRequest& r) {
  try {
    httplib::Client client(r.url);
    if (!client.is_valid()) return fail(Code::kInvalidArgument, "is not an address such as https://127.0.0.1:8443", r.url);
    client.set_connection_timeout(10);
    client.set_read_timeout(r.timeout_seconds);
    if (!r.ca_file.empty()) client.set_ca_cert_path(r.ca_file);
    if (!r.key.empty()) client.set_bearer_token_auth(r.key);
    const httplib::Result got = r.method == "POST" ? client.Post(r.path, r.body, "application/json") : client.Get(r.path);
    if (!got) return unreachable(r, got.error());
    return ClientAnswer{got->status, got->body};
  } catch (const std::exception& e) {  // the library throws at addresses that are none
    return fail(Code::kInvalidArgument, std::string("is not an address such as https://127.0.0.1:8443: ") + e.what(), r.url);
  }
}

}  // namespace carrel

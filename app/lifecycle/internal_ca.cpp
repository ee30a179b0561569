#include "app/lifecycle/internal_ca.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/hash.h"

namespace carrel {
namespace {

constexpr int64_t kDay = 86'400;
constexpr int64_t kRootDays = 3650, kLeafDays = 90;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Deleter<X509_free>>;
using Memory = std::unique_ptr<BIO, Deleter<BIO_free_all>>;

struct Pair {
  Cert cert;
  Key key;
};

std::string drain(BIO* bio) {
  char* data = nullptr;
  const long n = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(n));
}

std::string key_pem(EVP_PKEY* key) {
  Memory bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr);
  return drain(bio.get());
}

std::string cert_pem(X509* cert) {
  Memory bio(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(bio.get(), cert);
  return drain(bio.get());
}

Result<Pair> read_pair(Env* env, const std::string& cert_path, const std::string& key_path) {
  CARREL_ASSIGN(const std::string cert_text, read_file(env, cert_path, 1 << 20));
  CARREL_ASSIGN(const std::string key_text, read_file(env, key_path, 1 << 20));
  Memory cert_bio(BIO_new_mem_buf(cert_text.data(), static_cast<int>(cert_text.size())));
  Memory key_bio(BIO_new_mem_buf(key_text.data(), static_cast<int>(key_text.size())));
  Pair pair{Cert(PEM_read_bio_X509(cert_bio.get(), nullptr, nullptr, nullptr)), Key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, nullptr, nullptr))};
  if (!pair.cert || !pair.key || X509_check_private_key(pair.cert.get(), pair.key.get()) != 1)
    return fail(Code::kCorrupt, "certificate and key are unreadable or not a pair; remove both and restart to have them made anew", cert_path);
  return pair;
}

void add_extension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX ctx;
  X509V3_set_ctx(&ctx, issuer, cert, nullptr, nullptr, 0);
  if (X509_EXTENSION* e = X509V3_EXT_conf_nid(nullptr, &ctx, nid, value.c_str())) {
    X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
  }
}

/// A P-256 certificate; signed by `issuer`, or by itself. now_s: start of validity, one hour early for clocks that differ.
Result<Pair> make(Env* env, const std::string& common_name, const std::vector<std::string>& names, const Pair* issuer, int64_t days) {
  Pair pair{Cert(X509_new()), Key(EVP_EC_gen("P-256"))};
  X509* cert = pair.cert.get();
  if (!cert || !pair.key) return fail(Code::kInternal, "the TLS library cannot make a key");
  X509_set_version(cert, 2);
  unsigned char serial[16];
  env->random(std::as_writable_bytes(std::span(serial)));
  serial[0] &= 0x7F;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert));
  BN_free(number);
  const time_t now = static_cast<time_t>(env->wall_ms() / 1000);
  X509_time_adj_ex(X509_getm_notBefore(cert), 0, -3600, const_cast<time_t*>(&now));
  X509_time_adj_ex(X509_getm_notAfter(cert), static_cast<int>(days), 0, const_cast<time_t*>(&now));
  X509_set_pubkey(cert, pair.key.get());
  X509_NAME* subject = X509_get_subject_name(cert);
  X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0);
  X509* signer = issuer != nullptr ? issuer->cert.get() : cert;
  X509_set_issuer_name(cert, X509_get_subject_name(signer));
  add_extension(cert, signer, NID_basic_constraints, issuer != nullptr ? "critical,CA:FALSE" : "critical,CA:TRUE,pathlen:0");
  add_extension(cert, signer, NID_key_usage, issuer != nullptr ? "critical,digitalSignature" : "critical,keyCertSign,cRLSign");
  add_extension(cert, signer, NID_subject_key_identifier, "hash");
  add_extension(cert, signer, NID_authority_key_identifier, "keyid:always");
  if (issuer != nullptr) {
    add_extension(cert, signer, NID_ext_key_usage, "serverAuth");
    std::string san;
    for (const std::string& name : names) {
      unsigned char scratch[16];
      const bool ip = inet_pton(AF_INET, name.c_str(), scratch) == 1 || inet_pton(AF_INET6, name.c_str(), scratch) == 1;
      san += (san.empty() ? "" : ",") + std::string(ip ? "IP:" : "DNS:") + name;
    }
    add_extension(cert, signer, NID_subject_alt_name, san);
  }
  if (X509_sign(cert, issuer != nullptr ? issuer->key.get() : pair.key.get(), EVP_sha256()) == 0) return fail(Code::kInternal, "the TLS library cannot sign a certificate");
  return pair;
}

int64_t seconds_left(Env* env, X509* cert) {
  const time_t now = static_cast<time_t>(env->wall_ms() / 1000);
  ASN1_TIME* at = ASN1_TIME_set(nullptr, now);
  int days = 0, seconds = 0;
  ASN1_TIME_diff(&days, &seconds, at, X509_get0_notAfter(cert));
  ASN1_TIME_free(at);
  return days * kDay + seconds;
}

bool covers(X509* cert, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return X509_check_ip_asc(cert, name.c_str(), 0) == 1 || X509_check_host(cert, name.c_str(), name.size(), 0, nullptr) == 1;
  });
}

}  // namespace

Result<TlsFiles> ensure_internal_ca(Env* env, const std::string& dir, const std::vector<std::string>& names) {
  TlsFiles files{dir + "/ca.pem", dir + "/server.pem", dir + "/server.key", false, 0};
  CARREL_TRY(env->make_dirs(dir));
  const std::string ca_key = dir + "/ca.key";
  if (!env->exists(files.ca_pem) || !env->exists(ca_key)) {
    std::string tag(4, '\0');
    env->random(std::as_writable_bytes(std::span(tag)));
    CARREL_ASSIGN(const Pair root, make(env, "Carrel internal CA " + to_hex(std::as_bytes(std::span(tag))), {}, nullptr, kRootDays));
    CARREL_TRY(write_file_atomic(env, ca_key, key_pem(root.key.get())));
    CARREL_TRY(write_file_atomic(env, files.ca_pem, cert_pem(root.cert.get()), 0644));
  }
  CARREL_ASSIGN(const Pair root, read_pair(env, files.ca_pem, ca_key));
  if (env->exists(files.cert_pem) && env->exists(files.key_pem)) {
    auto leaf = read_pair(env, files.cert_pem, files.key_pem);
    if (leaf && X509_verify(leaf->cert.get(), X509_get0_pubkey(root.cert.get())) == 1 && covers(leaf->cert.get(), names)) {
      const int64_t left = seconds_left(env, leaf->cert.get());
      files.not_after_ms = env->wall_ms() + left * 1000;
      if (left > kLeafDays * kDay / 3) return files;
    }
  }
  CARREL_ASSIGN(const Pair leaf, make(env, "carrel", names, &root, kLeafDays));
  CARREL_TRY(write_file_atomic(env, files.key_pem, key_pem(leaf.key.get())));
  CARREL_TRY(write_file_atomic(env, files.cert_pem, cert_pem(leaf.cert.get()) + cert_pem(root.cert.get()), 0644));
  files.renewed = true;
  files.not_after_ms = env->wall_ms() + kLeafDays * kDay * 1000;
  return files;
}

Status check_tls_pair(Env* env, const std::string& cert_path, const std::string& key_path) {
  CARREL_ASSIGN(const std::string cert_text, read_file(env, cert_path, 1 << 20));
  CARREL_ASSIGN(const std::string key_text, read_file(env, key_path, 1 << 20));
  if (cert_text.find("PRIVATE KEY") != std::string::npos && cert_text.find("BEGIN CERTIFICATE") == std::string::npos)
    return fail(Code::kInvalidArgument, "looks like a private key; server.tls.cert and server.tls.key are swapped", cert_path);
  if (key_text.find("BEGIN CERTIFICATE") != std::string::npos && key_text.find("PRIVATE KEY") == std::string::npos)
    return fail(Code::kInvalidArgument, "looks like a certificate; server.tls.cert and server.tls.key are swapped", key_path);
  Memory cert_bio(BIO_new_mem_buf(cert_text.data(), static_cast<int>(cert_text.size())));
  Memory key_bio(BIO_new_mem_buf(key_text.data(), static_cast<int>(key_text.size())));
  const Cert cert(PEM_read_bio_X509(cert_bio.get(), nullptr, nullptr, nullptr));
  if (!cert) return fail(Code::kInvalidArgument, "is not a PEM certificate", cert_path);
  const auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const Key key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, no_passphrase, nullptr));
  if (!key) return fail(Code::kInvalidArgument, "is not a PEM private key without passphrase", key_path);
  if (X509_check_private_key(cert.get(), key.get()) != 1) return fail(Code::kInvalidArgument, "does not belong to the certificate " + cert_path, key_path);
  if (seconds_left(env, cert.get()) <= 0) return fail(Code::kInvalidArgument, "has expired; renew it or use server.tls.mode: internal-ca", cert_path);
  return {};
}

std::vector<std::string> local_names() {
  std::vector<std::string> names{"localhost", "127.0.0.1", "::1"};
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) == 0 && host[0] != '\0') names.emplace_back(host);
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) == 0) {
    for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next) {
      if (i->ifa_addr == nullptr) continue;
      char text[INET6_ADDRSTRLEN] = {};
      if (i->ifa_addr->sa_family == AF_INET) inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr, text, sizeof text);
      if (i->ifa_addr->sa_family == AF_INET6) inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr, text, sizeof text);
      if (text[0] != '\0') names.emplace_back(text);
    }
    freeifaddrs(all);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<std::string> certificate_fingerprint(Env* env, const std::string& pem_path) {
  CARREL_ASSIGN(const std::string text, read_file(env, pem_path, 1 << 20));
  Memory bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  const Cert cert(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  if (!cert) return fail(Code::kCorrupt, "is not a PEM certificate", pem_path);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned n = 0;
  X509_digest(cert.get(), EVP_sha256(), digest, &n);
  return to_hex(std::as_bytes(std::span(digest, n)));
}

}  // namespace carrel

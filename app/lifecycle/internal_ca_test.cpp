#include "app/lifecycle/internal_ca.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace carrel {
namespace {

std::string fresh(const std::string& name) {
  const std::string dir = testing::TempDir() + name;
  (void)Env::real()->remove_all(dir);
  return dir;
}

TEST(InternalCa, MadeOnceThenKept) {
  const std::string dir = fresh("carrel_ca");
  const TlsFiles first = ensure_internal_ca(Env::real(), dir, local_names()).value();
  EXPECT_TRUE(first.renewed);
  const std::string root = certificate_fingerprint(Env::real(), first.ca_pem).value(), leaf = certificate_fingerprint(Env::real(), first.cert_pem).value();
  const TlsFiles second = ensure_internal_ca(Env::real(), dir, local_names()).value();
  EXPECT_FALSE(second.renewed);
  EXPECT_EQ(certificate_fingerprint(Env::real(), second.ca_pem).value(), root);
  EXPECT_EQ(certificate_fingerprint(Env::real(), second.cert_pem).value(), leaf);
}

TEST(InternalCa, ANewNameRenewsTheLeafUnderTheSameRoot) {
  const std::string dir = fresh("carrel_ca_names");
  const std::string root = certificate_fingerprint(Env::real(), ensure_internal_ca(Env::real(), dir, {"localhost", "127.0.0.1"})->ca_pem).value();
  const TlsFiles after = ensure_internal_ca(Env::real(), dir, {"localhost", "127.0.0.1", "10.1.2.3", "fe80::1"}).value();
  EXPECT_TRUE(after.renewed);
  EXPECT_EQ(certificate_fingerprint(Env::real(), after.ca_pem).value(), root);
  EXPECT_EQ(std::system(("openssl verify -CAfile " + after.ca_pem + " -verify_ip 10.1.2.3 " + after.cert_pem + " >/dev/null 2>&1").c_str()), 0);
  EXPECT_NE(std::system(("openssl verify -CAfile " + after.ca_pem + " -verify_ip 10.1.2.4 " + after.cert_pem + " >/dev/null 2>&1").c_str()), 0);
}

TEST(InternalCa, ABrokenRootIsNamedNotReplaced) {
  const std::string dir = fresh("carrel_ca_broken");
  ASSERT_TRUE(ensure_internal_ca(Env::real(), dir, {"localhost"}));
  ASSERT_TRUE(write_file_atomic(Env::real(), dir + "/ca.pem", "not a certificate"));
  const auto again = ensure_internal_ca(Env::real(), dir, {"localhost"});
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, Code::kCorrupt);
}

}  // namespace
}  // namespace carrel

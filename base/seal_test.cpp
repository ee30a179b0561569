#include "base/seal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/aligned.h"

namespace carrel {
namespace {

std::vector<std::byte> bytes(std::string_view hex) {
  const std::string s = from_hex(hex).value();
  const auto b = std::as_bytes(std::span(s));
  return {b.begin(), b.end()};
}

template <size_t N>
std::array<std::byte, N> array(std::string_view hex) {
  std::array<std::byte, N> a;
  const auto b = bytes(hex);
  EXPECT_EQ(b.size(), N);
  std::memcpy(a.data(), b.data(), N);
  return a;
}

std::string hkdf(std::string_view secret, std::string_view salt, std::string_view info, size_t n) {
  std::vector<std::byte> out(n);
  hkdf_sha256(bytes(secret), bytes(salt), from_hex(info).value(), out);
  return to_hex(out);
}

TEST(Seal, HkdfRfc5869) {
  EXPECT_EQ(hkdf("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9", 42),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");  // A.1
  EXPECT_EQ(
      hkdf("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c"
           "3d3e3f404142434445464748494a4b4c4d4e4f",
           "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c"
           "9d9e9fa0a1a2a3a4a5a6a7a8a9aaabacadaeaf",
           "b0b1b2b3b4b5b6b7b8b9babbbcbdbebfc0c1c2c3c4c5c6c7c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e7e8e9eaebec"
           "edeeeff0f1f2f3f4f5f6f7f8f9fafbfcfdfeff",
           82),
      "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db"
      "71cc30c58179ec3e87c14c01d5c1f3434f1d87");  // A.2
  EXPECT_EQ(hkdf("0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b", "", "", 42),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");  // A.3
}

struct GcmCase {
  const char *key, *iv, *plain, *associated, *sealed, *tag;
};

// Test cases 13 to 16 of "The Galois/Counter Mode of Operation" (McGrew and Viega), appendix B.
constexpr GcmCase kGcm[] = {
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000", "", "", "",
     "530f8afbc74536b9a963b4f1c4cb738b"},
    {"0000000000000000000000000000000000000000000000000000000000000000", "000000000000000000000000", "00000000000000000000000000000000", "",
     "cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919"},
    {"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
     "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255", "",
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
     "b094dac5d93471bdec1a502270e3cc6c"},
    {"feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308", "cafebabefacedbaddecaf888",
     "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39",
     "feedfacedeadbeeffeedfacedeadbeefabaddad2",
     "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662",
     "76fc6ece0f4e1768cddf8853bb2d551b"},
};

TEST(Seal, AesGcmPublishedVectors) {
  for (const GcmCase& c : kGcm) {
    auto cipher = Aes256Gcm::create(SecretKey(array<32>(c.key)));
    ASSERT_TRUE(cipher) << cipher.error().text();
    const auto plain = bytes(c.plain), associated = bytes(c.associated);
    const auto nonce = array<12>(c.iv);
    // In one piece, and cut in the middle of a cipher block.
    for (const size_t cut : {size_t{0}, plain.size() / 3}) {
      const std::span<const std::byte> pieces[] = {std::span(plain).first(cut), std::span(plain).subspan(cut)};
      std::vector<std::byte> sealed(plain.size()), back(plain.size());
      const auto tag = cipher->seal(nonce, associated, pieces, sealed);
      ASSERT_TRUE(tag) << tag.error().text();
      EXPECT_EQ(to_hex(sealed), c.sealed);
      EXPECT_EQ(to_hex(*tag), c.tag);
      const std::span<std::byte> out[] = {std::span(back).first(cut), std::span(back).subspan(cut)};
      EXPECT_TRUE(cipher->open(nonce, associated, sealed, *tag, out));
      EXPECT_EQ(back, plain);
    }
  }
}

TEST(Seal, WhatDoesNotFitIsRefusedAndLeavesZeros) {
  const GcmCase& c = kGcm[3];
  auto cipher = Aes256Gcm::create(SecretKey(array<32>(c.key)));
  ASSERT_TRUE(cipher);
  const auto sealed = bytes(c.sealed), associated = bytes(c.associated);
  const auto nonce = array<12>(c.iv);
  const auto tag = array<16>(c.tag);
  const std::vector<std::byte> zeros(sealed.size());
  std::vector<std::byte> back(sealed.size());
  const std::span<std::byte> out[] = {back};
  const auto refused = [&](Aes256Gcm& with, const GcmNonce& n, const std::vector<std::byte>& a, const std::vector<std::byte>& s,
                           const GcmTag& t) {
    std::fill(back.begin(), back.end(), std::byte{7});
    const Status r = with.open(n, a, s, t, out);
    return !r && r.error().code == Code::kCorrupt && back == zeros;
  };
  auto other_nonce = nonce;
  other_nonce[11] ^= std::byte{1};
  auto other_associated = associated;
  other_associated[0] ^= std::byte{1};
  auto other_sealed = sealed;
  other_sealed.back() ^= std::byte{0x80};
  auto other_tag = tag;
  other_tag[15] ^= std::byte{1};
  auto other = Aes256Gcm::create(SecretKey(array<32>(kGcm[0].key)));
  ASSERT_TRUE(other);
  EXPECT_TRUE(refused(*cipher, other_nonce, associated, sealed, tag));
  EXPECT_TRUE(refused(*cipher, nonce, other_associated, sealed, tag));
  EXPECT_TRUE(refused(*cipher, nonce, associated, other_sealed, tag));
  EXPECT_TRUE(refused(*cipher, nonce, associated, sealed, other_tag));
  EXPECT_TRUE(refused(*other, nonce, associated, sealed, tag));
  EXPECT_TRUE(cipher->open(nonce, associated, sealed, tag, out)) << "the object goes on working";
}

TEST(Seal, KeysAreGoneWhereTheyWere) {
  SecretKey a(array<32>(kGcm[3].key));
  const SecretKey b = a.copy();
  const SecretKey c = std::move(a);
  EXPECT_EQ(to_hex(a.bytes()), std::string(64, '0'));  // NOLINT: what a move leaves is the subject
  EXPECT_EQ(to_hex(b.bytes()), kGcm[3].key);
  EXPECT_EQ(to_hex(c.bytes()), kGcm[3].key);
  alignas(SecretKey) std::byte place[sizeof(SecretKey)];
  auto* d = new (place) SecretKey(array<32>(kGcm[3].key));
  d->~SecretKey();
  EXPECT_EQ(to_hex(place), std::string(64, '0'));
}

TEST(AlignedBytes, BeginOnPages) {
  for (const size_t n : {size_t{1}, size_t{4096}, size_t{4097}, size_t{1} << 20}) {
    auto b = AlignedBytes::allocate(n);
    ASSERT_TRUE(b);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b->data()) % 4096, 0u);
    EXPECT_EQ(b->size(), n);
    AlignedBytes moved = std::move(*b);
    EXPECT_EQ(b->data(), nullptr);
    EXPECT_EQ(b->size(), 0u);
    EXPECT_EQ(moved.span().size(), n);
  }
  const auto none = AlignedBytes::allocate(SIZE_MAX - 5);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kExhausted);
}

}  // namespace
}  // namespace carrel

#include "lockstep/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>
#include <random>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

// A file of `header` and `data` bytes, with the right length in front.
std::string file_bytes(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(std::uint64_t{header.size()} >> 8 * i);
  return bytes + header + data;
}

void write_raw(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

torch::Tensor sample(torch::ScalarType dtype, std::vector<std::int64_t> shape) {
  torch::Tensor values =
      torch::arange(-3, -3 + std::max<std::int64_t>(c10::multiply_integers(shape), 0), torch::kFloat64);
  if (dtype == torch::kBool) return (values > 0).reshape(shape);
  if (dtype == torch::kUInt8) values = values + 3;
  return (values * 1.25).to(dtype).reshape(shape);
}

bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && torch::equal(a, b);
}

TensorMap every_dtype() {
  TensorMap tensors;
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
                           torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    tensors[std::string("t.") + c10::toString(dtype)] = sample(dtype, {3, 5});
  }
  tensors["scalar"] = torch::tensor(2.5);
  tensors["empty"] = torch::empty({0});
  tensors["empty.2d"] = torch::empty({4, 0, 7}, torch::kBFloat16);
  tensors["transposed"] = sample(torch::kFloat32, {4, 6}).t();
  tensors["slice"] = sample(torch::kInt64, {10, 10}).slice(1, 2, 9, 3);
  tensors["needs_grad"] = torch::ones({2}).requires_grad_();
  return tensors;
}

class Safetensors : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "x.safetensors"; }
  void expect_refused(const std::string& bytes, const std::string& part_of_message) {
    write_raw(path(), bytes);
    try {
      SafetensorsFile::open(path()).read_all();
      ADD_FAILURE() << "accepted; wanted: " << part_of_message;
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage) << error.what();
      EXPECT_NE(std::string(error.what()).find(part_of_message), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  void refuse_header(const std::string& header, const std::string& part_of_message, std::size_t data = 16) {
    expect_refused(file_bytes(header, std::string(data, '\0')), part_of_message);
  }
  TemporaryFolder folder_;
};

TEST_F(Safetensors, gives_back_every_dtype_shape_and_layout) {
  const TensorMap tensors = every_dtype();
  write_safetensors(path(), tensors, {{"format", "pt"}, {"note", "ä\n"}});
  const SafetensorsFile file = SafetensorsFile::open(path());
  EXPECT_EQ(file.metadata().at("note"), "ä\n");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(file.read(name), tensor.detach())) << name;
}

TEST_F(Safetensors, keeps_nan_payloads_and_signed_zeros_bit_for_bit) {
  const auto bits = torch::tensor({0x7fc00001, static_cast<int>(0x80000000u), 0x7f800000, 1}, torch::kInt32);
  write_safetensors(path(), {{"x", bits.view(torch::kFloat32)}});
  EXPECT_TRUE(torch::equal(SafetensorsFile::open(path()).read("x").view(torch::kInt32), bits));
}

TEST_F(Safetensors, writes_the_documented_layout) {
  write_safetensors(path(), {{"b", torch::tensor({1, 2}, torch::kUInt8)}, {"a", torch::tensor({1.0f})}});
  const std::string bytes = read_file(path());
  const std::string header =
      R"({"a":{"data_offsets":[0,4],"dtype":"F32","shape":[1]},"b":{"data_offsets":[4,6],"dtype":"U8","shape":[2]}})";
  const std::size_t length = static_cast<unsigned char>(bytes[0]);
  EXPECT_EQ((8 + length) % 64, 0u);
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  EXPECT_EQ(bytes.substr(8 + length), std::string("\0\0\x80\x3f\x01\x02", 6));
}

TEST_F(Safetensors, writes_the_same_bytes_for_the_same_tensors_and_says_their_checksum) {
  const FileDigest first = write_safetensors(path(), every_dtype(), {{"k", "v"}});
  const std::string bytes = read_file(path());
  EXPECT_EQ(first, write_safetensors(path(), every_dtype(), {{"k", "v"}}));
  EXPECT_EQ(first.bytes, bytes.size());
  EXPECT_EQ(first.crc32c, crc32c(bytes.data(), bytes.size()));
  const SafetensorsFile file = SafetensorsFile::open(path());
  for (const auto& [name, entry] : file.entries()) {
    EXPECT_EQ(entry.offset % torch::elementSize(entry.dtype), 0u) << name;
  }
}

TEST_F(Safetensors, splits_the_checksum_into_blocks) {
  const std::int64_t count = static_cast<std::int64_t>(kDigestBlockBytes) * 5 / 2 / 4;
  const FileDigest digest = write_safetensors(path(), {{"x", torch::arange(count, torch::kInt32)}});
  const std::string bytes = read_file(path());
  ASSERT_EQ(digest.blocks.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::string block = bytes.substr(i * kDigestBlockBytes, kDigestBlockBytes);
    EXPECT_EQ(digest.blocks[i], crc32c(block.data(), block.size()));
  }
}

TEST_F(Safetensors, fills_a_given_tensor) {
  write_safetensors(path(), {{"x", torch::tensor({1.5, 2.5}, torch::kFloat64)}});
  const SafetensorsFile file = SafetensorsFile::open(path());
  torch::Tensor target = torch::zeros({2, 2}).t()[0].requires_grad_();
  file.read_into("x", target);
  EXPECT_TRUE(torch::equal(target, torch::tensor({1.5f, 2.5f})));
  torch::Tensor wrong = torch::zeros({3});
  EXPECT_THROW(file.read_into("x", wrong), UserError);
  EXPECT_THROW(file.read("y"), UserError);
}

TEST_F(Safetensors, refuses_to_write_what_the_format_lacks) {
  EXPECT_THROW(write_safetensors(path(), {{"x", torch::zeros({1}, torch::kComplexFloat)}}), UserError);
}

TEST_F(Safetensors, reports_a_missing_file_and_a_folder) {
  try {
    SafetensorsFile::open(folder_.path() / "nothing");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
  }
  EXPECT_THROW(SafetensorsFile::open(folder_.path()), UserError);
}

TEST_F(Safetensors, refuses_lengths_that_lie) {
  expect_refused("", "0 bytes long");
  expect_refused("12345678", "8 bytes long");
  std::string huge = file_bytes("{}", "");
  for (int i = 0; i < 8; ++i) huge[i] = '\xff';
  expect_refused(huge, "claims 18446744073709551615 bytes");
  std::string long_by_one = file_bytes("{}", "");
  long_by_one[0] = 3;
  expect_refused(long_by_one, "claims 3 bytes");
  expect_refused(file_bytes("", "..."), "does not begin with '{'");
}

TEST_F(Safetensors, refuses_headers_that_are_no_headers) {
  refuse_header("[]", "does not begin with '{'");
  refuse_header(" {}", "does not begin with '{'");
  refuse_header("{", "not JSON");
  refuse_header("{} {}", "not JSON");
  refuse_header("{}", "belong to no tensor");
  refuse_header(R"({"a":1})", "a number where none belongs");
  refuse_header(R"({"a":null})", "null");
  refuse_header(R"({"a":[]})", "an array where none belongs");
  refuse_header(R"({"a":{}})", "lacks dtype, shape or data_offsets");
  refuse_header(R"({"a":{"a":{}}})", "unknown key");
  refuse_header(R"({"__metadata__":{"a":1}})", "a number where none belongs");
  refuse_header(R"({"__metadata__":{"a":{}}})", "an object where none belongs");
  refuse_header("{\"a\":" + std::string(5'000'000, '['), "");
  refuse_header("{\"a\x01\":1}", "not JSON");
  refuse_header("{\"\xff\":1}", "not JSON");
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":)" + tensor(dtype, shape, offsets) + "}";
}

TEST_F(Safetensors, refuses_tensors_that_do_not_fit) {
  refuse_header(one("F31", "[4]", "[0,16]"), "unsupported dtype 'F31'");
  refuse_header(one("F32", "[5]", "[0,16]"), "does not match its 16 bytes");
  refuse_header(one("F32", "[4]", "[0,17]"), "0..17 of 16");
  refuse_header(one("F32", "[4]", "[16,0]"), "16..0 of 16");
  refuse_header(one("F32", "[4]", "[0]"), "two numbers");
  refuse_header(one("F32", "[4]", "[0,16,32]"), "two numbers");
  refuse_header(one("F32", "[-4]", "[0,16]"), "a negative number");
  refuse_header(one("F32", "[4.0]", "[0,16]"), "not an integer");
  refuse_header(one("F32", "[1e400]", "[0,16]"), "");
  refuse_header(one("F32", "[[4]]", "[0,16]"), "an array where none belongs");
  // 2^62 x 4 x 4 bytes is 0 in 64 bits; 2^32 x 2^32 too.
  refuse_header(one("F32", "[4611686018427387904,4]", "[0,0]"), "does not match", 0);
  refuse_header(one("U8", "[4294967296,4294967296]", "[0,0]"), "does not match", 0);
  refuse_header(one("U8", "[0,4294967296,4294967296]", "[0,0]"), "does not match", 0);
  refuse_header(one("U8", "[18446744073709551615]", "[0,0]"), "too large", 0);
  refuse_header(one("U8", "[16]", "[18446744073709551600,18446744073709551615]"), "too large");
  std::string dims = "[1";
  for (int i = 0; i < 64; ++i) dims += ",1";
  refuse_header(one("U8", dims + "]", "[0,1]"), "more than 64 dims", 1);
}

TEST_F(Safetensors, refuses_holes_overlaps_duplicates_and_trailing_bytes) {
  const auto two = [](const std::string& a, const std::string& b) {
    return R"({"a":)" + tensor("U8", "[8]", a) + R"(,"b":)" + tensor("U8", "[8]", b) + "}";
  };
  refuse_header(two("[0,8]", "[4,12]"), "overlaps", 12);
  refuse_header(two("[0,8]", "[0,8]"), "overlaps", 8);
  refuse_header(two("[0,8]", "[9,17]"), "leaves a hole", 17);
  refuse_header(two("[0,8]", "[8,16]"), "1 bytes at the end", 17);
  refuse_header(R"({"a":)" + tensor("U8", "[8]", "[0,8]") + R"(,"a":)" + tensor("U8", "[8]", "[8,16]") + "}", "twice");
  refuse_header(R"({"a":{"dtype":"U8","dtype":"U8","shape":[16],"data_offsets":[0,16]}})", "twice");
}

TEST_F(Safetensors, refuses_bools_that_are_neither_true_nor_false) {
  expect_refused(file_bytes(one("BOOL", "[2]", "[0,2]"), std::string("\x01\x02")), "other than 0 and 1");
}

// Damage of every kind to a good file: either it is refused with a message, or what it says fits the file.
TEST_F(Safetensors, survives_two_thousand_mutations) {
  write_safetensors(path(), every_dtype(), {{"k", "v"}});
  const std::string good = read_file(path());
  const std::size_t header_end = 8 + static_cast<unsigned char>(good[0]) + 256u * static_cast<unsigned char>(good[1]);
  const std::vector<std::string> extremes = {
      "18446744073709551615", "9223372036854775807", "-1", "0", "1e308", "\"", "{", "}", "[", "]", ",", "null", "\xff",
      "4611686018427387904"};
  std::mt19937_64 random(20261115);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = good;
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const std::size_t at = random() % (random() % 4 == 0 ? bytes.size() : std::min(bytes.size(), header_end));
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(bytes[at] ^ 1 << random() % 8);
          break;
        case 1:
          bytes.insert(at, extremes[random() % extremes.size()]);
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.resize(std::max<std::size_t>(at, 1));
          break;
        default:
          bytes[random() % 8] = static_cast<char>(random());
          break;
      }
    }
    write_raw(path(), bytes);
    try {
      const SafetensorsFile file = SafetensorsFile::open(path());
      std::uint64_t total = 0;
      for (const auto& [name, entry] : file.entries()) total += entry.bytes;
      ASSERT_LE(total, bytes.size());
      file.read_all();
    } catch (const UserError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
  ::printf("%d of 2000 mutated files refused\n", refused);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace lockstep::checkpoint

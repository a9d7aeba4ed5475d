// Files are laid out byte by byte here, from the format's description, so that reader and writer
// are not each other's oracle. Seen red: no tiling check (holes and overlaps pass); `begin` left
// relative to the data; header not padded.
#include "checkpoint/safetensors.hpp"

#include <gmock/gmock.h>

#include <cstring>

#include "checkpoint/safetensors_writer.hpp"
#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using testing::ElementsAre;
using testing::HasSubstr;

// The bytes of a file: length of the header, header, data.
std::string laid_out(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + data;
}

std::vector<std::string> problems_of(const std::string& bytes) {
  const TemporaryDirectory directory;
  write_file(directory / "x.safetensors", bytes);
  try {
    SafetensorsFile file(directory / "x.safetensors");
  } catch (const DataError& error) {
    for (const auto& line : error.problems()) EXPECT_THAT(line, HasSubstr("x.safetensors"));
    return error.problems();
  }
  return {};
}

std::string contents(const SafetensorsFile& file, const SafetensorsEntry& entry) {
  std::string bytes(static_cast<std::size_t>(entry.bytes), '\0');
  file.read(entry, 0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(Safetensors, ReadsWhatTheFormatSays) {
  const TemporaryDirectory directory;
  // Order in the header is free; a scalar and an empty tensor are allowed; spaces pad the header.
  write_file(directory / "x.safetensors",
             laid_out(R"({"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},)"
                      R"("__metadata__":{"format":"pt"},)"
                      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                      R"("empty":{"dtype":"F16","shape":[0,3],"data_offsets":[4,4]},)"
                      R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}}   )",
                      "aaaa"
                      "bbbbBBBB"
                      "iiiiiiii"));
  const SafetensorsFile file(directory / "x.safetensors");
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.entries()[0].name, "a");
  EXPECT_EQ(file.entries()[0].shape_string(), "[]");
  EXPECT_EQ(contents(file, file.entries()[0]), "aaaa");
  EXPECT_EQ(file.entries()[1].name, "empty");
  EXPECT_EQ(file.entries()[2].name, "b");
  EXPECT_THAT(file.entries()[2].shape, ElementsAre(2, 2));
  EXPECT_EQ(contents(file, file.entries()[2]), "bbbbBBBB");
  EXPECT_EQ(contents(file, file.entries()[3]), "iiiiiiii");
  std::string part(3, '\0');
  file.read(file.entries()[2], 3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "bBB");
}

TEST(Safetensors, ReportsEveryProblemOfAHeader) {
  const auto problems = problems_of(
      laid_out(R"({"wrong_size":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},)"
               R"("unknown_type":{"dtype":"F33","shape":[1],"data_offsets":[0,4]},)"
               R"("backwards":{"dtype":"F32","shape":[1],"data_offsets":[4,0]},)"
               R"("beyond":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("negative":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]},)"
               R"("fraction":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]},)"
               R"("overflow":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]},)"
               R"("huge":{"dtype":"F32","shape":[99999999999999999999],"data_offsets":[0,4]},)"
               R"("no_shape":{"dtype":"F32","data_offsets":[0,4]},)"
               R"("surplus":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"scale":1},)"
               R"("no_object":3,)"
               R"("__metadata__":{"n":1}})",
               "dddd"));
  const char* named[] = {"wrong_size", "unknown_type", "backwards", "beyond",
                         "negative",   "fraction",     "overflow",  "huge",
                         "no_shape",   "surplus",      "no_object", "__metadata__"};
  for (const char* name : named) {
    EXPECT_THAT(problems, testing::Contains(HasSubstr(name))) << name;
  }
  EXPECT_EQ(problems.size(), std::size(named));
}

TEST(Safetensors, RefusesHolesAndOverlaps) {
  const auto two = [](const char* first, const char* second) {
    return laid_out(fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":{}}},)"
                                R"("b":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})",
                                first, second),
                    "0123456789ab");
  };
  EXPECT_THAT(problems_of(two("[0,4]", "[8,12]")),
              ElementsAre(HasSubstr("4 bytes before tensor \"b\"")));
  EXPECT_THAT(problems_of(two("[0,4]", "[2,6]")),
              ElementsAre(HasSubstr("\"b\" overlaps"), HasSubstr("last 6 bytes")));
  EXPECT_THAT(problems_of(two("[0,4]", "[4,8]")), ElementsAre(HasSubstr("last 4 bytes")));
  EXPECT_THAT(problems_of(two("[4,8]", "[8,12]")), ElementsAre(HasSubstr("4 bytes before")));
}

TEST(Safetensors, RefusesWhatIsNoSafetensorsFile) {
  EXPECT_THAT(problems_of(""), ElementsAre(HasSubstr("too few")));
  EXPECT_THAT(problems_of("1234567"), ElementsAre(HasSubstr("too few")));
  EXPECT_THAT(problems_of(std::string(8, '\xff')), ElementsAre(HasSubstr("does not fit")));
  EXPECT_THAT(problems_of(laid_out("{}", "").substr(0, 9)), ElementsAre(HasSubstr("does not fit")));
  EXPECT_THAT(problems_of(laid_out("[]", "")), ElementsAre(HasSubstr("no JSON object")));
  EXPECT_THAT(problems_of(laid_out("{\"a\"", "")), ElementsAre(HasSubstr("bad JSON")));
  EXPECT_THAT(problems_of(laid_out(R"({"\xff":1})", "")), ElementsAre(HasSubstr("bad JSON")));
  EXPECT_THAT(problems_of(laid_out(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                                   R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                                   "")),
              ElementsAre(HasSubstr("\"a\" is given twice")));
  EXPECT_THAT(problems_of(laid_out(std::string(1 << 16, '['), "")),
              ElementsAre(HasSubstr("bad JSON")));
  EXPECT_TRUE(problems_of(laid_out("{}", "")).empty());
}

TEST(Safetensors, WritesWhatTheFormatSays) {
  const TemporaryDirectory directory;
  SafetensorsWriter writer(
      directory / "x.safetensors",
      {{"h", DType::kF16, {3}}, {"b", DType::kF32, {1, 2}}, {"a", DType::kF32, {1}}});
  const auto write = [&](const char* name, std::int64_t at, std::string_view bytes) {
    writer.write(name, at, std::as_bytes(std::span(bytes)));
  };
  write("h", 0, "hhHHhh");
  write("a", 0, "aaaa");
  write("b", 4, "BBBB");
  write("b", 0, "bbbb");
  EXPECT_FALSE(std::filesystem::exists(directory / "x.safetensors"));
  writer.commit();
  std::string header = R"({"__metadata__":{"format":"pt"},)"
                       R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"F32","shape":[1,2],"data_offsets":[4,12]},)"
                       R"("h":{"dtype":"F16","shape":[3],"data_offsets":[12,18]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_file(directory / "x.safetensors"), laid_out(header, "aaaabbbbBBBBhhHHhh"));
}

TEST(Safetensors, RefusesToCommitHalfATensor) {
  const TemporaryDirectory directory;
  {
    SafetensorsWriter writer(directory / "x.safetensors", {{"a", DType::kF32, {2}}});
    writer.write("a", 0, std::as_bytes(std::span("aaa")));
    EXPECT_THROW(writer.commit(), ContractError);
  }
  EXPECT_TRUE(directory.names().empty());
}

constexpr const char* kA = R"({"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})";
constexpr const char* kB = R"({"b":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})";

TEST(SafetensorsModel, JoinsTheShardsOfAnIndex) {
  const TemporaryDirectory directory;
  write_file(directory / "1.safetensors", laid_out(kA, "aa"));
  write_file(directory / "2.safetensors", laid_out(kB, "bb"));
  write_file(directory / "consolidated.safetensors", "another format of the same model");
  write_file(
      directory / "model.safetensors.index.json",
      R"({"metadata":{"total_size":4},"weight_map":{"b":"2.safetensors","a":"1.safetensors"}})");
  const SafetensorsModel model(directory.path());
  ASSERT_EQ(model.tensors().size(), 2u);
  std::string bytes(2, '\0');
  model.tensors().at("b").read(0, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "bb");
}

TEST(SafetensorsModel, TakesTheSingleFileWhereThereIsOne) {
  const TemporaryDirectory directory;
  write_file(directory / "model.safetensors", laid_out(kA, "aa"));
  write_file(directory / "model.safetensors.index.json", "not read");
  EXPECT_TRUE(SafetensorsModel(directory.path()).tensors().contains("a"));
}

TEST(SafetensorsModel, ReportsEveryDisagreementOfIndexAndShards) {
  const TemporaryDirectory directory;
  write_file(directory / "1.safetensors", laid_out(kA, "aa"));
  write_file(directory / "2.safetensors", laid_out(kB, "b"));
  write_file(directory / "model.safetensors.index.json",
             R"({"weight_map":{"c":"1.safetensors","b":"2.safetensors","d":"3.safetensors",)"
             R"("e":"../secret.safetensors","f":7}})");
  try {
    SafetensorsModel model(directory.path());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.problems(),
                testing::UnorderedElementsAre(
                    HasSubstr("\"a\" is not in model.safetensors.index.json"),
                    HasSubstr("tensor \"c\" is missing"), HasSubstr("2.safetensors: tensor \"b\""),
                    HasSubstr("3.safetensors: cannot be opened"), HasSubstr("../secret"),
                    HasSubstr("\"f\" names 7")));
  }
}

// Whichever shard the index names, a second copy could be another value. Seen red: the first one
// taken.
TEST(SafetensorsModel, RefusesATensorOfTwoShards) {
  const TemporaryDirectory directory;
  write_file(directory / "1.safetensors", laid_out(kA, "aa"));
  write_file(directory / "2.safetensors", laid_out(kA, "bb"));
  for (const char* named : {"1", "2"}) {
    write_file(directory / "model.safetensors.index.json",
               fmt::format(R"({{"weight_map":{{"a":"{}.safetensors","b":"1.safetensors",)"
                           R"("c":"2.safetensors"}}}})",
                           named));
    try {
      SafetensorsModel model(directory.path());
      FAIL();
    } catch (const DataError& error) {
      EXPECT_THAT(error.problems(),
                  testing::UnorderedElementsAre(
                      HasSubstr(fmt::format("tensor \"a\" belongs to {}.safetensors", named)),
                      HasSubstr("tensor \"b\" is missing"), HasSubstr("tensor \"c\" is missing")));
    }
  }
}

TEST(SafetensorsModel, RefusesADirectoryWithoutSafetensors) {
  const TemporaryDirectory directory;
  EXPECT_THROW(SafetensorsModel(directory.path()), DataError);
}

}  // namespace
}  // namespace coppice

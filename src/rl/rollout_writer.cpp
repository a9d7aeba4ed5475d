#include "rl/rollout_writer.hpp"

#include <simdjson.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/pending_file.hpp"

namespace coppice {
namespace {

namespace ondemand = simdjson::ondemand;

std::string array_of(std::span<const double> values, const Group& group, std::size_t response,
                     const char* what) {
  std::string text = "[";
  for (std::size_t t = 0; t < values.size(); ++t) {
    if (!std::isfinite(values[t]))
      throw Error(
          fmt::format("group \"{}\", response {}: {}[{}] is {} (JSON has no such number, and "
                      "a model that is sound gives none). Check the checkpoint's weights.",
                      group.name, response, what, t, values[t]));
    fmt::format_to(std::back_inserter(text), "{}{}", t == 0 ? "" : ", ", values[t]);
  }
  return text += "]";
}

// A text file under construction; it appears when finish() is called, or never.
class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path)
      : pending_(path), out_(pending_.temporary(), std::ios::binary) {}

  void write(std::string_view text) { out_.write(text.data(), std::ssize(text)); }
  void finish() {
    out_.close();
    if (!out_)
      throw IoError(fmt::format("{}: cannot be written (it may need more free space on its disk).",
                                pending_.target().string()));
    pending_.commit();
  }

 private:
  PendingFile pending_;
  std::ofstream out_;
};

// A place of a line where text goes: [begin, end) is replaced.
struct Edit {
  std::size_t begin, end;
  std::string text;
};

// Text of an object or array in the padded line, without the white space that the parser adds.
std::string_view trimmed(std::string_view raw) {
  const auto last = raw.find_last_not_of(" \t\r\n");
  return raw.substr(0, last + 1);
}

// Finds where the field goes in every response of a line.
class FieldFinder {
 public:
  std::vector<Edit> find(const std::string& line, std::string_view field) {
    text_.assign(line);
    text_.append(simdjson::SIMDJSON_PADDING, ' ');
    std::vector<std::string_view> responses;
    ondemand::document document = parser_.iterate(text_.data(), line.size(), text_.size());
    ondemand::array array = document.get_object().find_field("responses").get_array();
    for (auto element : array) {
      ondemand::object object = element.get_object();
      responses.push_back(trimmed(object.raw_json()));
    }
    std::vector<Edit> edits;
    for (const std::string_view response : responses) edits.push_back(find_in(response, field));
    return edits;
  }

 private:
  Edit find_in(std::string_view response, std::string_view field) {
    // The response lies inside the padded line, so the parser may read past its end.
    const std::size_t offset = static_cast<std::size_t>(response.data() - text_.data());
    ondemand::document document = response_parser_.iterate(
        simdjson::padded_string_view(response.data(), response.size(), text_.size() - offset));
    ondemand::array array;
    ondemand::object object = document.get_object();
    if (object.find_field(field).get_array().get(array) == simdjson::SUCCESS) {
      const std::string_view old = trimmed(array.raw_json());
      const auto begin = static_cast<std::size_t>(old.data() - text_.data());
      return {begin, begin + old.size(), ""};
    }
    const std::size_t brace = offset + response.size() - 1;
    return {brace, brace, fmt::format(", \"{}\": ", field)};
  }

  ondemand::parser parser_, response_parser_;
  std::string text_;
};

}  // namespace

std::string_view name_of(FillField field) {
  return field == FillField::kOldLogprobs ? "old_logprobs" : "ref_logprobs";
}

void write_scores(const std::filesystem::path& path, std::span<const Group> groups,
                  std::span<const GroupScores> scores) {
  COPPICE_CHECK(groups.size() == scores.size(), "{} groups, {} scores", groups.size(),
                scores.size());
  TextFile file(path);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::string line =
        fmt::format("{{\"group\": {}, \"responses\": [", nlohmann::json(groups[g].name).dump());
    for (std::size_t r = 0; r < scores[g].size(); ++r) {
      const ResponseScores& response = scores[g][r];
      line += fmt::format("{}{{\"logprobs\": {}, \"entropies\": {}}}", r == 0 ? "" : ", ",
                          array_of(response.logprobs, groups[g], r, "logprobs"),
                          array_of(response.entropies, groups[g], r, "entropies"));
    }
    file.write(line += "]}\n");
  }
  file.finish();
}

void fill_rollouts(const std::filesystem::path& source, const std::filesystem::path& path,
                   FillField field, std::span<const Group> groups,
                   std::span<const GroupScores> scores) {
  COPPICE_CHECK(groups.size() == scores.size(), "{} groups, {} scores", groups.size(),
                scores.size());
  const auto changed = [&] {
    return DataError(
        {fmt::format("{}: the file has changed since it was read. Run the command "
                     "again.",
                     source.string())});
  };
  std::ifstream in(source, std::ios::binary);
  if (!in) throw changed();
  TextFile out(path);
  FieldFinder finder;
  std::string line;
  std::size_t g = 0;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    const bool ends = !in.eof();  // getline met a line end, not the file's end
    if (g < groups.size() && groups[g].line == number) {
      // A byte order mark is no JSON; it is put back below, untouched.
      const std::size_t mark = number == 1 && line.starts_with("\xEF\xBB\xBF") ? 3 : 0;
      std::vector<Edit> edits;
      try {
        edits = finder.find(line.substr(mark), name_of(field));
      } catch (const simdjson::simdjson_error&) {
        throw changed();
      }
      if (edits.size() != scores[g].size()) throw changed();
      for (std::size_t r = edits.size(); r-- > 0;) {
        const std::string text =
            edits[r].text + array_of(scores[g][r].logprobs, groups[g], r, "logprobs");
        line.replace(mark + edits[r].begin, edits[r].end - edits[r].begin, text);
      }
      ++g;
    }
    out.write(line);
    if (ends) out.write("\n");
  }
  if (g != groups.size()) throw changed();
  out.finish();
}

}  // namespace coppice

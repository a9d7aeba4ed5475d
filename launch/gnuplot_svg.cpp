#include "launch/gnuplot_svg.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <regex>
#include <set>
#include <string_view>

#include "core/error.hpp"
#include "launch/html_page.hpp"

namespace coppice {
namespace {

// Told apart by people who see colours differently too (Okabe and Ito's palette), darkest first.
constexpr std::array kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                "#e69f00", "#56b4e9", "#7a5195", "#4d4d4d"};

const char* color_of(int index) {
  return kColors[static_cast<std::size_t>(index) % kColors.size()];
}

// A word in double quotes, of which gnuplot takes nothing for marks.
std::string quoted(std::string_view text) {
  std::string word = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') word += '\\';
    word += c == '\n' || c == '`' ? ' ' : c;
  }
  return word + "\"";
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File temporary() {
  File file(std::tmpfile(), std::fclose);
  if (!file)
    throw IoError(
        fmt::format("no temporary file can be made: {}. Free space where temporary files are.",
                    std::strerror(errno)));
  return file;
}

std::string text_of(std::FILE* file) {
  std::string text;
  std::array<char, 4096> block{};
  std::rewind(file);
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), file))
    text.append(block.data(), count);
  return text;
}

// What gnuplot writes for the script. Files instead of pipes: neither side waits for the other.
std::string run_gnuplot(const std::string& script) {
  const File in = temporary(), out = temporary(), err = temporary();
  if (std::fwrite(script.data(), 1, script.size(), in.get()) != script.size() ||
      std::fflush(in.get()) != 0)
    throw IoError("gnuplot's script cannot be written. Free space on the disk.");
  std::rewind(in.get());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fileno(in.get()), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(out.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(err.get()), STDERR_FILENO);
  std::string program = "gnuplot", no_settings = "-d";  // of the user's .gnuplot
  std::array<char*, 3> arguments = {program.data(), no_settings.data(), nullptr};
  pid_t child = -1;
  const int failed =
      posix_spawnp(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0)
    throw IoError(fmt::format(
        "gnuplot cannot be started: {} (it draws the plots of a report; nothing was written). "
        "Install the package gnuplot-nox, as launch/setup does, and run coppice report, here or "
        "where a copy of the directory lies.",
        std::strerror(failed)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  std::string said = text_of(err.get());
  if (status != 0) {
    std::replace(said.begin(), said.end(), '\n', ' ');
    throw IoError(fmt::format(
        "gnuplot failed (it draws the plots of a report; nothing was written): {}. Coppice is "
        "tested with gnuplot 5.4.",
        said));
  }
  return text_of(out.get());
}

std::string opening(const std::string& x_label, const std::string& y_label) {
  return fmt::format(
      "set xlabel {}\nset ylabel {}\n"
      "set border 3 lc rgb '#555555'\nset grid ytics lc rgb '#dddddd' lt 1\n"
      "set tics nomirror out scale 0.6\nset bars small\n",
      quoted(x_label), quoted(y_label));
}

// A little wider than the points, so that those at the ends are whole; gnuplot would go on to the
// next tick.
std::string x_range(const std::set<double>& places, Scale scale) {
  if (places.empty()) return "";
  constexpr double kMargin = 0.04;
  const double first = *places.begin(), last = *places.rbegin();
  if (scale == Scale::kLogarithmic && first > 0) {
    const double factor = first < last ? std::pow(last / first, kMargin) : 2;
    return fmt::format("set xrange [{}:{}]\n", first / factor, last * factor);
  }
  const double margin = first < last ? kMargin * (last - first) : 1;
  return fmt::format("set xrange [{}:{}]\n", first - margin, last + margin);
}

// gnuplot takes larger numbers for undefined, and a curve of nothing else for an error.
double drawable(double y) { return std::clamp(y, -1e300, 1e300); }

// Such a value must not vanish below an axis that begins at 0.
bool has_negative(const std::vector<Curve>& curves) {
  const auto negative = [](double y) { return y < 0; };
  return std::any_of(curves.begin(), curves.end(), [&](const Curve& curve) {
    return std::any_of(curve.y.begin(), curve.y.end(), negative) ||
           std::any_of(curve.low.begin(), curve.low.end(), negative);
  });
}

// Legends stand above the drawing's frame, where they cover nothing; more than two entries side by
// side would not fit.
constexpr std::size_t kLegendColumns = 2;

std::string legend() {
  return fmt::format("set key outside top center horizontal Left reverse samplen 2 maxcols {}\n",
                     kLegendColumns);
}

// Of a drawing with so many curves or parts: what the legend takes, the plot does not lose.
int height_of(std::size_t entries) {
  constexpr std::size_t kUsualRows = 2;
  constexpr int kRow = 16, kUsual = 290;
  const std::size_t rows = (entries + kLegendColumns - 1) / kLegendColumns;
  return kUsual + kRow * static_cast<int>(rows > kUsualRows ? rows - kUsualRows : 0);
}

}  // namespace

std::string SvgDrawer::draw(const CurvePlot& plot) {
  std::string script = opening(plot.x_label, plot.y_label) + legend();
  if (plot.x_scale == Scale::kLogarithmic) script += "set logscale x 2\n";
  if (plot.from_zero && !has_negative(plot.curves)) script += "set yrange [0:*]\n";
  std::set<double> places;
  for (const Curve& curve : plot.curves) places.insert(curve.x.begin(), curve.x.end());
  if (plot.ticks_at_points && !places.empty()) {
    script += "set xtics (";
    for (const double x : places) script += fmt::format("'{0:g}' {0:g},", x);
    script.back() = ')';
    script += '\n';
  }
  script += x_range(places, plot.x_scale);
  std::string what;
  for (std::size_t i = 0; i < plot.curves.size(); ++i) {
    const Curve& curve = plot.curves[i];
    script += fmt::format("$curve{} << EOD\n", i);
    for (std::size_t p = 0; p < curve.x.size(); ++p)
      script += fmt::format("{} {} {} {}\n", curve.x[p], drawable(curve.y[p]),
                            drawable(curve.low.empty() ? curve.y[p] : curve.low[p]),
                            drawable(curve.high.empty() ? curve.y[p] : curve.high[p]));
    script += "EOD\n";
    const std::string look = fmt::format("lc rgb '{}'", color_of(curve.color));
    if (!what.empty()) what += ", ";
    const bool line = curve.style == CurveStyle::kLine;
    if (!curve.low.empty() && line)
      what += fmt::format(
          "$curve{} using 1:3:4 with filledcurves fs transparent solid 0.2 noborder {} notitle, ",
          i, look);
    else if (!curve.low.empty())
      what +=
          fmt::format("$curve{} using 1:2:3:4 with yerrorbars lw 1 pt -1 {} notitle, ", i, look);
    what += fmt::format("$curve{} using 1:2 with {} {} title {}", i,
                        curve.style == CurveStyle::kPoints    ? "points pt 6 ps 0.7"
                        : curve.style == CurveStyle::kCrosses ? "points pt 2 ps 0.8 lw 2"
                        : curve.style == CurveStyle::kDashed  ? "lines dt 2 lw 1.6"
                        : line                                ? "lines lw 1.3"
                                                              : "linespoints pt 7 ps 0.5 lw 1.6",
                        look, quoted(curve.name));
  }
  return finish(script + "plot " + what + "\n", plot.title, height_of(plot.curves.size()));
}

std::string SvgDrawer::draw(const BarPlot& plot) {
  std::string script =
      opening(plot.x_label, plot.y_label) + legend() +
      "set yrange [0:*]\nset style data histograms\nset style histogram rowstacked\n"
      "set style fill solid 1 noborder\nset boxwidth 0.75\n";
  if (plot.bars.size() > 6) script += "set xtics rotate by -60\n";
  script += "$bars << EOD\n";
  for (std::size_t bar = 0; bar < plot.bars.size(); ++bar) {
    script += quoted(plot.bars[bar]);
    for (const double height : plot.heights[bar]) script += fmt::format(" {}", height);
    script += '\n';
  }
  script += "EOD\nplot ";
  for (std::size_t part = 0; part < plot.parts.size(); ++part)
    script += fmt::format("{}$bars using {}{} lc rgb '{}' title {}", part == 0 ? "" : ", ",
                          part + 2, part == 0 ? ":xtic(1)" : "", color_of(static_cast<int>(part)),
                          quoted(plot.parts[part]));
  return finish(script + "\n", plot.title, height_of(plot.parts.size()));
}

std::string SvgDrawer::finish(const std::string& script, const std::string& title, int height) {
  std::string svg = run_gnuplot(
      fmt::format("set encoding utf8\nset terminal svg size 380,{} dynamic noenhanced rounded "
                  "font 'DejaVu Sans,12'\n",
                  height) +
      script);
  const std::size_t begin = svg.find("<svg");
  COPPICE_CHECK(begin != std::string::npos, "gnuplot drew no SVG but: {}", svg.substr(0, 200));
  svg.erase(0, begin);
  // HTML knows the namespaces of what stands in it; names must be unique in the page.
  svg = std::regex_replace(svg, std::regex("xmlns(:xlink)?=\"[^\"]*\""), "");
  svg = std::regex_replace(svg, std::regex("xlink:href"), "href");
  svg = std::regex_replace(svg, std::regex("(id=['\"]|href=['\"]#|url\\(#)"),
                           fmt::format("$1plot{}_", ++count_));
  // Where the page is read there may be other fonts.
  svg = std::regex_replace(svg, std::regex("font-family=\"DejaVu Sans\""),
                           "font-family=\"DejaVu Sans, Verdana, sans-serif\"");
  svg = std::regex_replace(svg, std::regex("<desc>[^<]*</desc>"), "");
  svg = std::regex_replace(svg, std::regex("<title>[^<]*</title>"),
                           "<title>" + html_escaped(title) + "</title>",
                           std::regex_constants::format_first_only);
  return fmt::format("<figcaption>{}</figcaption>\n<svg role=\"img\"{}", html_escaped(title),
                     svg.substr(4));
}

}  // namespace coppice

// OutputLines: the lines of what a program prints, for a terminal that several programs share.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::elastic {

class OutputLines {
 public:
  using Take = std::function<void(const std::string& line)>;

  // Hands on every line that is complete, as a terminal would show it: of what was written over with a carriage return
  // only the last remains. A progress bar, which never ends its line, is handed on once a second.
  void add(std::string_view bytes, double now, const Take& take);
  // The program has ended: what is left is a line.
  void finish(const Take& take);

 private:
  std::string partial_;
  double shown_ = 0.0;
};

}  // namespace lockstep::elastic

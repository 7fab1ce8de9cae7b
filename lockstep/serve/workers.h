// Threads that ask the stores, so that the thread of the sockets never waits for a disk.
#pragma once

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/serve/request.h"
#include "lockstep/serve/stores.h"

namespace lockstep::serve {

struct WorkerOptions {
  std::size_t threads = 2;
  std::size_t capacity = 256;           // questions that wait; beyond it they are refused
  double shared_seconds = 0.25;         // how long an answer serves others who ask the same
  std::size_t shared_bytes = 64 << 20;  // of such answers at most
};

// Many viewers of one run ask the same at the same time: they share one answer.
class Workers {
 public:
  using Question = std::function<Response(Stores&)>;  // must not throw
  using Done = std::function<void(const Response&)>;  // on a thread of the pool, or at once in ask()

  Workers(const std::filesystem::path& home, WorkerOptions options);
  ~Workers();  // questions that wait are dropped; those under way are waited for
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // False when too many wait. Whoever asks with the same `key` while the answer is being made, or shortly after, gets
  // the same one; "": this question changes something, it is asked by itself and kept answers are forgotten.
  bool ask(const std::string& key, Question question, Done done);

  std::size_t asked() const;  // how often a store was really asked

 private:
  struct Shared {
    std::vector<Done> waiting;
    std::optional<Response> answer;
    double answered_at = 0.0;
  };
  struct Job {
    Question question;
    std::shared_ptr<Shared> shared;
    bool changes = false;  // what was answered before it is out of date
  };

  void work(const std::filesystem::path& home);
  void forget_old();

  WorkerOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Job> jobs_;
  std::map<std::string, std::shared_ptr<Shared>> shared_;
  std::size_t asked_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::serve

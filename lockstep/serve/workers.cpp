#include "lockstep/serve/workers.h"

#include "lockstep/base/clock.h"

namespace lockstep::serve {

Workers::Workers(const std::filesystem::path& home, WorkerOptions options) : options_(options) {
  for (std::size_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this, home] { work(home); });
}

Workers::~Workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    jobs_.clear();
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::forget_old() {
  const double now = monotonic_seconds();
  std::size_t bytes = 0;
  for (auto it = shared_.begin(); it != shared_.end();) {
    const Shared& kept = *it->second;
    if (kept.answer) bytes += kept.answer->body->size();
    const bool old = kept.answer && (now - kept.answered_at > options_.shared_seconds || bytes > options_.shared_bytes);
    it = old ? shared_.erase(it) : std::next(it);
  }
}

bool Workers::ask(const std::string& key, Question question, Done done) {
  std::unique_lock lock(mutex_);
  forget_old();
  if (const auto same = shared_.find(key); !key.empty() && same != shared_.end()) {
    if (!same->second->answer) {
      same->second->waiting.push_back(std::move(done));
      return true;
    }
    const Response answer = *same->second->answer;
    lock.unlock();
    done(answer);
    return true;
  }
  if (jobs_.size() >= options_.capacity) return false;
  auto shared = std::make_shared<Shared>();
  shared->waiting.push_back(std::move(done));
  if (!key.empty()) shared_[key] = shared;
  jobs_.push_back({std::move(question), std::move(shared), key.empty()});
  lock.unlock();
  wake_.notify_one();
  return true;
}

std::size_t Workers::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

void Workers::work(const std::filesystem::path& home) {
  Stores stores(home);
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    ++asked_;
    lock.unlock();
    const Response answer = job.question(stores);
    lock.lock();
    if (job.changes) shared_.clear();
    job.shared->answer = answer;
    job.shared->answered_at = monotonic_seconds();
    const std::vector<Done> waiting = std::move(job.shared->waiting);
    lock.unlock();
    for (const Done& done : waiting) done(answer);
    lock.lock();
  }
}

}  // namespace lockstep::serve

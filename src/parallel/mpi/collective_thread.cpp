#include "parallel/mpi/collective_thread.hpp"

#include "core/error.hpp"

namespace coppice {

std::shared_ptr<CollectiveThread::Job> CollectiveThread::add(std::function<void()> work) {
  COPPICE_CHECK(!abandoned_, "a collective started on an axis that was given up");
  auto job = std::make_shared<Job>();
  job->work = std::move(work);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    ++unfinished_;
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_one();
  return job;
}

void CollectiveThread::check_abandoned() const {
  if (abandoned_) throw CommError("given up, because an error ends the job");
}

void CollectiveThread::abandon() {
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void CollectiveThread::run() {
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return abandoned_ || !jobs_.empty(); });
      if (abandoned_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job->ran.begin = std::chrono::steady_clock::now();
    try {
      job->work();
    } catch (...) {
      job->error = std::current_exception();
    }
    job->ran.end = std::chrono::steady_clock::now();
    job->work = nullptr;
    // Behind everything the job has written: whoever sees this may read it.
    --unfinished_;
    job->done = true;
  }
}

}  // namespace coppice

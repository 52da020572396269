//! A pool of jobs: at most `num_parallel` at a time, in order, until all have ended.

use lockstep_platform::{Exit, World};
use std::collections::VecDeque;
use std::time::Duration;

/// Interval between two polls of the running jobs.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The jobs of a pool. A job is usually a process.
pub trait Jobs {
    /// A running job.
    type Job;
    /// A failure of a job or of starting one.
    type Error;

    /// Starts the job of a run.
    fn start(&mut self, run: usize) -> Result<Self::Job, Self::Error>;

    /// How a job ended, if it has; does not block.
    fn try_wait(&mut self, job: &mut Self::Job) -> Result<Option<Exit>, Self::Error>;

    /// Records the result of a job. After an error the pool starts no more jobs.
    fn finish(&mut self, run: usize, job: &mut Self::Job, exit: Exit) -> Result<(), Self::Error>;

    /// Reports progress; called at every poll with the runs whose jobs are running.
    fn report_progress(&mut self, running: &[usize]);
}

/// Runs all jobs. After a failure no more start, but the running ones finish: their results are
/// worth keeping. Returns the first failure.
pub fn run_all<J: Jobs>(
    world: &World,
    num_parallel: usize,
    runs: &[usize],
    jobs: &mut J,
) -> Result<(), J::Error> {
    let mut waiting: VecDeque<usize> = runs.iter().copied().collect();
    let mut running: Vec<(usize, J::Job)> = Vec::new();
    let mut failure = None;
    while !running.is_empty() || !waiting.is_empty() {
        while running.len() < num_parallel
            && let Some(run) = waiting.pop_front()
        {
            running.push((run, jobs.start(run)?));
        }
        let mut still = Vec::new();
        for (run, mut job) in running {
            let Some(exit) = jobs.try_wait(&mut job)? else {
                still.push((run, job));
                continue;
            };
            if let Err(error) = jobs.finish(run, &mut job, exit) {
                waiting.clear();
                failure.get_or_insert(error);
            }
        }
        running = still;
        let names: Vec<usize> = running.iter().map(|(run, _)| *run).collect();
        jobs.report_progress(&names);
        world.clock().sleep(POLL_INTERVAL);
    }
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Jobs that end at their second poll; run 1 fails.
    #[derive(Default)]
    struct Fake {
        started: Vec<usize>,
        finished: Vec<usize>,
        most: usize,
        has_failure: bool,
    }

    impl Jobs for Fake {
        type Job = u32;
        type Error = String;

        fn start(&mut self, run: usize) -> Result<u32, String> {
            self.started.push(run);
            Ok(0)
        }

        fn try_wait(&mut self, job: &mut u32) -> Result<Option<Exit>, String> {
            *job += 1;
            Ok((*job == 2).then_some(Exit::Code(0)))
        }

        fn finish(&mut self, run: usize, _: &mut u32, _: Exit) -> Result<(), String> {
            self.finished.push(run);
            if run == 1 && self.has_failure { Err("run 1 failed".to_owned()) } else { Ok(()) }
        }

        fn report_progress(&mut self, running: &[usize]) {
            self.most = self.most.max(running.len());
        }
    }

    #[test]
    fn jobs_start_in_order_and_no_more_than_allowed_run_at_a_time() {
        let (world, mut jobs) = (lockstep_platform::real(), Fake::default());
        assert_eq!(run_all(&world, 2, &[4, 1, 3], &mut jobs), Ok(()));
        assert_eq!((jobs.started, jobs.most), (vec![4, 1, 3], 2));
    }

    #[test]
    fn a_failure_starts_no_more_jobs_and_lets_the_running_ones_finish() {
        let world = lockstep_platform::real();
        let mut jobs = Fake { has_failure: true, ..Fake::default() };
        let error = run_all(&world, 2, &[1, 2, 3, 4], &mut jobs);
        assert_eq!(error, Err("run 1 failed".to_owned()));
        assert_eq!(jobs.finished, [1, 2]);
    }
}

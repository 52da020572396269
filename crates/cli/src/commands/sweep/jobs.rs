//! The processes of a sweep: `lockstep train` for each run of one rung, with progress lines.

use super::Arguments;
use crate::failure::Failure;
use crate::subprocess::Subprocess;
use crate::workers::{OWNER, print_status};
use lockstep_config::Blame;
use lockstep_platform::{Exit, World};
use lockstep_sweep::metric::Metric;
use lockstep_sweep::outcome::{Outcome, Status};
use lockstep_sweep::plan::Plan;
use lockstep_sweep::pool;
use lockstep_sweep::store::Store;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// Interval between two progress lines.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// The end of a run's event log, which has its last step.
const TAIL_BYTES: u64 = 4 << 10;

/// The runs of one rung.
pub(super) struct RungJobs<'a> {
    arguments: &'a Arguments,
    world: &'a World,
    plan: &'a Plan,
    store: &'a Store<'a>,
    rung: usize,
    done: Vec<(usize, Outcome)>,
    num_runs: usize,
    /// Time of the last progress line.
    last_progress: Duration,
}

impl<'a> RungJobs<'a> {
    pub(super) fn new(
        arguments: &'a Arguments,
        world: &'a World,
        plan: &'a Plan,
        store: &'a Store<'a>,
        rung: usize,
    ) -> Self {
        let last_progress = world.clock().now();
        Self { arguments, world, plan, store, rung, done: Vec::new(), num_runs: 0, last_progress }
    }

    /// Runs what is not done yet; returns the outcomes of all runs, new and recorded.
    pub(super) fn run(&mut self, runs: &[usize]) -> Result<Vec<(usize, Outcome)>, Failure> {
        self.num_runs = runs.len();
        let mut left = Vec::new();
        for run in runs {
            match self.store.outcome(&self.plan.runs[*run], self.rung)? {
                Some(outcome) => self.done.push((*run, outcome)),
                None => left.push(*run),
            }
        }
        if !self.done.is_empty() && !left.is_empty() {
            let (done, all) = (self.done.len(), self.num_runs);
            self.print(&format!("resuming: {done} of {all} runs are done\n"));
        }
        pool::run_all(self.world, self.plan.jobs, &left, self)?;
        Ok(std::mem::take(&mut self.done))
    }

    fn print(&self, line: &str) {
        if !self.arguments.quiet {
            print_status(line);
        }
    }

    fn target_steps(&self, run: usize) -> u64 {
        self.plan.rungs[self.rung].steps(self.plan.runs[run].steps)
    }

    /// Arguments of the `train` command of a run.
    fn command(&self, index: usize) -> Result<Vec<OsString>, Failure> {
        let (plan, target) = (self.plan, self.target_steps(index));
        let run = &plan.runs[index];
        let checkpoint = self.store.prepare(run, self.rung)?;
        let before = self.rung.checked_sub(1).map(|before| self.store.run_dir(run, before));
        let mut sets = run.sets(&plan.keys);
        if let Some(threads) = plan.threads[index] {
            sets.push(format!("run.threads={threads}"));
        }
        sets.push(format!("run.dir={}", self.store.run_dir(run, self.rung).display()));
        // --json skips the sample of generated text, which takes time; the output is discarded.
        let mut command = ["train", "--quiet", "--json"].map(str::to_owned).to_vec();
        command.extend(self.arguments.recipe.with(&sets).to_arguments());
        if target < run.steps {
            command.extend(["--stop-after".to_owned(), target.to_string()]);
        }
        let mut command: Vec<OsString> = command.into_iter().map(OsString::from).collect();
        if let Some(dir) = checkpoint.or(before) {
            command.extend(["--resume".into(), dir.into_os_string()]);
        }
        Ok(command)
    }
}

impl pool::Jobs for RungJobs<'_> {
    type Job = Subprocess;
    type Error = Failure;

    fn start(&mut self, run: usize) -> Result<Subprocess, Failure> {
        let arguments = self.command(run)?;
        let owner = (OWNER.to_owned(), self.world.processes().own_id().to_string());
        Subprocess::start(self.world, arguments, vec![owner])
    }

    fn try_wait(&mut self, process: &mut Subprocess) -> Result<Option<Exit>, Failure> {
        process.try_wait()
    }

    fn finish(&mut self, run: usize, process: &mut Subprocess, exit: Exit) -> Result<(), Failure> {
        let (code, message) = match exit {
            Exit::Code(0) => (0, String::new()),
            _ => process.error_message(exit),
        };
        let configuration = &self.plan.runs[run];
        let sets = configuration.sets(&self.plan.keys).join(" ");
        let name = configuration.name.clone();
        let outcome = match code {
            0 => self.store.finish(configuration, self.rung)?,
            code if code == Blame::Diverged.exit_code() => {
                self.store.record(configuration, self.rung, &Outcome::diverged(&message))?
            }
            code => {
                let lines: Vec<_> =
                    message.lines().map(|line| format!("run {name} ({sets}): {line}")).collect();
                self.print(&format!("run {name} failed; no more runs start\n"));
                let advice = "results so far are kept; the same command resumes the sweep";
                let text = format!("{}\n{advice}", lines.join("\n"));
                return Err(Failure::with_code(code, text));
            }
        };
        let result = render_outcome(self.plan.by, &outcome);
        self.done.push((run, outcome));
        let (done, all) = (self.done.len(), self.num_runs);
        self.print(&format!("{done}/{all}  {name}  {sets}  {result}\n"));
        Ok(())
    }

    fn report_progress(&mut self, running: &[usize]) {
        let elapsed = self.world.clock().since(self.last_progress);
        if self.arguments.quiet || elapsed < PROGRESS_INTERVAL {
            return;
        }
        self.last_progress = self.world.clock().now();
        let of = |run: &usize| {
            let events = self.store.run_dir(&self.plan.runs[*run], self.rung).join("events.jsonl");
            let step = last_step(self.world, &events).unwrap_or(0);
            format!("{} step {step} of {}", self.plan.runs[*run].name, self.target_steps(*run))
        };
        let all: Vec<String> = running.iter().map(of).collect();
        if !all.is_empty() {
            print_status(&format!("running: {}\n", all.join(", ")));
        }
    }
}

fn render_outcome(by: Metric, outcome: &Outcome) -> String {
    match (outcome.status, outcome.figures.get(by.name())) {
        (Status::Diverged, _) => format!("diverged at step {}", outcome.steps),
        (Status::Done, Some(value)) => format!("{} {}", by.label(), by.format(*value)),
        (Status::Done, None) => format!("no finite {}", by.label()),
    }
}

/// The last step in a run's event log.
fn last_step(world: &World, events: &Path) -> Option<u64> {
    let file = world.files().open(events).ok()?;
    let offset = file.num_bytes().saturating_sub(TAIL_BYTES);
    let mut tail = vec![0; usize::try_from(file.num_bytes() - offset).ok()?];
    file.read_exact_at(offset, &mut tail).ok()?;
    let tail = String::from_utf8_lossy(&tail);
    let number =
        tail.rsplit("\"event\":\"step\",\"step\":").next().filter(|n| n.len() < tail.len());
    number?.split(',').next()?.parse().ok()
}
